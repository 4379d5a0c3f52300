"""One file of an SGLang tree: what its top level defines, imports and assigns."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from patcher.target import PACKAGE
from patcher.wrappers.statements import Function, assignments, flat, inside, is_name, parameters


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
    def nodes(self) -> list[ast.AST]:
        """The nodes of its body; see `statements.inside`."""
        return self.module.nodes(self.node)

    @property
    def statements(self) -> list[ast.stmt]:
        """The statements of its body and of the blocks in it; see `statements.flat`."""
        return self.module.statements(self.node)

    def own(self, node: ast.AST) -> str:
        """The `name` of an expression `self.name` in a method, "" for any other expression."""
        mine = self.owner is not None and isinstance(node, ast.Attribute) and is_name(node.value, self.me)
        return node.attr if mine and isinstance(node, ast.Attribute) else ""

    @property
    def me(self) -> str:
        """What a method calls its own object, usually `self`; "" in a function."""
        return next(iter(parameters(self.node)), "") if self.owner else ""

    def local(self, name: str) -> list[ast.expr | None]:
        """What it assigns to a local name; None for what cannot be told (parameters, loops, unpacking)."""
        return self.module.locals(self.node).get(name, [])


@dataclass(frozen=True)
class Import:
    """An import of `name` from the module `dotted`, or of that module; `inside` says whether it is SGLang's."""

    dotted: str
    name: str | None
    inside: bool


class Module:
    """A parsed file.

    `names` are the things that the top level binds each name to, in order; `stars` the modules of `import *`;
    `exported` the statements about `EntryClass`; `patched` the assignments `owner.name = ...` to what is defined here.
    """

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path = path
        self.names: dict[str, list[ClassRef | FunctionRef | Import | ast.expr]] = {}
        self.stars: list[Import] = []
        self.exported: list[ast.stmt] = []
        self.patched: list[tuple[str, str, ast.stmt]] = []
        self._nodes: dict[Function, list[ast.AST]] = {}
        self._statements: dict[Function, list[ast.stmt]] = {}
        self._locals: dict[Function, dict[str, list[ast.expr | None]]] = {}
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
        nodes = [node for statement in self.exported for node in ast.walk(statement) if not is_name(node, "EntryClass")]
        return list(dict.fromkeys(node.id for node in nodes if isinstance(node, ast.Name)))

    def nodes(self, function: Function) -> list[ast.AST]:
        """The nodes of a function's body, walked once."""
        if function not in self._nodes:
            self._nodes[function] = list(inside(function))
        return self._nodes[function]

    def statements(self, function: Function) -> list[ast.stmt]:
        """The statements of a function's body, walked once."""
        if function not in self._statements:
            self._statements[function] = list(flat(function.body))
        return self._statements[function]

    def locals(self, function: Function) -> dict[str, list[ast.expr | None]]:
        """What a function assigns to its local names; None for what cannot be told (parameters, loops, unpacking)."""
        if function not in self._locals:
            found: dict[str, list[ast.expr | None]] = {name: [None] for name in parameters(function)}
            for target, value in (pair for node in self.nodes(function) for pair in assignments(node)):
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(value)
            self._locals[function] = found
        return self._locals[function]

    def imports(self, statement: ast.stmt) -> Iterator[tuple[str, Import]]:
        """The names that an import statement binds."""
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                dotted = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or dotted, _absolute(dotted, None)
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                yield alias.asname or alias.name, self._from(statement, alias.name)

    def _from(self, statement: ast.ImportFrom, name: str) -> Import:
        if not statement.level:
            return _absolute(statement.module or "", name)
        folders = self.path.split("/")[:-1]
        base = folders[: len(folders) + 1 - statement.level]
        return Import(".".join(filter(None, [*base, statement.module])), name, inside=True)

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
        elif _is_about_entry(statement):
            self.exported.append(statement)
        else:
            self._assign(statement)

    def _assign(self, statement: ast.stmt) -> None:
        for target, value in assignments(statement):
            if isinstance(target, ast.Name) and value is not None:
                self.names.setdefault(target.id, []).append(value)
            elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                self.patched.append((target.value.id, target.attr, statement))


def _is_about_entry(statement: ast.stmt) -> bool:
    simple = isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr)
    return simple and any(is_name(node, "EntryClass") for node in ast.walk(statement))


def _absolute(dotted: str, name: str | None) -> Import:
    head, _, rest = dotted.partition(".")
    return Import(rest, name, inside=True) if head == PACKAGE else Import(dotted, name, inside=False)
