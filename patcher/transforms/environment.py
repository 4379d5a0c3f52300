"""Insert a block of environment defaults into a function, after the settings that it makes itself.

The place is found by structure: behind the last statement of the function's own level that sets a variable of the given
prefixes, and before a call that the block must precede.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import libcst as cst

from patcher.patch import Finding, Outcome, Rewritten, State
from patcher.source import Source
from patcher.transforms.syntax import (
    Found,
    definitions,
    dotted,
    line_of,
    module_names,
    parse_statements,
    replace_body,
    walk,
    walk_here,
)
from patcher.transforms.writes import environ_names, writes

# The block's source, given how the module names the environment (`os.environ`) and the settings object (or None).
Block: TypeAlias = Callable[[str, str | None], str]


@dataclass(frozen=True)
class Defaults:
    """What to insert where.

    `function` is the function's name and `before_call` a call that must come later. The block goes behind the last
    statement that sets a variable of `prefixes`. `flags` are attributes by which the settings object is recognised.
    `values` are the variables with the values that the block sets: a function that sets all of them alike is upstream,
    one that sets some is partial.
    """

    function: str
    prefixes: tuple[str, ...]
    before_call: str
    flags: Sequence[str]
    values: Collection[tuple[str, str]]
    block: Block


def insert_defaults(source: Source, defaults: Defaults) -> Outcome:
    """Insert a block into a function of the source, or say why there is no certain place for it."""
    module, name = source.module, defaults.function
    found = [one for one in definitions(module, name) if isinstance(one.node, cst.FunctionDef)]
    if not found:
        return Finding(State.ABSENT, f"this SGLang has no function {name} in {source.path}")
    if len(found) > 1:
        lines = ", ".join(str(line_of(module, one.node)) for one in found)
        return Finding(
            State.CONFLICT,
            f"{name} is defined {len(found)} times, and which one counts is not certain",
            line=line_of(module, found[-1].node),
            expected=f"one function {name}",
            found=f"definitions at lines {lines}",
        )
    node = cst.ensure_type(found[0].node, cst.FunctionDef)
    environ = environ_names(module, node)
    return (
        _already(module, node, environ, dict(defaults.values))
        or _unusable(module, node, environ)
        or _inserted(source, found[0], environ, defaults)
    )


def _already(
    module: cst.Module, node: cst.FunctionDef, environ: frozenset[str], values: dict[str, str]
) -> Finding | None:
    """Whether the function sets the variables itself: upstream if all and alike, partial if some or otherwise."""
    name = node.name.value
    own = [write for write in writes(node.body, environ) if write.name in values]
    if not own:
        return None
    alike = {write.name for write in own if write.default and write.value == values[write.name]}
    line = line_of(module, own[0].node)
    if {write.name for write in own} == alike == set(values):
        return Finding(State.UPSTREAM, f"{name} sets all of these defaults itself, from line {line}", line=line)
    return Finding(
        State.PARTIAL,
        f"{name} sets {', '.join(sorted({write.name for write in own}))} already, and not by sglang-patch",
        line=line,
        expected=f"none of {', '.join(sorted(values))} is set in {name}",
        found=module.code_for_node(own[0].node).strip().splitlines()[0],
        hint="take these lines out by hand, or leave the patch away",
    )


def _unusable(module: cst.Module, node: cst.FunctionDef, environ: frozenset[str]) -> Finding | None:
    if not isinstance(node.body, cst.IndentedBlock):
        reason = f"{node.name.value} has its body on one line"
        return Finding(State.CONFLICT, reason, line_of(module, node), "an indented body", "a body behind the colon")
    if _spelled(module, environ) is None:
        reason = "the module does not import os, which the block uses"
        return Finding(State.CONFLICT, reason, 1, "import os, or from os import environ", "neither")
    return None


def _spelled(module: cst.Module, environ: frozenset[str]) -> str | None:
    """How the module's imports let the environment be written."""
    imported = module_names(module)
    return next((name for name in ("os.environ", *sorted(environ)) if name.partition(".")[0] in imported), None)


def _inserted(source: Source, found: Found, environ: frozenset[str], defaults: Defaults) -> Outcome:
    module, node = source.module, cst.ensure_type(found.node, cst.FunctionDef)
    body = list(cst.ensure_type(node.body, cst.IndentedBlock).body)
    settings = [n for n, one in enumerate(body) if _sets(one, environ, defaults.prefixes)]
    unsure = _no_place(module, node, body, settings, defaults)
    if unsure is not None:
        return unsure
    at = settings[-1] + 1
    block = defaults.block(
        _spelled(module, environ) or "os.environ", _settings_object(found, body[:at], defaults.flags)
    )
    new = [*body[:at], *parse_statements(module, block), *body[at:]]
    return Rewritten(source.with_module(replace_body(module, node, new)))


def _no_place(
    module: cst.Module,
    node: cst.FunctionDef,
    body: Sequence[cst.CSTNode],
    settings: Sequence[int],
    defaults: Defaults,
) -> Finding | None:
    """Why there is no certain place for the block, or None."""
    name, names = node.name.value, " or ".join(f"{prefix}*" for prefix in defaults.prefixes)
    if not settings:
        return Finding(
            State.CONFLICT,
            f"{name} sets no {names} variable, after which the block would go",
            line=line_of(module, node),
            expected=f'os.environ["{defaults.prefixes[0]}..."] = ... in its body',
            found="none",
        )
    last = settings[-1]
    call = next((n for n, one in enumerate(body) if _calls(one, defaults.before_call)), None)
    if call is not None and call <= last:
        return Finding(
            State.CONFLICT,
            f"{name} calls {defaults.before_call} before it has set its last {names} variable",
            line=line_of(module, body[call]),
            expected=f"all settings before {defaults.before_call}",
            found=f"a setting at line {line_of(module, body[last])}",
        )
    leaving = [inner for one in body[: last + 1] for inner in walk_here(one) if isinstance(inner, cst.Return)]
    if leaving:
        return Finding(
            State.CONFLICT,
            f"{name} can return before the place of the block",
            line=line_of(module, leaving[0]),
            expected=f"no return before the last {names} setting at line {line_of(module, body[last])}",
            found="a return statement",
        )
    return None


def _sets(statement: cst.CSTNode, environ: frozenset[str], prefixes: tuple[str, ...]) -> bool:
    """Whether a statement, when it runs, can set a variable of these prefixes."""
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return False
    return any(write.name.startswith(prefixes) for write in writes(statement, environ))


def _calls(statement: cst.CSTNode, name: str) -> bool:
    called = [dotted(inner.func) or "" for inner in walk_here(statement) if isinstance(inner, cst.Call)]
    return any(one.rpartition(".")[2] == name for one in called)


def _settings_object(found: Found, before: Sequence[cst.CSTNode], flags: Sequence[str]) -> str | None:
    """The object that the function reads its flags from; else its first parameter."""
    node = cst.ensure_type(found.node, cst.FunctionDef)
    for statement in before:
        for inner in walk(statement):
            if isinstance(inner, cst.Attribute) and inner.attr.value in flags and dotted(inner.value):
                return dotted(inner.value)
    parameters = [parameter.name.value for parameter in (*node.params.posonly_params, *node.params.params)]
    bound = found.classes and not any(dotted(one.decorator) == "staticmethod" for one in node.decorators)
    return next(iter(parameters[1:] if bound else parameters), None)
