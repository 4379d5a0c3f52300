"""An SGLang tree, and what a name in one of its modules stands for: source text only, nothing is imported."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from patcher.source import syntax
from patcher.wrappers.modules import ClassRef, FunctionRef, Import, Module
from patcher.wrappers.statements import is_none, shown

Reader: TypeAlias = Callable[[str], bytes | None]


@dataclass(frozen=True)
class Package:
    """A module or package by its dotted name below `sglang`, "" for `sglang` itself.

    A directory without an `__init__.py` cannot be told from one that is not there: what is below it is a Package too.
    """

    dotted: str


@dataclass(frozen=True)
class Outside:
    """Something from another distribution, or a builtin; the tree cannot say more."""

    name: str


@dataclass(frozen=True)
class Missing:
    """A name that should be in the tree and cannot be found, or an expression that cannot be followed."""

    name: str


Meaning: TypeAlias = ClassRef | FunctionRef | Package | Outside | Missing


class Tree:
    """Modules by path, each read and parsed at most once, when first asked for."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._texts: dict[str, bytes | None] = {}
        self._modules: dict[str, Module | None] = {}

    def text(self, path: str) -> bytes | None:
        """The bytes of a file, or None where there is none."""
        if path not in self._texts:
            self._texts[path] = self._read(path)
        return self._texts[path]

    def module(self, path: str) -> Module | None:
        """A parsed file, or None where there is none or it does not parse."""
        if path not in self._modules:
            data = self.text(path)
            tree = syntax(data) if data is not None else None
            self._modules[path] = Module(path, tree) if tree else None
        return self._modules[path]

    def meaning(self, node: ast.expr, module: Module, function: FunctionRef | None = None) -> list[Meaning]:
        """What a name or dotted name may stand for in a module, or in a function of it; None stands for nothing."""
        head = _head(node)
        local = _local_imports(function, head.id) if function and head else []
        return self._meaning(node, module, local, ())

    def can_be_below(self, node: ast.expr, module: Module, function: FunctionRef | None, dotted: str) -> bool:
        """Whether what a name stands for can be defined below a package, as far as its import says; reads no file."""
        head = _head(node)
        if head is None:
            return True
        bound = (_local_imports(function, head.id) if function else []) or module.names.get(head.id, [])
        imports = [one for one in bound if isinstance(one, Import)]
        near = any(one.inside and (f"{one.dotted}.{one.name}".startswith(dotted) or not one.name) for one in imports)
        return near or len(imports) < len(bound) or not bound

    def _meaning(
        self, node: ast.expr, module: Module, local: Sequence[Import], trail: tuple[str, ...]
    ) -> list[Meaning]:
        """Like `meaning`, with the imports of the function for the name that the expression starts with."""
        if is_none(node):
            return []
        if isinstance(node, ast.Name):
            return self._any_of(local, module, trail) if local else self._named(module, node.id, trail)
        if isinstance(node, ast.Attribute):
            owners = self._meaning(node.value, module, local, trail)
            return [one for owner in owners for one in self._attribute(owner, node.attr, trail)]
        return [Missing(shown(node))]

    def _named(self, module: Module, name: str, trail: tuple[str, ...]) -> list[Meaning]:
        step = f"{module.path}:{name}"
        if step in trail:
            return [Missing(name)]
        if bound := module.names.get(name):
            return self._any_of(bound, module, (*trail, step))
        for star in module.stars:
            there = self._imported(Import(star.dotted, name, star.inside), (*trail, step))
            if any(isinstance(one, ClassRef | FunctionRef) for one in there):
                return there
        return [Outside(name) if hasattr(builtins, name) else Missing(name)]

    def _any_of(
        self, bound: Sequence[ClassRef | FunctionRef | Import | ast.expr], module: Module, trail: tuple[str, ...]
    ) -> list[Meaning]:
        found: list[Meaning] = []
        for one in bound:
            if isinstance(one, ClassRef | FunctionRef):
                found.append(one)
            elif isinstance(one, Import):
                found += self._imported(one, trail)
            else:
                found += self._meaning(one, module, (), trail)
        return list(dict.fromkeys(found))

    def _imported(self, imported: Import, trail: tuple[str, ...]) -> list[Meaning]:
        if not imported.inside:
            return [Outside(".".join(filter(None, [imported.dotted, imported.name])))]
        package = Package(imported.dotted)
        return self._attribute(package, imported.name, trail) if imported.name else [package]

    def _attribute(self, owner: Meaning, name: str, trail: tuple[str, ...]) -> list[Meaning]:
        if isinstance(owner, Outside):
            return [Outside(f"{owner.name}.{name}")]
        if not isinstance(owner, Package):
            return [Missing(name)]
        module = self._file(owner.dotted)
        below = f"{owner.dotted}.{name}".strip(".")
        if module is None or (name not in module.names and self._file(below) is not None):
            return [Package(below)]
        return self._named(module, name, trail)

    def _file(self, dotted: str) -> Module | None:
        place = dotted.replace(".", "/")
        if not place:
            return self.module("__init__.py")
        return self.module(f"{place}.py") or self.module(f"{place}/__init__.py")


def _head(node: ast.expr) -> ast.Name | None:
    """The name that a dotted name starts with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def _local_imports(function: FunctionRef, name: str) -> list[Import]:
    pairs = (pair for statement in function.statements for pair in function.module.imports(statement))
    return [imported for bound, imported in pairs if bound == name]
