"""Find where code sets environment variables, in the forms in which SGLang and its forks do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from patcher.transforms.syntax import dotted, string_of, walk, walk_here


@dataclass(frozen=True)
class Write:
    """One place where a variable is set: its value if that is a literal, whether it is set only when unset."""

    name: str
    value: str | None
    default: bool
    node: cst.CSTNode


def environ_names(module: cst.Module, function: cst.FunctionDef) -> frozenset[str]:
    """What the process environment is called in a function: `os.environ`, what imports call it, local aliases."""
    names = {"os.environ"}
    for statement in module.body:
        for node in walk_here(statement):
            if isinstance(node, cst.ImportAlias) and dotted(node.name) == "os" and node.asname:
                names.add(f"{dotted(node.asname.name)}.environ")
            if isinstance(node, cst.ImportFrom) and node.module and dotted(node.module) == "os":
                imported = () if isinstance(node.names, cst.ImportStar) else node.names
                names |= {
                    dotted(a.asname.name) or "" if a.asname else "environ"
                    for a in imported
                    if dotted(a.name) == "environ"
                }
    for node in (*module.body, *walk_here_in(function)):
        for assign in walk_here(node) if isinstance(node, cst.SimpleStatementLine) else ():
            if isinstance(assign, cst.Assign) and dotted(assign.value) in names:
                names |= {target.target.value for target in assign.targets if isinstance(target.target, cst.Name)}
    return frozenset(names)


def walk_here_in(function: cst.FunctionDef) -> Iterator[cst.CSTNode]:
    """Everything in a function's body that runs when the function does."""
    for statement in function.body.body:
        yield from walk_here(statement)


def writes(node: cst.CSTNode, environ: frozenset[str]) -> list[Write]:
    """Every place below a node, in source order, that sets a variable.

    Where the name is computed, as in a loop over a dictionary, every string around that could be one is taken for it.
    """
    return list(_writes(node, environ, ()))


def _writes(node: cst.CSTNode, environ: frozenset[str], guards: tuple[str, ...]) -> Iterator[Write]:
    if isinstance(node, cst.If):
        yield from _writes(node.test, environ, guards)
        yield from _writes(node.body, environ, (*guards, *_required_unset(node.test, environ)))
        if node.orelse is not None:
            yield from _writes(node.orelse, environ, guards)
        return
    if isinstance(node, cst.For) and _computed(node, environ):
        strings = [text for inner in walk(node) if (text := string_of(inner))]
        yield from (Write(text, None, False, node) for text in strings)
        return
    yield from _writes_at(node, environ, guards)
    for child in node.children:
        yield from _writes(child, environ, guards)


def _computed(node: cst.For, environ: frozenset[str]) -> bool:
    """Whether a loop sets variables whose names it computes."""
    for inner in walk(node.body):
        if isinstance(inner, cst.AssignTarget) and isinstance(inner.target, cst.Subscript):
            target, name = dotted(inner.target.value), _key(inner.target, environ)
        elif isinstance(inner, cst.Call) and inner.args:
            target, name = (dotted(inner.func) or "").rpartition(".")[0], string_of(inner.args[0].value)
        else:
            continue
        if target in environ and name is None:
            return True
    return False


def _key(node: cst.CSTNode, environ: frozenset[str]) -> str | None:
    """The variable of `os.environ["NAME"]`, or None."""
    if isinstance(node, cst.Subscript) and dotted(node.value) in environ and len(node.slice) == 1:
        index = node.slice[0].slice
        return string_of(index.value) if isinstance(index, cst.Index) else None
    return None


def _writes_at(node: cst.CSTNode, environ: frozenset[str], guards: Sequence[str]) -> Iterator[Write]:
    if isinstance(node, cst.Assign):
        for key in [key for target in node.targets if (key := _key(target.target, environ))]:
            yield Write(key, string_of(node.value), key in guards, node)
    elif isinstance(node, cst.AugAssign) and dotted(node.target) in environ:
        yield from _pairs(node.value, node)
    elif isinstance(node, cst.Call):
        yield from _called(node, environ)


def _called(node: cst.Call, environ: frozenset[str]) -> Iterator[Write]:
    owner, _, method = (dotted(node.func) or "").rpartition(".")
    arguments = [argument.value for argument in node.args]
    if (owner in environ and method == "setdefault") or (owner, method) == ("os", "putenv"):
        key = string_of(arguments[0]) if len(arguments) == 2 else None
        if key:
            yield Write(key, string_of(arguments[1]), method == "setdefault", node)
    elif owner in environ and method == "update":
        for argument in node.args:
            if argument.keyword:
                yield Write(argument.keyword.value, string_of(argument.value), False, node)
            else:
                yield from _pairs(argument.value, node)


def _pairs(value: cst.BaseExpression, node: cst.CSTNode) -> Iterator[Write]:
    """What a dictionary display sets."""
    for element in value.elements if isinstance(value, cst.Dict) else ():
        key = string_of(element.key) if isinstance(element, cst.DictElement) else None
        if key:
            yield Write(key, string_of(element.value), False, node)


def _required_unset(test: cst.BaseExpression, environ: frozenset[str]) -> list[str]:
    """The variable whose absence a test alone requires: `"X" not in os.environ`, `os.environ.get("X") is None`."""
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return []
    operator, right = test.comparisons[0].operator, test.comparisons[0].comparator
    name = None
    if isinstance(operator, cst.NotIn) and dotted(right) in environ:
        name = string_of(test.left)
    elif isinstance(operator, cst.Is) and dotted(right) == "None" and isinstance(test.left, cst.Call):
        owner, _, method = (dotted(test.left.func) or "").rpartition(".")
        if method == "get" and owner in environ and len(test.left.args) == 1:
            name = string_of(test.left.args[0].value)
    return [name] if name else []
