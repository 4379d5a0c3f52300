"""The verdict on one wrapper class: can the three EAGLE-3 methods be added to it by delegation?"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from patcher.wrappers.classes import Lineage, language_model, lineage
from patcher.wrappers.flow import Lost, through
from patcher.wrappers.holding import Assigned, Held, Unclear, assigned, values
from patcher.wrappers.inner import METHODS, SET, shortcoming
from patcher.wrappers.modules import ClassRef, FunctionRef
from patcher.wrappers.tree import Tree

Attributes: TypeAlias = Mapping[str, list[Assigned]]
Values: TypeAlias = Sequence[Held | Unclear]

# The attributes that SGLang's wrappers hold their model in, the more telling names first (0.4.4 to 0.5.23).
_USUAL = ("language_model", "llm", "thinker", "text_model", "model")


class Verdict(str, Enum):
    """Whether the three methods can be added to a wrapper by delegation."""

    FITS = "fits"
    UPSTREAM = "upstream"
    PARTIAL = "partial"
    UNFIT = "unfit"

    __str__ = str.__str__


@dataclass(frozen=True)
class Wrapper:
    """A class that holds a causal language model, and what was proved about it.

    `file` is relative to the `sglang` package and `line` counts from 1. `inner` is the attribute that holds the model,
    `inner_classes` the classes that it can be of, as (name, file). `has` are those of the three methods that the class
    has already, its own or inherited. `reason` is one sentence with its evidence as file:line.
    """

    file: str
    class_name: str
    line: int
    verdict: Verdict
    reason: str
    has: tuple[str, ...] = ()
    inner: str | None = None
    inner_classes: tuple[tuple[str, str], ...] = ()

    @property
    def inner_class(self) -> str | None:
        """The inner class's name; several are joined by " or "; None where it cannot be told."""
        return " or ".join(name for name, _ in self.inner_classes) or None

    @property
    def inner_file(self) -> str | None:
        """The file of the inner class, joined as the names are."""
        return " or ".join(dict.fromkeys(file for _, file in self.inner_classes)) or None

    @property
    def stem(self) -> str:
        """The file's name without its ending, by which a user may call the wrapper."""
        return self.file.rpartition("/")[2].removesuffix(".py")


def holds_language_model(tree: Tree, cls: ClassRef) -> bool:
    """Whether an attribute of the class is given a whole language model, its output head included.

    A class that hands on every name that it does not have (MiniCPMV) is taken to hold one.
    """
    return lineage(tree, cls).find("__getattr__") is not None or any(
        _is_model(tree, cls, items) for items in assigned(tree, cls).values()
    )


def judge(tree: Tree, cls: ClassRef) -> Wrapper:
    """What can be proved about one class."""
    line = lineage(tree, cls)
    items = assigned(tree, cls)
    inner = _inner(tree, cls, line, items)
    found = values(tree, cls, items.get(inner, [])) if inner else []
    verdict, reason = _already(line) or _fits(tree, cls, items, inner, found)
    return Wrapper(
        cls.module.path,
        cls.name,
        cls.node.lineno,
        verdict,
        reason,
        tuple(name for name in METHODS if line.find(name)),
        inner,
        tuple(dict.fromkeys((one.cls.name, one.cls.module.path) for one in found if isinstance(one, Held))),
    )


def _already(line: Lineage) -> tuple[Verdict, str] | None:
    """The verdict on a class that has some of the methods, or hands on every name that it does not have."""
    has = {name: member for name in METHODS if (member := line.find(name))}
    lacks = [name for name in METHODS if name not in has]
    listed = ", ".join(f"{name} ({member.where})" for name, member in has.items())
    if not lacks:
        return Verdict.UPSTREAM, f"it has all three methods: {listed}"
    for name in ("__getattr__", "__getattribute__", "__call__"):
        if dynamic := line.find(name):
            return Verdict.UNFIT, f"its {name} ({dynamic.where}) decides only when it runs, so nothing can be proved"
    if has:
        aside = ", which EAGLE-3 calls on the draft model only" if lacks == [SET] else ""
        return Verdict.PARTIAL, f"it has {listed}, but no {', no '.join(lacks)}{aside}"
    if line.unknown:
        return Verdict.UNFIT, f"its base {line.unknown[0]} cannot be found in this tree"
    return None


def _fits(tree: Tree, cls: ClassRef, items: Attributes, inner: str | None, found: Values) -> tuple[Verdict, str]:
    """The verdict on a class that has none of the methods."""
    if inner is None:
        return Verdict.UNFIT, _why_no_inner(tree, cls, items)
    if unclear := next((one for one in found if isinstance(one, Unclear)), None):
        return Verdict.UNFIT, f"cannot tell which class self.{inner} is of: {unclear.what} ({unclear.where})"
    held = list({one.cls: one for one in found if isinstance(one, Held)}.values())
    early = values(tree, cls, [item for item in items[inner] if item.at_start])
    if not any(isinstance(one, Held) for one in early):
        return Verdict.UNFIT, f"self.{inner} is not made when {cls.name} is ({items[inner][-1].where})"
    for one in held:
        if (short := shortcoming(tree, one.cls)) is not None:
            body = "" if language_model(tree, one.cls) else ", a body without its output head"
            return Verdict.UNFIT, f"self.{inner} {'is' if len(held) == 1 else 'can be'} {_made(one)}{body}, but {short}"
    proof = through(tree, cls, inner, items.get("forward", []))
    if isinstance(proof, Lost):
        return Verdict.UNFIT, _why_lost(lineage(tree, cls), inner, held[0], proof)
    classes = " or ".join(_made(one) for one in held)
    which = "which has all three methods" if len(held) == 1 else "which all have the three methods"
    return Verdict.FITS, f"self.{inner} is {classes}, {which}, and forward goes through it ({proof.where})"


def _made(held: Held) -> str:
    return f"{held.cls.name} ({held.where})"


def _why_lost(line: Lineage, inner: str, held: Held, proof: Lost) -> str:
    """Why the hidden states do not come out of a wrapper, naming the bypass where there is one."""
    forward = line.method("forward")
    for node in forward.nodes if forward else ():
        if not (forward and isinstance(node, ast.Attribute) and node.attr == "model"):
            continue
        if forward.own(node.value) == inner:
            return (
                f"forward runs self.{inner}.model ({forward.module.at(node)}), past the forward of {held.cls.name},"
                f" which alone returns the hidden states; {proof.what} ({proof.where})"
            )
    return f"forward does not return what {held.cls.name} in self.{inner} returned: {proof.what} ({proof.where})"


def _why_no_inner(tree: Tree, cls: ClassRef, items: Attributes) -> str:
    several = [name for name, assignments in items.items() if _is_model(tree, cls, assignments)]
    if several:
        return f"it holds more than one language model ({', '.join(several)}), and forward does not say which counts"
    return f"it holds no language model that can be found in this tree ({cls.where})"


def _is_model(tree: Tree, cls: ClassRef, items: list[Assigned]) -> bool:
    found = values(tree, cls, items, below="srt.models")
    return any(isinstance(one, Held) and language_model(tree, one.cls) for one in found)


def _inner(tree: Tree, cls: ClassRef, line: Lineage, items: Attributes) -> str | None:
    """The attribute that holds the language model, or the body that forward runs where there is no whole model."""
    whole = [name for name, assignments in items.items() if _is_model(tree, cls, assignments)]
    run = _run_by(line, items)
    if whole:
        meant = [name for name in whole if len(whole) == 1 or name in run]
        return meant[0] if len(meant) == 1 else None
    return next((name for name in [*run, *_USUAL] if name in items), None)


def _run_by(line: Lineage, items: Attributes) -> list[str]:
    """The attributes that forward runs as its model: handed on as `language_model`, or called under a usual name."""
    forward = line.method("forward")
    given: list[str] = []
    called = [_head(one.value, one.function) for one in items.get("forward", []) if one.value is not None]
    for node in forward.nodes if forward else ():
        if forward and isinstance(node, ast.Call):
            given += [_head(one.value, forward) for one in node.keywords if one.arg == "language_model"]
            called.append(_head(node.func, forward))
    return [name for name in dict.fromkeys([*given, *(one for one in called if one in _USUAL)]) if name]


def _head(node: ast.expr, function: FunctionRef) -> str:
    """The `name` of an expression `self.name`, `self.name.model` or `self.name.forward`, "" for any other."""
    if isinstance(node, ast.Attribute) and node.attr in ("model", "forward") and function.own(node.value):
        return function.own(node.value)
    return function.own(node)
