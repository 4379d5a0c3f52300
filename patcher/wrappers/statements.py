"""Walking the statements of a syntax tree, and telling simple expressions apart."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body and of the blocks in it, in order, without entering functions and classes."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            for inner in getattr(statement, name, ()):
                yield from flat([inner] if isinstance(inner, ast.stmt) else inner.body)


def inside(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function's body, in order, without those of functions, lambdas and classes in it."""
    pending: list[ast.AST] = list(reversed(function.body))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending.extend(reversed(list(ast.iter_child_nodes(node))))


def assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What a node assigns, as (target, value): the value is None where it cannot be told apart (loops, unpacking)."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _paired(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
        if node.value is not None:
            yield node.target, node.value
    elif isinstance(node, ast.AugAssign):
        yield node.target, None
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield from _paired(node.target, None)
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            if item.optional_vars is not None:
                yield from _paired(item.optional_vars, None)


def _paired(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value
        return
    values: list[ast.expr | None] = [None] * len(target.elts)
    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
        values = list(value.elts)
    for one, its in zip(target.elts, values, strict=True):
        yield from _paired(one, its)


def parameters(function: Function) -> list[str]:
    """The names of a function's parameters, those by position first."""
    given = function.args
    rest = [one for one in (given.vararg, given.kwarg) if one]
    return [one.arg for one in [*given.posonlyargs, *given.args, *given.kwonlyargs, *rest]]


def is_none(node: ast.AST) -> bool:
    """Whether an expression is `None`."""
    return isinstance(node, ast.Constant) and node.value is None


def is_name(node: ast.AST, name: str) -> bool:
    """Whether an expression is just this name."""
    return isinstance(node, ast.Name) and node.id == name


def is_super(node: ast.AST) -> bool:
    """Whether an expression is `super()` or `super(C, self)`."""
    return isinstance(node, ast.Call) and is_name(node.func, "super")


def shown(node: ast.AST) -> str:
    """A node's source on one line, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
