"""Add methods to a class that hand each call to an object which the class holds."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from patcher.patch import Finding, Outcome, Rewritten, State
from patcher.source import Source
from patcher.transforms.method import Method
from patcher.transforms.syntax import (
    definitions,
    dotted,
    line_of,
    module_names,
    parse_statements,
    replace_body,
    walk,
)


def delegate(
    source: Source,
    *,
    class_name: str,
    to: str,
    methods: Sequence[Method],
    comment: Sequence[str],
    proved: bool = False,
) -> Outcome:
    """Add `methods` to the end of a class; each calls the method of the same name on `self.<to>`.

    A missing or None `<to>`, or one without the method, raises an AttributeError that says so when it is called.
    `comment` are the lines above the first method, without `#`. The class must mention `self.<to>` itself, unless it is
    `proved` otherwise that it holds one, as a base class in another file can set it.
    """
    module = source.module
    classes = [found.node for found in definitions(module, class_name) if isinstance(found.node, cst.ClassDef)]
    if not classes:
        return Finding(State.ABSENT, f"this SGLang has no class {class_name} in {source.path}")
    if len(classes) > 1:
        return Finding(
            State.CONFLICT,
            f"{class_name} is defined {len(classes)} times, and which one counts is not certain",
            line=line_of(module, classes[-1]),
            expected=f"one class {class_name}",
            found=f"definitions at lines {', '.join(str(line_of(module, one)) for one in classes)}",
        )
    node = classes[0]
    return (
        _already(module, node, methods)
        or _unusable(module, node, None if proved else to)
        or Rewritten(source.with_module(_added(module, node, to, methods, comment)))
    )


def members(module: cst.Module, node: cst.ClassDef) -> dict[str, cst.CSTNode]:
    """What a class defines, by name: in its body, in bases of the same module, and by assignment from outside."""
    found: dict[str, cst.CSTNode] = {}
    for base in node.bases:
        for other in definitions(module, dotted(base.value) or ""):
            if isinstance(other.node, cst.ClassDef) and other.node is not node:
                found |= members(module, other.node)
    pending: list[cst.CSTNode] = list(node.body.body)
    while pending:
        inner = pending.pop(0)
        if isinstance(inner, cst.FunctionDef | cst.ClassDef):
            found[inner.name.value] = inner
        elif isinstance(inner, cst.Assign):
            found |= {target.target.value: inner for target in inner.targets if isinstance(target.target, cst.Name)}
        elif isinstance(inner, cst.AnnAssign) and isinstance(inner.target, cst.Name) and inner.value is not None:
            found[inner.target.value] = inner
        elif not isinstance(inner, cst.BaseExpression):
            pending.extend(inner.children)
    return found | _assigned_from_outside(module, node.name.value)


def _assigned_from_outside(module: cst.Module, class_name: str) -> dict[str, cst.CSTNode]:
    """The targets `Class.name = ...` at module level."""
    found: dict[str, cst.CSTNode] = {}
    for statement in module.body:
        for inner in walk(statement) if not isinstance(statement, cst.FunctionDef | cst.ClassDef) else ():
            if isinstance(inner, cst.Assign):
                for target in inner.targets:
                    left, _, name = (dotted(target.target) or "").rpartition(".")
                    if left == class_name:
                        found[name] = inner
    return found


def _already(module: cst.Module, node: cst.ClassDef, methods: Sequence[Method]) -> Finding | None:
    there = members(module, node)
    defined = [method.name for method in methods if method.name in there]
    missing = [method.name for method in methods if method.name not in there]
    name = node.name.value
    if not defined:
        return None
    line = line_of(module, there[defined[0]])
    if not missing:
        return Finding(
            State.UPSTREAM, f"{name} has {' and '.join(_both(defined))} already, from line {line}", line=line
        )
    return Finding(
        State.PARTIAL,
        f"{name} has {', '.join(defined)} already, and not by sglang-patch, but no {', '.join(missing)}",
        line=line,
        expected=f"none or all of {', '.join(method.name for method in methods)}",
        found=", ".join(defined),
        hint=f"take {', '.join(defined)} out of {name}, or add the rest by hand",
    )


def _both(names: Sequence[str]) -> list[str]:
    return [", ".join(names[:-1]), names[-1]] if len(names) > 1 else list(names)


def _unusable(module: cst.Module, node: cst.ClassDef, to: str | None) -> Finding | None:
    if not isinstance(node.body, cst.IndentedBlock):
        reason = f"{node.name.value} has its body on one line"
        return Finding(State.CONFLICT, reason, line_of(module, node), "an indented body", "a body behind the colon")
    if to and not any(isinstance(one, cst.Attribute) and dotted(one) == f"self.{to}" for one in walk(node)):
        return Finding(
            State.CONFLICT,
            f"{node.name.value} never mentions self.{to}, to which the methods would delegate",
            line=line_of(module, node),
            expected=f"self.{to} = ... in {node.name.value}",
            found=f"no self.{to}",
        )
    return None


def _added(
    module: cst.Module, node: cst.ClassDef, to: str, methods: Sequence[Method], comment: Sequence[str]
) -> cst.Module:
    imported = module_names(module)
    text = "".join(f"# {line}\n" for line in comment)
    text += "\n".join(_method(node.name.value, to, method, imported) for method in methods)
    inserted = parse_statements(module, text)
    return replace_body(module, node, [*node.body.body, *inserted])


def _method(class_name: str, to: str, method: Method, imported: set[str]) -> str:
    """The source of one method."""
    parameters = ["self"]
    for name, annotation, default in method.parameters:
        written = _annotation(annotation, imported)
        equals = "" if default is None else f" = {default}" if written else f"={default}"
        parameters.append(f"{name}: {written}{equals}" if written else f"{name}{equals}")
    returns = _annotation(method.returns, imported)
    arrow = f" -> {returns}" if returns else ""
    head = f"def {method.name}({', '.join(parameters)}){arrow}:"
    if len(head) > 84:
        head = f"def {method.name}(\n    {', '.join(parameters)}\n){arrow}:"
    lines = [f'"""{method.doc}"""'] if method.doc else []
    call = f"inner.{method.name}({', '.join(name for name, _, _ in method.parameters)})"
    lines += [
        f'inner = getattr(self, "{to}", None)',
        "if inner is None:",
        "    raise AttributeError(",
        f'        "{class_name} has no {to}"',
        "    )",
        f'if not hasattr(inner, "{method.name}"):',
        "    raise AttributeError(",
        f'        f"{{type(inner).__name__}}, the {to}, has no {method.name}()"',
        "    )",
        call if method.returns == "None" else f"return {call}",
    ]
    return head + "\n" + "".join(f"    {line}\n" for line in lines)


_BUILT_IN = {"List": "list", "Tuple": "tuple", "Dict": "dict"}


def _annotation(text: str, imported: set[str]) -> str:
    """An annotation in the names that the file imports; "" where it would need another import."""
    expression = cst.parse_expression(text)
    for name in {inner.value for inner in walk(expression) if isinstance(inner, cst.Name)}:
        if name in _BUILT_IN and name not in imported:
            text = text.replace(name, _BUILT_IN[name])
        elif name == "Optional" and name not in imported:
            text = f"{text.removeprefix('Optional[').removesuffix(']')} | None"
    names = {inner.value for inner in walk(cst.parse_expression(text)) if isinstance(inner, cst.Name)}
    known = imported | {"None", "int", "str", "bool", "float", "list", "tuple", "dict"}
    heads = {name for name in names if name not in _attributes(text)}
    return text if heads <= known else ""


def _attributes(text: str) -> set[str]:
    return {inner.attr.value for inner in walk(cst.parse_expression(text)) if isinstance(inner, cst.Attribute)}
