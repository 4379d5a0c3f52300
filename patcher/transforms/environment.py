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
    string_of,
    walk,
    walk_here,
)

# The block's source, given how the module names the environment (`os.environ`) and the settings object (or None).
Block: TypeAlias = Callable[[str, str | None], str]


@dataclass(frozen=True)
class Write:
    """One place where a function sets a variable: the value if it is a literal, whether only when unset."""

    name: str
    value: str | None
    default: bool
    node: cst.CSTNode


def insert_defaults(
    source: Source,
    *,
    function: str,
    prefixes: tuple[str, ...],
    before_call: str,
    flags: Sequence[str],
    defaults: Collection[tuple[str, str]],
    block: Block,
) -> Outcome:
    """Insert a block into `function`.

    `flags` are attributes by which the settings object is recognised. `defaults` are the variables with the values that
    the block sets: a function that has all of them already is upstream, one that has some is partial.
    """
    module = source.module
    found = [one for one in definitions(module, function) if isinstance(one.node, cst.FunctionDef)]
    if not found:
        return Finding(State.ABSENT, f"this SGLang has no function {function} in {source.path}")
    if len(found) > 1:
        lines = ", ".join(str(line_of(module, one.node)) for one in found)
        return Finding(
            State.CONFLICT,
            f"{function} is defined {len(found)} times, and which one counts is not certain",
            line=line_of(module, found[-1].node),
            expected=f"one function {function}",
            found=f"definitions at lines {lines}",
        )
    node = cst.ensure_type(found[0].node, cst.FunctionDef)
    return (
        _already(module, node, defaults)
        or _unusable(module, node)
        or _inserted(source, found[0], prefixes=prefixes, before_call=before_call, flags=flags, block=block)
    )


def writes(node: cst.CSTNode) -> list[Write]:
    """Every place below a node that sets an environment variable of a literal name."""
    found: list[Write] = []
    guards: list[str] = []

    def look(node: cst.CSTNode) -> None:
        guarded = _unset_guard(node) if isinstance(node, cst.If) else None
        found.extend(_writes_at(node, guards))
        if isinstance(node, cst.If):
            look(node.test)
            guards.extend(guarded or [])
            look(node.body)
            if guarded:
                del guards[-len(guarded) :]
            if node.orelse is not None:
                look(node.orelse)
            return
        for child in node.children:
            look(child)

    look(node)
    return found


def _is_environ(node: cst.CSTNode) -> bool:
    return dotted(node) in ("os.environ", "environ")


def _key(node: cst.CSTNode) -> str | None:
    """The variable of `os.environ["NAME"]`, or None."""
    if isinstance(node, cst.Subscript) and _is_environ(node.value) and len(node.slice) == 1:
        index = node.slice[0].slice
        return string_of(index.value) if isinstance(index, cst.Index) else None
    return None


def _writes_at(node: cst.CSTNode, guards: Sequence[str]) -> list[Write]:
    if isinstance(node, cst.Assign):
        keys = [key for target in node.targets if (key := _key(target.target))]
        return [Write(key, string_of(node.value), key in guards, node) for key in keys]
    if not isinstance(node, cst.Call):
        return []
    called, arguments = dotted(node.func), [argument.value for argument in node.args]
    if called in ("os.environ.setdefault", "environ.setdefault", "os.putenv") and len(arguments) == 2:
        key = string_of(arguments[0])
        return [Write(key, string_of(arguments[1]), called != "os.putenv", node)] if key else []
    if called in ("os.environ.update", "environ.update"):
        pairs = [element for argument in arguments if isinstance(argument, cst.Dict) for element in argument.elements]
        named = [
            Write(key, string_of(pair.value), False, node)
            for pair in pairs
            if isinstance(pair, cst.DictElement) and (key := string_of(pair.key))
        ]
        return named + [Write(arg.keyword.value, string_of(arg.value), False, node) for arg in node.args if arg.keyword]
    return []


def _unset_guard(node: cst.If) -> list[str]:
    """The variables whose absence the test of an `if` alone requires: `"NAME" not in os.environ`."""
    test = node.test
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        compared = test.comparisons[0]
        if isinstance(compared.operator, cst.NotIn) and _is_environ(compared.comparator):
            name = string_of(test.left)
            return [name] if name else []
    return []


def _already(module: cst.Module, node: cst.FunctionDef, defaults: Collection[tuple[str, str]]) -> Finding | None:
    """Whether the function sets the variables itself: upstream if all and alike, partial if some or otherwise."""
    wanted = dict(defaults)
    own = [write for write in writes(node.body) if write.name in wanted]
    if not own:
        return None
    alike = {write.name for write in own if write.default and write.value == wanted[write.name]}
    others = sorted({write.name for write in own} - alike)
    line = line_of(module, own[0].node)
    if alike == set(wanted) and not others:
        return Finding(
            State.UPSTREAM, f"{node.name.value} sets all of these defaults itself, from line {line}", line=line
        )
    there = ", ".join(sorted({write.name for write in own}))
    return Finding(
        State.PARTIAL,
        f"{node.name.value} sets {there} already, and not by sglang-patch",
        line=line,
        expected=f"none of {', '.join(sorted(wanted))} is set in {node.name.value}",
        found=module.code_for_node(own[0].node).strip().splitlines()[0],
        hint="take these lines out by hand, or leave the patch away",
    )


def _unusable(module: cst.Module, node: cst.FunctionDef) -> Finding | None:
    if not isinstance(node.body, cst.IndentedBlock):
        return Finding(
            State.CONFLICT,
            f"{node.name.value} has its body on one line",
            line=line_of(module, node),
            expected="an indented body",
        )
    if not {"os", "environ"} & module_names(module):
        return Finding(
            State.CONFLICT,
            "the module does not import os, which the block uses",
            line=1,
            expected="import os",
        )
    return None


def _inserted(
    source: Source,
    found: Found,
    *,
    prefixes: tuple[str, ...],
    before_call: str,
    flags: Sequence[str],
    block: Block,
) -> Outcome:
    module, node = source.module, cst.ensure_type(found.node, cst.FunctionDef)
    body = list(cst.ensure_type(node.body, cst.IndentedBlock).body)
    settings = [n for n, statement in enumerate(body) if _sets(statement, prefixes)]
    calls = [n for n, statement in enumerate(body) if _calls(statement, before_call)]
    names = " or ".join(f"{prefix}*" for prefix in prefixes)
    if not settings:
        return Finding(
            State.CONFLICT,
            f"{node.name.value} sets no {names} variable, after which the block would go",
            line=line_of(module, node),
            expected=f'os.environ["{prefixes[0]}..."] = ... in its body',
        )
    at = settings[-1]
    if calls and calls[0] <= at:
        return Finding(
            State.CONFLICT,
            f"{node.name.value} calls {before_call} before it has set its last {names} variable",
            line=line_of(module, body[calls[0]]),
            expected=f"all settings before {before_call}",
            found=f"a setting at line {line_of(module, body[at])}",
        )
    leaving = next((inner for one in body[: at + 1] for inner in walk_here(one) if isinstance(inner, cst.Return)), None)
    if leaving is not None:
        return Finding(
            State.CONFLICT,
            f"{node.name.value} can return before the place of the block",
            line=line_of(module, leaving),
            expected=f"no return before the last {names} setting at line {line_of(module, body[at])}",
        )
    environ = "os.environ" if "os" in module_names(module) else "environ"
    inserted = parse_statements(module, block(environ, _settings(found, body[: at + 1], flags)))
    new = [*body[: at + 1], *inserted, *body[at + 1 :]]
    return Rewritten(source.with_module(replace_body(module, node, new)))


def _sets(statement: cst.CSTNode, prefixes: tuple[str, ...]) -> bool:
    """Whether a statement, when it runs, can set a variable of these prefixes."""
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return False
    return any(write.name.startswith(prefixes) for write in writes(statement))


def _calls(statement: cst.CSTNode, name: str) -> bool:
    return any(
        isinstance(inner, cst.Call) and (dotted(inner.func) or "").rpartition(".")[2] == name
        for inner in walk_here(statement)
    )


def _settings(found: Found, before: Sequence[cst.CSTNode], flags: Sequence[str]) -> str | None:
    """The object that the function reads its flags from; else its first parameter."""
    node = cst.ensure_type(found.node, cst.FunctionDef)
    for statement in before:
        for inner in walk(statement):
            if isinstance(inner, cst.Attribute) and inner.attr.value in flags and dotted(inner.value):
                return dotted(inner.value)
    parameters = [parameter.name.value for parameter in (*node.params.posonly_params, *node.params.params)]
    bound = found.classes and not any(dotted(one.decorator) == "staticmethod" for one in node.decorators)
    return next(iter(parameters[1:] if bound else parameters), None)
