"""Which of two places of a function runs first, as far as its syntax tells."""

from __future__ import annotations

import ast


def before(function: ast.AST, call: ast.AST, node: ast.AST | None) -> bool | None:
    """Whether a call has surely run (None: perhaps) when a function comes to a node, or to its end."""
    mine, other = _path_to(function, call), _path_to(function, node) if node else []
    if not other:
        line = getattr(call, "lineno", 0)
        left = any(isinstance(one, ast.Return) and one.lineno < line for one in ast.walk(function))
        return True if not left and all(_surely(*step) for step in mine[1:]) else None
    same = next((n for n, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), None)
    if same is None:
        return len(mine) > len(other)
    (split, field, place), (_, its, its_place) = mine[same], other[same]
    if (split._fields.index(field), place) > (split._fields.index(its), its_place):
        deferred = any(
            isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) for one, _, _ in other[same + 1 :]
        )
        return None if deferred else False
    if (field, its) == ("body", "orelse") and isinstance(split, ast.If | ast.IfExp):
        return False
    if field in ("cases", "handlers") and its in (field, "orelse"):
        return False
    reached = field == its or (its == "orelse" and isinstance(split, ast.Try)) or _surely(split, field, place)
    return True if reached and all(_surely(*step) for step in mine[same + 1 :]) else None


def _path_to(root: ast.AST, node: ast.AST) -> list[tuple[ast.AST, str, int]]:
    """The nodes from one down to another, each with the field and the place in it that lead on."""
    for field, value in ast.iter_fields(root):
        for place, child in enumerate(value if isinstance(value, list) else [value]):
            if child is node:
                return [(root, field, place)]
            if isinstance(child, ast.AST) and (below := _path_to(child, node)):
                return [(root, field, place), *below]
    return []


def _surely(node: ast.AST, field: str, place: int) -> bool:
    """Whether what is in a field of a node has run whenever the code behind that node runs."""
    if isinstance(node, ast.Try):
        ends = [handler.body[-1] for handler in node.handlers]
        return field == "finalbody" or (
            field == "body" and all(isinstance(one, ast.Raise | ast.Return) for one in ends)
        )
    if isinstance(node, ast.If | ast.IfExp | ast.While | ast.For | ast.AsyncFor | ast.Match):
        return field in ("test", "iter", "subject")
    deferred = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.comprehension
    return not isinstance(node, deferred) and not (isinstance(node, ast.BoolOp) and place)
