"""Executes a source file as the module it is, and describes what goes wrong.

Runs in the child: standard library only.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from patcher.sandbox.finder import StubFinder, star_names

# Submodules that a program finds loaded without importing them, because something in a real SGLang process did.
_LOADED_ANYWAY = ("multiprocessing.connection", "importlib.util", "concurrent.futures", "logging.handlers")
_finder = StubFinder()


@contextmanager
def stubbed_imports() -> Iterator[None]:
    """Within the block, only the standard library is real."""
    sys.meta_path.insert(0, _finder)
    try:
        yield
    finally:
        sys.meta_path.remove(_finder)
        _finder.forget()


def execute(source: Path) -> types.ModuleType:
    """The module of this file, newly executed, under the name it has in its package. Raises what the module raises."""
    data = source.read_bytes()
    code = _compiled(data, str(source))
    _finder.forget()
    _finder.star_names = star_names(code) if b"import *" in data else []
    for name in _LOADED_ANYWAY:
        if all(part.encode() in data for part in name.split(".")):
            importlib.import_module(name)
    module = _new_module(source)
    if parent := module.__name__.rpartition(".")[0]:
        importlib.import_module(parent)
    sys.modules[module.__name__] = module
    exec(code, vars(module))  # noqa: S102 (running the file is what the sandbox is for)
    return module


@lru_cache(maxsize=1)
def _compiled(data: bytes, name: str) -> types.CodeType:
    return compile(data, name, "exec", dont_inherit=True)


def _new_module(source: Path) -> types.ModuleType:
    parts = [source.stem, *_packages(source)][::-1]
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package and len(parts) > 1 else parts)
    module = types.ModuleType(name)
    spec = ModuleSpec(name, None, origin=str(source), is_package=is_package)
    module.__spec__, module.__file__, module.__package__ = spec, str(source), spec.parent
    if is_package:
        module.__path__ = [str(source.parent)]
    return module


def _packages(source: Path) -> list[str]:
    """The packages that hold the file, innermost first: up to `sglang`, or while there is an __init__.py.

    A file outside of any package gets one, as its own name may be that of a module of the standard library.
    """
    folders = source.parents
    names = [folder.name for folder in folders]
    if "sglang" in names:
        return names[: names.index("sglang") + 1]
    outermost = next((at for at, folder in enumerate(folders) if not (folder / "__init__.py").is_file()), len(names))
    return names[:outermost] or ["sandboxed"]


def described(error: BaseException, source: Path) -> str:
    """The exception's type and message, and the last line of `source` that it passed through."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 (an exception class of the module's own, with a __str__ that fails)
        message = "(no message)"
    line = _line(error, source)
    where = f" ({source}:{line})" if line else ""
    return f"{type(error).__name__}: {message}{where}" if message else f"{type(error).__name__}{where}"


def flush_output() -> None:
    """Write out what was printed, also where the module put something of its own in the place of `sys.stdout`."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(Exception):
            stream.flush()  # type: ignore[union-attr]


def _line(error: BaseException, source: Path) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == str(source):
        return error.lineno
    found, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == str(source):
            found = step.tb_lineno
        step = step.tb_next
    return found
