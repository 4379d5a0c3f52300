"""Whether a wrapper's forward goes through its inner model's forward, and gives back what that returned.

EAGLE-3's hidden states travel in what a causal model's forward returns (`LogitsProcessorOutput.hidden_states`). A
wrapper that runs only the body of its inner model and computes the logits itself loses them.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from patcher.wrappers.classes import lineage
from patcher.wrappers.holding import Assigned
from patcher.wrappers.modules import ClassRef, FunctionRef
from patcher.wrappers.statements import Function, is_name, is_none, is_super, parameters, shown
from patcher.wrappers.tree import Outside, Tree


@dataclass(frozen=True)
class Through:
    """It goes through; `where` is the call that reaches the inner model."""

    where: str


@dataclass(frozen=True)
class Lost:
    """It does not, or that cannot be shown; `what` is what is done instead."""

    what: str
    where: str


@dataclass(frozen=True)
class _Frame:
    """A function in which the inner model is known as `self.<attribute>`, or by the name of a parameter."""

    tree: Tree
    cls: ClassRef
    function: FunctionRef
    attribute: str = ""
    parameter: str = ""
    trail: tuple[ast.AST, ...] = ()

    def at(self, node: ast.AST) -> str:
        return self.function.module.at(node)

    def is_inner(self, node: ast.expr) -> bool:
        """Whether an expression is the inner model: the attribute, the parameter, or a local name for it."""
        if self.parameter:
            return is_name(node, self.parameter)
        items = self.function.local(node.id) if isinstance(node, ast.Name) else [node]
        return bool(items) and all(item is not None and self.function.own(item) == self.attribute for item in items)


def through(tree: Tree, cls: ClassRef, attribute: str, forwards: Sequence[Assigned]) -> Through | Lost:
    """Whether calling an object of this class calls what its attribute holds, and returns what that returned.

    `forwards` are the assignments `self.forward = ...`, which win over the class's method (Qwen3-Omni).
    """
    for one in forwards:
        value = one.value
        if not (
            isinstance(value, ast.Attribute) and value.attr == "forward" and one.function.own(value.value) == attribute
        ):
            return Lost(f"self.forward is set to {shown(value) if value else 'something unpacked'}", one.where)
    if forwards:
        return Through(forwards[0].where)
    method = lineage(tree, cls).method("forward")
    if method is None:
        return Lost("it has no forward in this tree", cls.where)
    return _returned(_Frame(tree, cls, method, attribute))


def _returned(frame: _Frame) -> Through | Lost:
    """Whether everything that a function returns, None aside, is what the inner model returned."""
    node = frame.function.node
    if node in frame.trail:
        return Lost(f"{node.name} calls itself", frame.at(node))
    if frame.parameter and frame.function.local(frame.parameter) != [None]:
        return Lost(f"{node.name} replaces {frame.parameter}", frame.at(node))
    for decorator in node.decorator_list:
        callee = decorator.func if isinstance(decorator, ast.Call) else decorator
        if not all(isinstance(one, Outside) for one in frame.tree.meaning(callee, frame.function.module)):
            return Lost(f"{node.name} is decorated with {shown(decorator)}", frame.at(decorator))
    frame = replace(frame, trail=(*frame.trail, node))
    values = [one.value for one in frame.function.nodes if isinstance(one, ast.Return) and one.value is not None]
    return _all(frame, values) or Lost(f"{node.name} returns nothing", frame.at(node))


def _all(frame: _Frame, values: Sequence[ast.expr]) -> Through | Lost | None:
    """The first loss among the values that are not None, else the first proof; None for no values."""
    found = [_value(frame, value) for value in values if not is_none(value)]
    return next((one for one in found if isinstance(one, Lost)), found[0] if found else None)


def _value(frame: _Frame, node: ast.expr) -> Through | Lost:
    """Whether an expression is what the inner model's forward returned."""
    lost = Lost(f"{frame.function.node.name} returns {shown(node)}", frame.at(node))
    if isinstance(node, ast.IfExp):
        return _all(frame, [node.body, node.orelse]) or lost
    if isinstance(node, ast.Name) and node not in frame.trail:
        items = frame.function.local(node.id)
        values = [item for item in items if item is not None]
        if len(values) == len(items):
            return _all(replace(frame, trail=(*frame.trail, node)), values) or lost
    return _call(frame, node) if isinstance(node, ast.Call) else lost


def _call(frame: _Frame, call: ast.Call) -> Through | Lost:
    """Whether a call is one of the inner model, directly or in the function or method that is called."""
    callee = call.func
    if frame.is_inner(callee):
        return Through(frame.at(call))
    if isinstance(callee, ast.Attribute):
        if callee.attr == "forward" and frame.is_inner(callee.value):
            return Through(frame.at(call))
        line = lineage(frame.tree, frame.cls)
        method = line.method(callee.attr) if frame.function.own(callee) else None
        if is_super(callee.value):
            method = line.method(callee.attr, after=frame.function.owner)
        if method is not None:
            return _returned(replace(frame, function=method))
    name = frame.function.node.name
    return _handed(frame, call) or Lost(f"{name} returns {shown(callee)}(...)", frame.at(call))


def _handed(frame: _Frame, call: ast.Call) -> Through | Lost | None:
    """Whether a function of the tree that gets the inner model as an argument calls it and returns what it returned."""
    for place, argument in [*enumerate(call.args), *((one.arg, one.value) for one in call.keywords)]:
        if not frame.is_inner(argument):
            continue
        functions = frame.tree.meaning(call.func, frame.function.module, frame.function)
        for one in functions:
            parameter = _parameter(one.node, place) if isinstance(one, FunctionRef) else None
            if not isinstance(one, FunctionRef) or parameter is None:
                return Lost(f"{shown(argument)} goes to {shown(call.func)}, which cannot be followed", frame.at(call))
            proof = _returned(replace(frame, function=one, attribute="", parameter=parameter))
            if isinstance(proof, Lost):
                return Lost(f"{shown(call.func)} does not return what {parameter} returned ({proof.what})", proof.where)
        return Through(frame.at(call)) if functions else None
    return None


def _parameter(function: Function, place: int | str | None) -> str | None:
    """The parameter that an argument at a position, or with a keyword, goes to."""
    named = parameters(function)
    if isinstance(place, int):
        return named[place] if place < len(function.args.posonlyargs) + len(function.args.args) else None
    rest = [one.arg for one in (function.args.vararg, function.args.kwarg) if one]
    return place if place in named and place not in rest else None
