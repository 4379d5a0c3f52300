"""What the attributes of an object can hold: the classes of which its methods assign instances to them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from patcher.wrappers.classes import Lineage, lineage, methods, reached
from patcher.wrappers.modules import ClassRef, FunctionRef, Module
from patcher.wrappers.statements import assignments, is_name, is_none, parameters, shown
from patcher.wrappers.tree import Meaning, Outside, Tree


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
    """One assignment `self.name = value`; the value is None where it cannot be told apart (loops, unpacking).

    `at_start` says whether it is in an `__init__`, or in a method that one calls.
    """

    name: str
    value: ast.expr | None
    function: FunctionRef
    where: str
    at_start: bool


def assigned(tree: Tree, cls: ClassRef) -> dict[str, list[Assigned]]:
    """The attributes of an object by name: what its methods, own and inherited, assign to them.

    An `__init__` counts if it runs, that is if the class has it or a chain of calls gets to it.
    """
    line = lineage(tree, cls)
    starting = {one.node: one for one in reached(tree, line, [line.method("__init__")])}
    other = [one for owner in line.classes for one in methods(owner) if one.node not in starting]
    found: dict[str, list[Assigned]] = {}
    for method in [*starting.values(), *other]:
        if method.node.name != "__init__" or method.node in starting:
            for name, value, node in _assigned_in(method):
                item = Assigned(name, value, method, method.module.at(node), method.node in starting)
                found.setdefault(name, []).append(item)
    return found


def _assigned_in(method: FunctionRef) -> Iterator[tuple[str, ast.expr | None, ast.AST]]:
    for statement in method.statements:
        for target, value in assignments(statement):
            if name := method.own(target):
                yield name, value, target
        node = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(node, ast.Call) and is_name(node.func, "setattr") and len(node.args) == 3:
            owner, named, value = node.args
            if method.owner and is_name(owner, method.me) and isinstance(named, ast.Constant):
                yield str(named.value), value, node


def values(tree: Tree, cls: ClassRef, items: Sequence[Assigned], below: str = "") -> list[Held | Unclear]:
    """What the assignments to one attribute can put there; None is left out.

    With `below`, a dotted package, classes from elsewhere are Unclear, and their files are not read.
    """
    search = _Search(tree, lineage(tree, cls), below)
    found = [value for item in items for value in search.made_by(item.value, item.function, item.where, ())]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class _Search:
    """The search for the classes whose instances an expression can give, in methods of one object."""

    tree: Tree
    line: Lineage
    below: str

    def made_by(
        self, node: ast.expr | None, function: FunctionRef, where: str, trail: tuple[ast.AST, ...]
    ) -> Iterator[Held | Unclear]:
        """The instances that an expression in a method can give."""
        if node is None or node in trail:
            yield Unclear("it comes from a parameter, from unpacking or from a loop", where)
        elif is_none(node):
            return
        elif isinstance(node, ast.IfExp):
            yield from self.made_by(node.body, function, where, trail)
            yield from self.made_by(node.orelse, function, where, trail)
        elif isinstance(node, ast.Name) and (items := function.local(node.id)):
            for item in items:
                yield from self.made_by(item, function, where, (*trail, node))
        elif isinstance(node, ast.Call):
            yield from self._called(node, function, where, (*trail, node))
        else:
            yield Unclear(f"{shown(node)} is not the making of a class of this tree", where)

    def _called(
        self, call: ast.Call, function: FunctionRef, where: str, trail: tuple[ast.AST, ...]
    ) -> Iterator[Held | Unclear]:
        """The instances that a call can give: of a class, or of what a method of this object returns."""
        own = function.own(call.func)
        method = self.line.method(own) if own else None
        if method is None:
            for one in self._classes(call.func, function.module, function, ()):
                yield Held(one, where) if isinstance(one, ClassRef) else Unclear(one, where)
            return
        returned = [node.value for node in method.nodes if isinstance(node, ast.Return)]
        for value in returned:
            yield from self.made_by(value, method, where, trail)
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
        elif function and isinstance(node, ast.Name) and node.id in parameters(function.node):
            yield f"{node.id} is a parameter of {function.node.name}, so the caller chooses the class"
        elif function and isinstance(node, ast.Name) and (items := function.local(node.id)):
            for item in items:
                yield from self._classes(item, module, function, deeper) if item else [f"{node.id} is unpacked"]
        elif function and (own := function.own(node)):
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
        found = [value for target, value in pairs if is_name(target, name)]
        if member is None or not found:
            yield f"self.{name} is not set in the body of a class of this tree"
            return
        for value in found:
            yield from self._classes(value, member.owner.module, None, trail) if value else [f"self.{name} is unpacked"]


def _why_not(node: ast.expr, meaning: Meaning) -> str:
    if isinstance(meaning, FunctionRef):
        return f"{shown(node)} is a function ({meaning.where}), and what it makes cannot be told"
    if isinstance(meaning, Outside):
        return f"{meaning.name} is not part of SGLang"
    return f"{shown(node)} is not a class that can be found in this tree"
