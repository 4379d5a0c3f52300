"""An SGLang tree as modules, and what a name in one of them stands for: source text only, nothing is imported."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from patcher.source import syntax
from patcher.target import PACKAGE
from patcher.wrappers.statements import Function, assignments, flat, inside, shown

Reader: TypeAlias = Callable[[str], bytes | None]


@dataclass(frozen=True, eq=False)
class ClassRef:
    """A class of the tree, where it is defined."""

    module: Module
    node: ast.ClassDef

    @property
    def name(self) -> str:
        """The class's own name."""
        return self.node.name

    @property
    def where(self) -> str:
        """Its place, as `file:line`."""
        return self.module.at(self.node)


@dataclass(frozen=True, eq=False)
class FunctionRef:
    """A function of the tree: of a module, or a method of `owner`."""

    module: Module
    node: Function
    owner: ClassRef | None = None

    @property
    def where(self) -> str:
        """Its place, as `file:line`."""
        return self.module.at(self.node)

    @property
    def me(self) -> str:
        """What a method calls its own object, usually `self`; "" in a function."""
        arguments = [*self.node.args.posonlyargs, *self.node.args.args]
        return arguments[0].arg if self.owner and arguments else ""


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


@dataclass(frozen=True)
class _Import:
    """An import of `name` from the module `dotted`, or of that module; `inside` says whether it is SGLang's."""

    dotted: str
    name: str | None
    inside: bool


class Module:
    """One parsed file: `names` are the things that its top level binds each name to, in order."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path = path
        self.names: dict[str, list[ClassRef | FunctionRef | _Import | ast.expr]] = {}
        self.stars: list[_Import] = []
        self.exported: list[ast.AST] = []
        self.patched: list[tuple[str, str, ast.stmt]] = []
        self._locals: dict[ast.AST, dict[str, list[ast.expr | None]]] = {}
        self.dotted = _dotted(path)
        self.is_package = path.endswith("__init__.py")
        for statement in flat(tree.body):
            self._bind(statement)

    def at(self, node: ast.AST) -> str:
        """The place of a node, as `file:line`."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    def classes(self) -> list[ClassRef]:
        """The classes of the top level, in order."""
        return [one for bound in self.names.values() for one in bound if isinstance(one, ClassRef)]

    def entry_names(self) -> list[str]:
        """The names in `EntryClass`, by which SGLang finds the models of a file."""
        nodes = [node for statement in self.exported for node in ast.walk(statement) if not _is_entry(node)]
        return list(dict.fromkeys(node.id for node in nodes if isinstance(node, ast.Name)))

    def locals(self, function: Function) -> dict[str, list[ast.expr | None]]:
        """What a function assigns to its local names; None for what cannot be told apart (loops, unpacking)."""
        if function not in self._locals:
            found: dict[str, list[ast.expr | None]] = {}
            for target, value in (pair for node in inside(function) for pair in assignments(node)):
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(value)
            self._locals[function] = found
        return self._locals[function]

    def _bind(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.ClassDef):
            self.names.setdefault(statement.name, []).append(ClassRef(self, statement))
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            self.names.setdefault(statement.name, []).append(FunctionRef(self, statement))
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            for name, imported in self.imports(statement):
                if name == "*":
                    self.stars.append(imported)
                else:
                    self.names.setdefault(name, []).append(imported)
        elif isinstance(statement, _SIMPLE) and any(_is_entry(node) for node in ast.walk(statement)):
            self.exported.append(statement)
        else:
            for target, value in assignments(statement):
                if isinstance(target, ast.Name) and value is not None:
                    self.names.setdefault(target.id, []).append(value)
                elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    self.patched.append((target.value.id, target.attr, statement))

    def imports(self, statement: ast.stmt) -> Iterator[tuple[str, _Import]]:
        """The names that an import statement binds."""
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                dotted = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or dotted, _imported(dotted, None)
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                yield alias.asname or alias.name, self._from(statement, alias.name)

    def _from(self, statement: ast.ImportFrom, name: str) -> _Import:
        if not statement.level:
            return _imported(statement.module or "", name)
        parts = self.dotted.split(".")
        up = statement.level - self.is_package
        base = parts[: len(parts) - up] if up else parts
        return _Import(".".join(filter(None, [*base, statement.module])), name, inside=True)


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
        if isinstance(node, ast.Name):
            local = _local_imports(function, node.id) if function else []
            return self._distinct(local) if local else self._named(module, node.id, ())
        return self._meaning(node, module, ())

    def can_be_below(self, node: ast.expr, module: Module, function: FunctionRef | None, dotted: str) -> bool:
        """Whether what a name stands for can be defined below a package, as far as its import says; reads no file."""
        while isinstance(node, ast.Attribute):
            node = node.value
        if not isinstance(node, ast.Name):
            return True
        bound = (_local_imports(function, node.id) if function else []) or module.names.get(node.id, [])
        imports = [one for one in bound if isinstance(one, _Import)]
        near = [
            one for one in imports if one.inside and (one.dotted.startswith(dotted) or dotted.startswith(one.dotted))
        ]
        return bool(near) or len(imports) < len(bound) or not bound

    def _meaning(self, node: ast.expr, module: Module, trail: tuple[str, ...]) -> list[Meaning]:
        if isinstance(node, ast.Constant) and node.value is None:
            return []
        if isinstance(node, ast.Name):
            return self._named(module, node.id, trail)
        if isinstance(node, ast.IfExp):
            return [*self._meaning(node.body, module, trail), *self._meaning(node.orelse, module, trail)]
        if isinstance(node, ast.Attribute):
            owners = self._meaning(node.value, module, trail)
            return [one for owner in owners for one in self._attribute(owner, node.attr, trail)]
        return [Missing(shown(node))]

    def _named(self, module: Module, name: str, trail: tuple[str, ...]) -> list[Meaning]:
        step = f"{module.path}:{name}"
        if step in trail:
            return [Missing(name)]
        bound = module.names.get(name)
        if bound is not None:
            return self._distinct(bound, module, (*trail, step))
        for star in module.stars:
            there = self._imported(_Import(star.dotted, name, star.inside), (*trail, step))
            if not all(isinstance(one, Missing | Outside) for one in there):
                return there
        return [Outside(name) if hasattr(builtins, name) else Missing(name)]

    def _distinct(
        self,
        bound: list[ClassRef | FunctionRef | _Import | ast.expr] | list[_Import],
        module: Module | None = None,
        trail: tuple[str, ...] = (),
    ) -> list[Meaning]:
        found: list[Meaning] = []
        for one in bound:
            if isinstance(one, ClassRef | FunctionRef):
                found.append(one)
            elif isinstance(one, _Import):
                found += self._imported(one, trail)
            elif module is not None:
                found += self._meaning(one, module, trail)
        return list(dict.fromkeys(found))

    def _imported(self, imported: _Import, trail: tuple[str, ...]) -> list[Meaning]:
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
        if module is not None and name in module.names:
            return self._named(module, name, trail)
        below = f"{owner.dotted}.{name}".strip(".")
        if self._file(below) is not None or (
            module is None and self._file(owner.dotted) is None and below.count(".") < 1
        ):
            return [Package(below)]
        return self._named(module, name, trail) if module is not None else [Missing(name)]

    def _file(self, dotted: str) -> Module | None:
        place = dotted.replace(".", "/")
        return (self.module(f"{place}.py") if place else None) or self.module(f"{place}/__init__.py".lstrip("/"))


_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)


def _is_entry(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "EntryClass"


def _local_imports(function: FunctionRef, name: str) -> list[_Import]:
    pairs = (pair for statement in flat(function.node.body) for pair in function.module.imports(statement))
    return [imported for bound, imported in pairs if bound == name]


def _imported(dotted: str, name: str | None) -> _Import:
    head, _, rest = dotted.partition(".")
    return _Import(rest, name, inside=True) if head == PACKAGE else _Import(dotted, name, inside=False)


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".").removesuffix("__init__")
