"""Find definitions in a LibCST module and change their bodies, leaving everything else byte-identical."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

Definition = cst.FunctionDef | cst.ClassDef


@dataclass(frozen=True)
class Found:
    """A class or function and the classes around it, outermost first."""

    node: Definition
    classes: tuple[cst.ClassDef, ...] = ()

    @property
    def name(self) -> str:
        """Its dotted name."""
        return ".".join(part.name.value for part in (*self.classes, self.node))


def definitions(module: cst.Module, name: str) -> list[Found]:
    """Every class or function of a name, at module level or in a class, also inside `if`, `try` and `with`."""
    return [found for found in _definitions(module.body, ()) if found.node.name.value == name]


def _definitions(body: Sequence[cst.CSTNode], classes: tuple[cst.ClassDef, ...]) -> Iterator[Found]:
    for node in body:
        if isinstance(node, cst.FunctionDef):
            yield Found(node, classes)
        elif isinstance(node, cst.ClassDef):
            yield Found(node, classes)
            yield from _definitions(node.body.body, (*classes, node))
        elif isinstance(
            node, cst.If | cst.Else | cst.Try | cst.ExceptHandler | cst.Finally | cst.With | cst.IndentedBlock
        ):
            yield from _definitions(node.children, classes)


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and everything below it, in source order."""
    yield node
    for child in node.children:
        yield from walk(child)


def walk_here(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and everything below it that runs when it runs: not the insides of functions, lambdas and classes."""
    yield node
    if not isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda):
        for child in node.children:
            yield from walk_here(child)


def line_of(module: cst.Module, node: cst.CSTNode) -> int:
    """The line (from 1) at which a node of the module starts."""
    positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    return int(positions[node].start.line)


def replace_body(module: cst.Module, node: Definition, body: Sequence[cst.BaseStatement]) -> cst.Module:
    """The module with other statements in the indented body of one definition."""
    changed = node.with_changes(body=node.body.with_changes(body=list(body)))
    if any(statement is node for statement in module.body):
        return module.with_changes(body=[changed if statement is node else statement for statement in module.body])
    return cst.ensure_type(module.deep_replace(node, changed), cst.Module)


def parse_statements(module: cst.Module, text: str) -> list[cst.BaseStatement]:
    """The statements of a text, in the module's indentation and line endings, an empty line before the first."""
    parsed = cst.parse_module(text, config=module.config_for_parsing)
    first, *rest = parsed.body
    blank = cst.EmptyLine(indent=False)
    return [
        _led_by(first, [blank, *parsed.header, *_leading_lines(first)]),
        *(_led_by(one, _leading_lines(one)) for one in rest),
    ]


def _leading_lines(statement: cst.CSTNode) -> Sequence[cst.EmptyLine]:
    return list(getattr(statement, "leading_lines", ()))


def _led_by(
    statement: cst.SimpleStatementLine | cst.BaseCompoundStatement, lines: Sequence[cst.EmptyLine]
) -> cst.BaseStatement:
    """The statement behind these lines, of which the empty ones are really empty."""
    return statement.with_changes(
        leading_lines=[line if line.comment else line.with_changes(indent=False) for line in lines]
    )


def module_names(module: cst.Module) -> set[str]:
    """The names that imports at module level bind, also inside `if` and `try`."""
    names: set[str] = set()
    for statement in module.body:
        for node in walk_here(statement):
            if isinstance(node, cst.Import | cst.ImportFrom) and not isinstance(node.names, cst.ImportStar):
                names |= {_bound_name(alias) for alias in node.names}
    return names


def _bound_name(alias: cst.ImportAlias) -> str:
    if alias.asname is not None:
        return cst.ensure_type(alias.asname.name, cst.Name).value
    return alias.evaluated_name.partition(".")[0]


def string_of(node: cst.CSTNode | None) -> str | None:
    """The value of a plain string literal, or None for anything else."""
    if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    return None


def dotted(node: cst.CSTNode) -> str | None:
    """`a.b.c` for names and attributes of names, or None for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        left = dotted(node.value)
        return None if left is None else f"{left}.{node.attr.value}"
    return None
