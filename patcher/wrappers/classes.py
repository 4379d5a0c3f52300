"""What a class of the tree has: its own members and those of its bases, across files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from patcher.wrappers.modules import ClassRef, FunctionRef
from patcher.wrappers.statements import Function, assignments, flat, is_super, shown
from patcher.wrappers.tree import Outside, Tree


@dataclass(frozen=True)
class Member:
    """Something that a class defines under a name: a method, or whatever was assigned."""

    owner: ClassRef
    node: ast.AST

    @property
    def where(self) -> str:
        """Its place, as `file:line`."""
        return self.owner.module.at(self.node)

    @property
    def method(self) -> FunctionRef | None:
        """It as a method, if it is one."""
        if isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return FunctionRef(self.owner.module, self.node, self.owner)
        return None


@dataclass(frozen=True)
class Lineage:
    """A class and its bases in the order of attribute lookup, and the bases that cannot be found in the tree.

    Bases from other distributions (`nn.Module`) are in neither: they are taken to define nothing that matters here.
    """

    classes: tuple[ClassRef, ...]
    unknown: tuple[str, ...]

    def find(self, name: str, *, after: ClassRef | None = None) -> Member | None:
        """The member that a lookup of `name` gives, or that `super()` gives in a method of `after`."""
        start = self.classes.index(after) + 1 if after in self.classes else 0
        return next((found for one in self.classes[start:] if (found := members(one).get(name))), None)

    def method(self, name: str, *, after: ClassRef | None = None) -> FunctionRef | None:
        """Like `find`, for what is a method."""
        member = self.find(name, after=after)
        return member.method if member else None


def lineage(tree: Tree, cls: ClassRef) -> Lineage:
    """The bases of a class through the files of the tree.

    Depth first, each class where it comes last: that is Python's order, bar hierarchies with crossing bases.
    """
    order: list[ClassRef] = []
    unknown: list[str] = []
    _climb(tree, cls, (), order, unknown)
    last = {one: place for place, one in enumerate(order)}
    kept = [one for place, one in enumerate(order) if last[one] == place]
    return Lineage(tuple(kept), tuple(dict.fromkeys(unknown)))


def _climb(tree: Tree, cls: ClassRef, trail: tuple[ClassRef, ...], order: list[ClassRef], unknown: list[str]) -> None:
    order.append(cls)
    for base in cls.node.bases:
        expression = base.value if isinstance(base, ast.Subscript) else base
        meanings = tree.meaning(expression, cls.module)
        only = meanings[0] if len(meanings) == 1 else None
        if isinstance(only, ClassRef) and only not in (*trail, cls):
            _climb(tree, only, (*trail, cls), order, unknown)
        elif not meanings or not all(isinstance(one, Outside) for one in meanings):
            unknown.append(f"{shown(base)} ({cls.module.at(base)})")


def members(cls: ClassRef) -> dict[str, Member]:
    """What a class itself defines, the later definition winning; assignments to it from its module included."""
    found: dict[str, Member] = {}
    for statement in flat(cls.node.body):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[statement.name] = Member(cls, statement)
        else:
            for target, _ in assignments(statement):
                if isinstance(target, ast.Name):
                    found[target.id] = Member(cls, statement)
    for owner, name, statement in cls.module.patched:
        if owner == cls.name:
            found[name] = Member(cls, statement)
    return found


def methods(cls: ClassRef) -> list[FunctionRef]:
    """The methods that a class itself defines."""
    return [method for member in members(cls).values() if (method := member.method)]


def reached(tree: Tree, line: Lineage, start: Iterable[FunctionRef | None]) -> Iterator[FunctionRef]:
    """Methods, and the methods of the same object that they call: `self.m()`, `super().m()`, `Base.m(self)`."""
    pending = list(start)
    seen: set[Function] = set()
    while pending:
        method = pending.pop()
        if method is None or method.node in seen:
            continue
        seen.add(method.node)
        yield method
        calls = [node.func for node in method.nodes if isinstance(node, ast.Call)]
        pending += [_called(tree, line, method, one) for one in calls if isinstance(one, ast.Attribute)]


def _called(tree: Tree, line: Lineage, method: FunctionRef, callee: ast.Attribute) -> FunctionRef | None:
    if method.own(callee):
        return line.method(callee.attr)
    if is_super(callee.value):
        return line.method(callee.attr, after=method.owner)
    if callee.attr == "__init__":
        bases = tree.meaning(callee.value, method.module, method)
        return next((lineage(tree, one).method("__init__") for one in bases if isinstance(one, ClassRef)), None)
    return None


def accepts(function: Function, count: int) -> bool:
    """Whether a method can be called with so many positional arguments besides its object."""
    arguments = function.args
    positional = len(arguments.posonlyargs) + len(arguments.args) - 1
    needed = positional - len(arguments.defaults)
    optional = all(default is not None for default in arguments.kw_defaults)
    return needed <= count and (count <= positional or arguments.vararg is not None) and optional


def is_stub(function: Function) -> bool:
    """Whether a function does nothing, or only raises."""
    body = [one for one in function.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    return all(isinstance(one, ast.Pass | ast.Raise) for one in body)


MODEL_NAME = re.compile(r"\b\w*(?:Causal\w*LM|ForConditionalGeneration|LMHeadModel)\w*")


def language_model(tree: Tree, cls: ClassRef) -> bool:
    """Whether a class is a whole language model, output head included, rather than a layer or a body of one.

    SGLang follows Hugging Face's names; a class with another name counts if its file offers it (`EntryClass`) and it
    builds a logits processor.
    """
    if MODEL_NAME.fullmatch(cls.name):
        return True
    if cls.name not in cls.module.entry_names():
        return False
    starting = [members(one).get("__init__") for one in lineage(tree, cls).classes]
    nodes = [node for member in starting if member and (method := member.method) for node in method.nodes]
    targets = [target for node in nodes for target, _ in assignments(node)]
    return any(isinstance(target, ast.Attribute) and target.attr == "logits_processor" for target in targets)
