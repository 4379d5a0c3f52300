"""Keep compiled bytecode true to its source.

Python trusts a timestamp .pyc when the source's second and size match, and an unchecked-hash .pyc always: a patch that
leaves such a file has no effect (PEP 552).
"""

from __future__ import annotations

import contextlib
import os
import py_compile
import re
import stat
import struct
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

_TAGGED = re.compile(r"\.(?P<tag>[^.]+?)(?:\.opt-(?P<level>\w+))?\.pyc")


@dataclass(frozen=True)
class Compiled:
    """One .pyc of a source file: where it is, for which interpreter, at which level, how it is trusted, its mode."""

    path: Path
    tag: str
    optimization: str
    mode: py_compile.PycInvalidationMode
    permissions: int


def compiled(source: Path) -> list[Compiled]:
    """Every .pyc of a source file, beside it, in __pycache__ and below PYTHONPYCACHEPREFIX, of any interpreter."""
    folders = [source.parent / "__pycache__"]
    prefix = os.environ.get("PYTHONPYCACHEPREFIX") or sys.pycache_prefix
    if prefix:
        folders.append(Path(prefix, *source.parent.absolute().parts[1:]))
    found = []
    for folder in folders:
        for path in folder.glob(f"{source.stem}.*.pyc"):
            match = _TAGGED.fullmatch(path.name[len(source.stem) :])
            if match:
                found.append(Compiled(path, match["tag"], match["level"] or "", _mode(path), _permissions(path)))
    legacy = source.with_suffix(".pyc")
    if legacy.exists():
        found.append(Compiled(legacy, "", "", _mode(legacy), _permissions(legacy)))
    return found


def _permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _mode(path: Path) -> py_compile.PycInvalidationMode:
    """How Python trusts a .pyc: bytes 4 to 8 are its flags, 1 for a hash, 2 for one that is checked (PEP 552)."""
    flags = 0
    with contextlib.suppress(OSError, struct.error):
        flags = struct.unpack("<I", path.read_bytes()[4:8])[0]
    if not flags & 1:
        return py_compile.PycInvalidationMode.TIMESTAMP
    if flags & 2:
        return py_compile.PycInvalidationMode.CHECKED_HASH
    return py_compile.PycInvalidationMode.UNCHECKED_HASH


def discard(source: Path) -> list[Compiled]:
    """Remove every .pyc of a source file; returns those that were there."""
    there = compiled(source)
    for one in there:
        with contextlib.suppress(FileNotFoundError):
            one.path.unlink()
    return there


def sweep(source: Path) -> None:
    """Remove what a killed compiler left of a source file's .pyc."""
    for left in (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc.*"):
        left.unlink(missing_ok=True)


def compile_again(source: Path, formerly: list[Compiled]) -> None:
    """Compile a source file for those of its former .pyc files that belong to the running interpreter."""
    for one in formerly:
        if one.tag != sys.implementation.cache_tag:
            continue
        level = int(one.optimization) if one.optimization.isdigit() else 0
        with contextlib.suppress(OSError, ValueError, py_compile.PyCompileError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            py_compile.compile(
                str(source), str(one.path), doraise=True, optimize=level, invalidation_mode=one.mode, quiet=2
            )
            one.path.chmod(one.permissions)
