"""What the attributes of an object can hold: the classes that its `__init__` assigns to them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from patcher.wrappers.classes import Lineage, lineage, methods
from patcher.wrappers.statements import assignments, flat, inside, shown
from patcher.wrappers.tree import ClassRef, FunctionRef, Meaning, Module, Outside, Tree


@dataclass(frozen=True)
class Held:
    """One class of which an attribute may hold an instance."""

    cls: ClassRef
    where: str


@dataclass(frozen=True)
class Unclear:
    """An assignment from which the class cannot be told."""

    what: str
    where: str


@dataclass(frozen=True)
class Assigned:
    """One assignment `self.name = value`; the value is None where it cannot be told apart."""

    name: str
    value: ast.expr | None
    target: ast.expr
    function: FunctionRef

    @property
    def where(self) -> str:
        """Its place, as `file:line`."""
        return self.function.module.at(self.target)

    @property
    def at_start(self) -> bool:
        """Whether it is in an `__init__`."""
        return self.function.node.name == "__init__"


def assigned(tree: Tree, cls: ClassRef) -> dict[str, list[Assigned]]:
    """The attributes of an object by name: what its methods, own and inherited, assign to them.

    An `__init__` counts if it runs, that is if the class has it or the chain of `super().__init__` calls gets to it.
    """
    line = lineage(tree, cls)
    starting = [one.node for one in _starting(tree, line)]
    found: dict[str, list[Assigned]] = {}
    for one in line.classes:
        for method in methods(one):
            if method.node.name != "__init__" or method.node in starting:
                for item in _assigned_in(method):
                    found.setdefault(item.name, []).append(item)
    return found


def _assigned_in(method: FunctionRef) -> Iterator[Assigned]:
    for statement in flat(method.node.body):
        for target, value in assignments(statement):
            if isinstance(target, ast.Attribute) and is_name(target.value, method.me):
                yield Assigned(target.attr, value, target, method)
        node = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(node, ast.Call) and is_name(node.func, "setattr") and len(node.args) == 3:
            owner, name, value = node.args
            if is_name(owner, method.me) and isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield Assigned(name.value, value, node, method)


def _starting(tree: Tree, line: Lineage) -> Iterator[FunctionRef]:
    """Every `__init__` that runs when the object is made."""
    pending = [line.method("__init__")]
    seen: list[ast.AST] = []
    while pending:
        method = pending.pop()
        if method is None or method.node in seen:
            continue
        seen.append(method.node)
        yield method
        for node in inside(method.node):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__":
                if is_super(node.func.value):
                    pending.append(line.method("__init__", after=method.owner))
                else:
                    bases = tree.meaning(node.func.value, method.module, method)
                    named = (lineage(tree, one).method("__init__") for one in bases if isinstance(one, ClassRef))
                    pending.extend(named)


def is_super(node: ast.expr) -> bool:
    """Whether an expression is `super()` or `super(C, self)`."""
    return isinstance(node, ast.Call) and is_name(node.func, "super")


def values(tree: Tree, cls: ClassRef, items: list[Assigned], below: str = "") -> list[Held | Unclear]:
    """What the assignments to one attribute can put there; None is left out.

    With `below`, a dotted package, classes from elsewhere are Unclear, and their files are not read.
    """
    search = _Values(tree, lineage(tree, cls), below)
    found = [value for item in items for value in search.of(item.value, item.function, item.where, ())]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class _Values:
    """The search for the classes whose instances an expression can give, in methods of one object."""

    tree: Tree
    line: Lineage
    below: str

    def of(
        self, node: ast.expr | None, function: FunctionRef, where: str, trail: tuple[ast.AST, ...]
    ) -> Iterator[Held | Unclear]:
        """The instances that an expression in a method can give."""
        if node is None or node in trail:
            yield Unclear("it is assigned by unpacking or in a loop" if node is None else "it depends on itself", where)
        elif isinstance(node, ast.Constant) and node.value is None:
            return
        elif isinstance(node, ast.IfExp):
            yield from self.of(node.body, function, where, trail)
            yield from self.of(node.orelse, function, where, trail)
        elif isinstance(node, ast.Name) and (items := local(function, node.id)):
            for item in items:
                yield from self.of(item, function, where, (*trail, node))
        elif isinstance(node, ast.Call):
            yield from self._made(node, function, where, (*trail, node))
        else:
            yield Unclear(f"{shown(node)} is not the making of a class of this tree", where)

    def _made(
        self, call: ast.Call, function: FunctionRef, where: str, trail: tuple[ast.AST, ...]
    ) -> Iterator[Held | Unclear]:
        """The instances that a call can give: of a class, or of what a method of this object returns."""
        own = own_name(call.func, function)
        method = self.line.method(own) if own else None
        if method is None:
            for one in self._classes(call.func, function.module, function, ()):
                yield Held(one, where) if isinstance(one, ClassRef) else Unclear(one, where)
            return
        returned = [node.value for node in inside(method.node) if isinstance(node, ast.Return)]
        for value in returned:
            yield from self.of(value, method, where, trail)
        if not returned:
            yield Unclear(f"{shown(call.func)} returns nothing ({method.where})", where)

    def _classes(
        self, node: ast.expr, module: Module, function: FunctionRef | None, trail: tuple[ast.AST, ...]
    ) -> Iterator[ClassRef | str]:
        """The classes that the callee of a call can be, or a sentence why that cannot be told."""
        deeper = (*trail, node)
        if node in trail:
            yield f"{shown(node)} depends on itself"
        elif isinstance(node, ast.IfExp):
            yield from self._classes(node.body, module, function, deeper)
            yield from self._classes(node.orelse, module, function, deeper)
        elif function and isinstance(node, ast.Name) and (items := local(function, node.id)):
            for item in items:
                yield from self._classes(item, module, function, deeper) if item else [f"{node.id} is unpacked"]
        elif function and isinstance(node, ast.Name) and node.id in _parameters(function):
            yield f"{node.id} is a parameter of {function.node.name}, so the caller chooses the class"
        elif function and (own := own_name(node, function)):
            yield from self._class_attribute(own, deeper)
        elif self.below and not self.tree.can_be_below(node, module, function, self.below):
            yield f"{shown(node)} is not from sglang.{self.below}"
        else:
            for one in self.tree.meaning(node, module, function):
                yield one if isinstance(one, ClassRef) else _why_not(node, one)

    def _class_attribute(self, name: str, trail: tuple[ast.AST, ...]) -> Iterator[ClassRef | str]:
        """The classes that `self.<name>` can be, where the class's body assigns it."""
        member = self.line.find(name)
        pairs = assignments(member.node) if member else ()
        found = [value for target, value in pairs if isinstance(target, ast.Name) and target.id == name]
        if member is None or not found:
            yield f"self.{name} is not set in the body of a class of this tree"
            return
        for value in found:
            yield from self._classes(value, member.owner.module, None, trail) if value else [f"self.{name} is unpacked"]


def local(function: FunctionRef, name: str) -> list[ast.expr | None]:
    """What a function assigns to a local name; None for what cannot be told apart (loops, unpacking)."""
    return function.module.locals(function.node).get(name, [])


def own_name(node: ast.AST, function: FunctionRef) -> str:
    """The `name` of an expression `self.name` in a method, "" for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) and is_name(node.value, function.me) else ""


def is_name(node: ast.AST, name: str) -> bool:
    """Whether an expression is just this name."""
    return isinstance(node, ast.Name) and node.id == name


def _parameters(function: FunctionRef) -> set[str]:
    arguments = function.node.args
    return {one.arg for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}


def _why_not(node: ast.expr, meaning: Meaning) -> str:
    if isinstance(meaning, FunctionRef):
        return f"{shown(node)} is a function ({meaning.where}), and what it makes cannot be told"
    if isinstance(meaning, Outside):
        return f"{meaning.name} is not part of SGLang"
    return f"{shown(node)} is not a class that can be found in this tree"
