"""Answers every import that is not the standard library with a module of stubs, installed or not.

Runs in the child: standard library only.
"""

from __future__ import annotations

import builtins
import dis
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from patcher.sandbox import stubs


class StubModule(types.ModuleType):
    """A module that has every name, and every submodule."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        path = f"{self.__name__}.{name}"
        value = sys.modules[path] if path in sys.modules else stubs.named(path)
        setattr(self, name, value)
        return value


class StubFinder(MetaPathFinder, Loader):
    """First on `sys.meta_path`: what is neither the standard library nor in `allowed` (top-level names) is a stub.

    `star_names` is what `from x import *` gives.
    """

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self.real = sys.stdlib_module_names | set(sys.builtin_module_names) | {"__main__", *allowed}
        self.star_names: list[str] = []

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The specification of a stub module, or None to let the interpreter look for the real one."""
        if fullname.partition(".")[0] in self.real:
            return None
        return ModuleSpec(fullname, self, origin="stub", is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """An empty stub module."""
        return StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Give the module the names that a star import takes."""
        vars(module)["__all__"] = list(self.star_names)

    def forget(self) -> None:
        """Drop every stub module, so that nothing that one case did to one reaches the next."""
        for name in [name for name, module in sys.modules.items() if isinstance(module, StubModule)]:
            del sys.modules[name]
        stubs.forget()


def star_names(code: types.CodeType) -> list[str]:
    """The names that a module's code reads as globals and nothing in it defines: those can only come from a star."""
    stored = {step.argval for step in dis.get_instructions(code) if step.opname in ("STORE_NAME", "STORE_GLOBAL")}
    read = {
        step.argval
        for part in _code_within(code)
        for step in dis.get_instructions(part)
        if step.opname in ("LOAD_NAME", "LOAD_GLOBAL")
    }
    return sorted(name for name in read - stored if not name.startswith("__") and not hasattr(builtins, name))


def _code_within(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_within(constant)
