"""What a class of the tree has: its own members and those of its bases, across files."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from patcher.wrappers.statements import Function, assignments, flat, shown
from patcher.wrappers.tree import ClassRef, FunctionRef, Outside, Tree


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

    Depth first, each class where it comes last: Python's own order wherever the classes of SGLang have one.
    """
    order: list[ClassRef] = []
    unknown: list[str] = []
    _climb(tree, cls, (), order, unknown)
    last = {id(one): place for place, one in enumerate(order)}
    return Lineage(
        tuple(one for place, one in enumerate(order) if last[id(one)] == place), tuple(dict.fromkeys(unknown))
    )


def _climb(tree: Tree, cls: ClassRef, trail: tuple[ClassRef, ...], order: list[ClassRef], unknown: list[str]) -> None:
    order.append(cls)
    for base in cls.node.bases:
        expression = base.value if isinstance(base, ast.Subscript) else base
        meanings = tree.meaning(expression, cls.module)
        found = [one for one in meanings if isinstance(one, ClassRef)]
        if len(meanings) == 1 and len(found) == 1 and found[0] not in (*trail, cls):
            _climb(tree, found[0], (*trail, cls), order, unknown)
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
    return cls.name in cls.module.entry_names() and any(
        isinstance(target, ast.Attribute) and target.attr == "logits_processor"
        for one in lineage(tree, cls).classes
        if (method := members(one).get("__init__"))
        for node in ast.walk(method.node)
        for target, _ in assignments(node)
    )
