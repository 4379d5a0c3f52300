"""Whether a language model's own class does what EAGLE-3 needs, so that delegating to it has the effect."""

from __future__ import annotations

import ast

from patcher.wrappers.classes import Lineage, accepts, is_stub, lineage, reached
from patcher.wrappers.holding import Held, assigned, values
from patcher.wrappers.modules import ClassRef, FunctionRef
from patcher.wrappers.statements import is_name
from patcher.wrappers.tree import Tree

SET_LAYERS, GET, SET = METHODS = ("set_eagle3_layers_to_capture", "get_embed_and_head", "set_embed_and_head")

# How many arguments a wrapper hands on with each (the patch's own signatures). Up to 0.4.8.post1,
# set_eagle3_layers_to_capture takes none, and cannot be handed the layers.
_ARGUMENTS = {SET_LAYERS: 1, GET: 0, SET: 2}


def shortcoming(tree: Tree, cls: ClassRef) -> str | None:
    """Why delegating the three methods to an instance of this class would not serve EAGLE-3, or None if it would."""
    line = lineage(tree, cls)
    named = f"{cls.name} ({cls.where})"
    found = {name: line.find(name) for name in METHODS}
    lacking = [name for name, member in found.items() if member is None]
    if lacking and line.unknown:
        return f"{named} has a base that cannot be found in this tree, {line.unknown[0]}"
    if lacking:
        return f"{named} has {'none of the three methods' if len(lacking) == 3 else 'no ' + ', no '.join(lacking)}"
    for name, member in found.items():
        method = member.method if member else None
        if member and (method is None or is_stub(method.node)):
            return f"{named} does not implement {name} ({member.where})"
        if method and not accepts(method.node, _ARGUMENTS[name]):
            return f"{name} of {named} does not take {_arguments(_ARGUMENTS[name])} ({method.where})"
    return _unreturned(tree, line, named) or _uncaptured(tree, cls, line)


def _arguments(count: int) -> str:
    return ["no argument", "the layers", "an embedding and a head"][count]


def _unreturned(tree: Tree, line: Lineage, named: str) -> str | None:
    """Why the captured states would not come out of forward, or None if they would.

    They do where forward reads `capture_aux_hidden_states`, or unpacks `aux_hidden_states` from what the body returned
    and hands them to the logits processor without asking (qwen3_5_text.py of 0.5.23).
    """
    forward = line.method("forward")
    if forward is None:
        return f"{named} has no forward in this tree"
    if any(_returns_states(one) for one in reached(tree, line, [forward])):
        return None
    return (
        f"forward of {named} never reads capture_aux_hidden_states ({forward.where}), so the states would be captured"
        " and not returned"
    )


def _returns_states(method: FunctionRef) -> bool:
    unpacked = None in method.local("aux_hidden_states")
    for node in method.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "capture_aux_hidden_states":
            if isinstance(node.ctx, ast.Load):
                return True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and unpacked:
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if node.func.attr == "logits_processor" and any(is_name(one, "aux_hidden_states") for one in given):
                return True
    return False


def _uncaptured(tree: Tree, cls: ClassRef, line: Lineage) -> str | None:
    """Why the body would not capture what it is told to, or None if it would or its class cannot be told.

    set_eagle3_layers_to_capture tells the body, `self.model`, by setting its `layers_to_capture` or by calling its
    method of the same name. A subclass that brings its own body can lack the reading side.
    """
    setter = line.method(SET_LAYERS)
    if setter is None:
        return None
    items = assigned(tree, cls)
    told = [
        one for one in setter.nodes if isinstance(one, ast.Attribute) and one.attr in ("layers_to_capture", SET_LAYERS)
    ]
    for node in told:
        body = setter.own(node.value)
        for held in values(tree, cls, items.get(body, [])):
            if isinstance(held, Held) and not _knows(tree, held.cls, node.attr):
                return (
                    f"{cls.name} tells self.{body} which layers to capture ({setter.module.at(node)}), but"
                    f" {held.cls.name} ({held.cls.where}) has no {node.attr}"
                )
    return None


def _knows(tree: Tree, cls: ClassRef, name: str) -> bool:
    """Whether a class defines a member of this name, or reads an attribute of it."""
    line = lineage(tree, cls)
    if line.unknown or line.find(name):
        return True
    nodes = [node for one in line.classes for node in ast.walk(one.node) if isinstance(node, ast.Attribute)]
    return any(node.attr == name and isinstance(node.ctx, ast.Load) for node in nodes)
