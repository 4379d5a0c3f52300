"""Whether a wrapper's forward goes through its inner model's forward, and gives back what that returned.

EAGLE-3's hidden states travel in what a causal model's forward returns (`LogitsProcessorOutput.hidden_states`). A
wrapper that runs only the body of its inner model and computes the logits itself loses them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from patcher.wrappers.classes import lineage
from patcher.wrappers.holding import Assigned, is_name, is_super, local, own_name
from patcher.wrappers.statements import inside, shown
from patcher.wrappers.tree import ClassRef, FunctionRef, Tree


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
        """Whether an expression is the inner model."""
        if self.parameter and is_name(node, self.parameter):
            return True
        if self.attribute and own_name(node, self.function) == self.attribute:
            return True
        items = local(self.function, node.id) if isinstance(node, ast.Name) and node.id != self.parameter else []
        return bool(items) and all(
            item is not None and not isinstance(item, ast.Name) and self.is_inner(item) for item in items
        )


def through(tree: Tree, cls: ClassRef, attribute: str, forwards: list[Assigned]) -> Through | Lost:
    """Whether calling an object of this class calls what its attribute holds, and returns what that returned.

    `forwards` are the assignments `self.forward = ...`, which win over the class's method.
    """
    for one in forwards:
        value = one.value
        passed = isinstance(value, ast.Attribute) and value.attr == "forward"
        if not (passed and isinstance(value, ast.Attribute) and own_name(value.value, one.function) == attribute):
            return Lost(f"self.forward is set to {shown(value) if value else 'something unpacked'}", one.where)
    if forwards:
        return Through(forwards[0].where)
    method = lineage(tree, cls).method("forward")
    if method is None:
        return Lost("it has no forward in this tree", cls.where)
    return _returns(_Frame(tree, cls, method, attribute))


def _returns(frame: _Frame) -> Through | Lost:
    """Whether everything that a function returns, None aside, is what the inner model returned."""
    node = frame.function.node
    if node in frame.trail:
        return Lost(f"{node.name} calls itself", frame.at(node))
    if frame.parameter and local(frame.function, frame.parameter):
        return Lost(f"{node.name} replaces {frame.parameter}", frame.at(node))
    frame = replace(frame, trail=(*frame.trail, node))
    values = [one.value for one in inside(node) if isinstance(one, ast.Return) and one.value is not None]
    return _all(frame, [one for one in values if not _is_none(one)]) or Lost("forward returns nothing", frame.at(node))


def _all(frame: _Frame, values: list[ast.expr]) -> Through | Lost | None:
    """The first loss among the values, else the first proof; None for no values."""
    found = [_value(frame, value) for value in values]
    return next((one for one in found if isinstance(one, Lost)), found[0] if found else None)


def _value(frame: _Frame, node: ast.expr) -> Through | Lost:
    """Whether an expression is what the inner model's forward returned."""
    if isinstance(node, ast.IfExp):
        return _all(frame, [node.body, node.orelse]) or Lost(shown(node), frame.at(node))
    if isinstance(node, ast.Name) and node not in frame.trail:
        items = local(frame.function, node.id)
        values = [item for item in items if item is not None and not _is_none(item)]
        if values and None not in items:
            return _all(replace(frame, trail=(*frame.trail, node)), values) or Lost(shown(node), frame.at(node))
    if isinstance(node, ast.Call):
        return _call(frame, node)
    return Lost(f"forward returns {shown(node)}", frame.at(node))


def _call(frame: _Frame, call: ast.Call) -> Through | Lost:
    """Whether a call is one of the inner model, directly or in the function or method that is called."""
    callee = call.func
    if frame.is_inner(callee):
        return Through(frame.at(call))
    if isinstance(callee, ast.Attribute):
        if callee.attr == "forward" and frame.is_inner(callee.value):
            return Through(frame.at(call))
        line = lineage(frame.tree, frame.cls)
        own = own_name(callee, frame.function)
        method = line.method(own) if own else None
        if is_super(callee.value):
            method = line.method(callee.attr, after=frame.function.owner)
        if method is not None and frame.attribute:
            return _returns(replace(frame, function=method))
    return _handed(frame, call) or Lost(f"forward returns {shown(callee)}(...)", frame.at(call))


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
            proof = _returns(replace(frame, function=one, attribute="", parameter=parameter))
            if isinstance(proof, Lost):
                return Lost(f"{shown(call.func)} does not return what {parameter} returned ({proof.what})", proof.where)
        return Through(frame.at(call)) if functions else None
    return None


def _parameter(function: ast.FunctionDef | ast.AsyncFunctionDef, place: int | str | None) -> str | None:
    """The parameter that an argument at a position, or with a keyword, goes to."""
    positional = [one.arg for one in [*function.args.posonlyargs, *function.args.args]]
    if isinstance(place, int):
        return positional[place] if place < len(positional) else None
    names = [*positional, *(one.arg for one in function.args.kwonlyargs)]
    return place if place in names else None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
