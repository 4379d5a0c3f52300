"""Collect patches: the built-in ones, those of directories that were named, and those of installed packages."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from patcher.errors import UsageError
from patcher.patch import Patch, did_you_mean
from patcher.target import Target

# In the order in which they are applied.
BUILT_IN = ("patches.nccl_defaults", "patches.kimi_k25_eagle3", "patches.eagle3_delegation")
ENTRY_POINTS = "sglang_patch.patches"
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_INSTANCE = re.compile(r"[A-Za-z0-9_.]+")


class Catalog(Mapping[str, Patch]):
    """Patches by id, in the order in which they are applied.

    Iteration gives the patches that a bare `apply` takes. A family is in `families`; its instances (`id:name`) are
    looked up like any patch, on the target that the catalog is for.
    """

    def __init__(self, patches: Sequence[Patch], target: Target | None = None) -> None:
        self._patches: dict[str, Patch] = {}
        self._target = target
        self._instances: dict[str, Patch] = {}
        for patch in patches:
            if patch.id in self._patches:
                raise UsageError(f"two patches are called {patch.id}", hint="rename one of them")
            self._patches[patch.id] = patch

    def on(self, target: Target) -> Catalog:
        """The same catalog for one target, on which the instances of families can be looked up."""
        return Catalog(list(self._patches.values()), target)

    @property
    def families(self) -> dict[str, Patch]:
        """The patches that are applied as instances only."""
        return {name: patch for name, patch in self._patches.items() if patch.family}

    def __getitem__(self, patch_id: str) -> Patch:
        base, _, name = patch_id.partition(":")
        patch = self._patches[base]
        if not name:
            return patch
        if patch.family is None or self._target is None or not _INSTANCE.fullmatch(name):
            raise KeyError(patch_id)
        if patch_id not in self._instances:
            self._instances[patch_id] = patch.family.instance(self._target, name)
        return self._instances[patch_id]

    def __iter__(self) -> Iterator[str]:
        return (name for name, patch in self._patches.items() if not patch.family)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def everything(self) -> list[Patch]:
        """Every patch, families included."""
        return list(self._patches.values())

    def place(self, patch_id: str) -> tuple[int, str]:
        """A key that sorts patches into the order in which they are applied."""
        return list(self._patches).index(patch_id.partition(":")[0]), patch_id

    def known(self, patch_id: str, *, also: Sequence[str] = ()) -> str:
        """The id itself; raises UsageError, naming the near misses, if neither the catalog nor `also` has it."""
        if patch_id not in self and patch_id not in also:
            names = [*self._patches, *(name for name in also if name not in self._patches)]
            raise UsageError(
                f"there is no patch {patch_id!r}{did_you_mean(patch_id, names)}",
                expected=f"one of: {', '.join(names)}",
                hint="sglang-patch list",
            )
        return patch_id


def collect(directories: Sequence[Path] = ()) -> Catalog:
    """The built-in patches, then those of installed packages (entry points), then those of the directories, by name.

    Code is loaded from nowhere else. Raises UsageError for a directory or a file that holds no patch.
    """
    modules = [importlib.import_module(name) for name in BUILT_IN]
    found = [(patch, module.__name__) for module in modules for patch in _patches_of(module, module.__name__)]
    found += _from_entry_points()
    for directory in directories:
        found += _from_directory(directory)
    homes: dict[str, str] = {}
    for patch, home in found:
        if not _ID.fullmatch(patch.id):
            raise UsageError(
                f"{patch.id!r} is no patch id", where=home, expected="lower-case words and digits joined by -"
            )
        if patch.id in homes:
            raise UsageError(f"the id {patch.id} is taken by {homes[patch.id]}", where=home, hint="give it another id")
        homes[patch.id] = home
    return Catalog([patch for patch, _ in found])


def _patches_of(module: ModuleType, where: str) -> list[Patch]:
    """The patches of one module: `PATCH`, or `PATCHES` for several."""
    declared = getattr(module, "PATCHES", None) or [getattr(module, "PATCH", None)]
    patches: list[Patch] = [patch for patch in declared if isinstance(patch, Patch)]
    if len(patches) < len(declared):
        raise UsageError(
            "it declares no patch", where=where, expected="PATCH = Patch(...)", hint="see docs/authoring.md"
        )
    return patches


def _from_entry_points() -> list[tuple[Patch, str]]:
    if not _has_entry_points():
        return []
    from importlib.metadata import entry_points

    found: list[tuple[Patch, str]] = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        home = f"entry point {point.name} = {point.value}"
        found += [(patch, home) for patch in _patches_of(point.load(), home)]
    return found


def _has_entry_points() -> bool:
    """Whether any installed package names our entry point group; reading all their metadata properly takes longer."""
    group = f"[{ENTRY_POINTS}]".encode()
    for folder in map(Path, sys.path):
        with contextlib.suppress(OSError):
            paths = folder.glob("*.dist-info/entry_points.txt")
            if any(group in path.read_bytes() for path in paths if os.access(path, os.R_OK)):
                return True
    return False


def _from_directory(directory: Path) -> list[tuple[Patch, str]]:
    if not directory.is_dir():
        raise UsageError("there is no such directory of patches", where=str(directory), hint="check --patches")
    files = sorted(path for path in directory.glob("*.py") if not path.name.startswith(("_", ".")))
    if not files:
        raise UsageError(
            "no patch file in it", where=str(directory), expected="*.py files, each with PATCH = Patch(...)"
        )
    return [(patch, str(path)) for path in files for patch in _patches_of(_load(path), str(path))]


def _load(path: Path) -> ModuleType:
    """Run a patch file that the user named, under a module name of its own."""
    name = f"sglang_patch_file_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError("it cannot be loaded as Python", where=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"this patch file fails when it is loaded: {type(error).__name__}: {error}", where=_raised_at(path, error)
        ) from error
    return module


def _raised_at(path: Path, error: BaseException) -> str:
    """The path, with the line of the file at which the error arose if it is known."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{error.filename or path}:{error.lineno}"
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{path}:{line}" if line else str(path)
