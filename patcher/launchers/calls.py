"""The functions of a tree, and where each is called, handed to a thread, or started as a process."""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from patcher.source import syntax
from patcher.target import Target
from patcher.wrappers.classes import lineage, methods
from patcher.wrappers.modules import ClassRef, FunctionRef, Import
from patcher.wrappers.statements import Function, assignments, inside
from patcher.wrappers.tree import Package, Tree

_NOT_SERVED = re.compile(r"(^|/)(\.|tests?/|test_\w*\.py$|unit_test\.py$)")


@dataclass(frozen=True)
class Mention:
    """Something is named at a node: to `call` it, to start a `thread` or a `process` with it, or to `hand` it on."""

    function: FunctionRef
    node: ast.expr
    how: str


@dataclass(frozen=True)
class Use(Mention):
    """A mention that is known to mean `used`; `receiver` is the class that a method is looked up in, if it is named."""

    used: FunctionRef
    receiver: ClassRef | None

    @property
    def where(self) -> str:
        """Its place, as `file:line`."""
        return self.function.module.at(self.node)


class Calls:
    """The functions of a tree and who uses whom, each looked up when first asked for."""

    def __init__(self, target: Target) -> None:
        self.texts = dict(_texts(target.path))
        self.tree = Tree(self.texts.get)
        self._functions: dict[str, list[FunctionRef]] = {}
        self._mentions: dict[str, dict[str, list[Mention]]] = {}
        self._uses: dict[ast.AST, list[Use]] = {}

    def functions(self, path: str) -> list[FunctionRef]:
        """The functions and methods of a file, and what it does as a script as a function `__main__`."""
        if path not in self._functions:
            module = self.tree.module(path)
            bound = [one for names in module.names.values() for one in names] if module else []
            found = [one for one in bound if isinstance(one, FunctionRef)]
            found += [one for cls in bound if isinstance(cls, ClassRef) for one in methods(cls)]
            main = _script(self.texts[path]) if b"__main__" in self.texts[path] else None
            self._functions[path] = [*found, FunctionRef(module, main)] if module and main else found
        return self._functions[path]

    def containing(self, *words: bytes) -> Iterator[FunctionRef]:
        """The functions of the files that contain one of these texts."""
        for path, text in self.texts.items():
            if any(word in text for word in words):
                yield from self.functions(path)

    def defined(self, name: str, file: str | None) -> FunctionRef | None:
        """The function of this name: in `file`, or else in the engine's file, or in the first that defines one."""
        found = [one for one in self.containing(f"def {name}(".encode()) if one.node.name == name]
        found.sort(key=lambda one: one.module.path not in ("srt/entrypoints/engine.py", "srt/server.py"))
        return next((one for one in found if file in (None, one.module.path)), None)

    def method(self, cls: ClassRef, name: str, *, above: bool = False) -> FunctionRef | None:
        """The method that a class or, with `above`, its bases give under a name."""
        return lineage(self.tree, cls).method(name, after=cls if above else None)

    def meant(self, node: ast.expr, function: FunctionRef) -> list[FunctionRef]:
        """The functions that an expression in a function may stand for; a class stands for its `__init__`."""
        if isinstance(node, ast.Name):
            if values := local_values(function, node.id):
                return [one for value in values for one in self.meant(value, function)]
            return self._callable(self.tree.meaning(node, function.module, function))
        if not isinstance(node, ast.Attribute):
            return []
        owner, cls = node.value, function.owner
        if cls and isinstance(owner, ast.Name) and owner.id == function.me:
            return self._callable([self.method(cls, node.attr)])
        if cls and isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super":
            return self._callable([self.method(cls, node.attr, above=True)])
        found: list[FunctionRef] = []
        for one in self.tree.meaning(owner, function.module, function):
            if isinstance(one, ClassRef):
                found += self._callable([self.method(one, node.attr)])
            elif isinstance(one, Package) and (module := self.tree.module(f"{one.dotted.replace('.', '/')}.py")):
                found += self._callable(self.tree.meaning(ast.Name(node.attr), module))
        return found

    def _callable(self, meanings: Iterable[object]) -> list[FunctionRef]:
        functions = [self.method(one, "__init__") if isinstance(one, ClassRef) else one for one in meanings]
        return [one for one in functions if isinstance(one, FunctionRef)]

    def classes(self, node: ast.expr, function: FunctionRef) -> list[ClassRef]:
        """The classes that a name, or the name that a dotted expression starts with, may stand for."""
        while isinstance(node, ast.Attribute | ast.Call):
            node = node.value if isinstance(node, ast.Attribute) else node.func
        meanings = self.tree.meaning(node, function.module, function) if isinstance(node, ast.Name) else []
        return [one for one in meanings if isinstance(one, ClassRef)]

    def uses(self, used: FunctionRef) -> list[Use]:
        """Where the functions of the tree use one, also by the name that it overrides in a base."""
        if used.node not in self._uses:
            found = list(self._find_uses(used))
            above = used.owner and used.node.name != "__init__" and self.method(used.owner, used.node.name, above=True)
            self._uses[used.node] = found + (self.uses(above) if above else [])
        return self._uses[used.node]

    def _find_uses(self, used: FunctionRef) -> Iterator[Use]:
        constructor = used.owner if used.node.name == "__init__" else None
        name, stem = (constructor or used.node).name, Path(used.module.path).stem
        imported = re.compile(rf"\b{stem} import\b|\bimport\b.*\b{stem}\b".encode())
        for path, text in self.texts.items():
            if name.encode() not in text or not (path == used.module.path or imported.search(text)):
                continue
            for one in self.mentions_in(path).get(name, ()):
                if constructor and one.how != "call":
                    continue
                if any(meant.node is used.node for meant in self.meant(one.node, one.function)):
                    receiver = next(iter(self.classes(one.node, one.function)), None)
                    yield Use(one.function, one.node, one.how, used, receiver)

    def mentions_in(self, path: str) -> dict[str, list[Mention]]:
        """What the functions of a file mention, by the name that it was defined under."""
        if path not in self._mentions:
            self._mentions[path] = {}
            for function in self.functions(path):
                for name, mention in _mentions(function):
                    self._mentions[path].setdefault(name, []).append(mention)
        return self._mentions[path]


def _texts(package: Path) -> Iterator[tuple[str, bytes]]:
    """The Python files of a package and their bytes, without its tests and what cannot be read."""
    for directory, folders, files in os.walk(package):
        folders.sort()
        for name in sorted(files):
            path = Path(directory, name)
            relative = path.relative_to(package).as_posix()
            if name.endswith(".py") and not _NOT_SERVED.search(relative):
                with contextlib.suppress(OSError):
                    yield relative, path.read_bytes()


def _script(text: bytes) -> ast.FunctionDef | None:
    """A function with the body of a file's `if __name__ == "__main__"`."""
    tree = syntax(text)
    for node in tree.body if tree else ():
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
            nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
            script = ast.FunctionDef(name="__main__", args=nothing, body=node.body, decorator_list=[])
            return ast.copy_location(script, node)
    return None


def shown(function: FunctionRef) -> str:
    """A function's name, with its class."""
    return f"{function.owner.name}.{function.node.name}" if function.owner else function.node.name


def is_private(function: FunctionRef) -> bool:
    """Whether a function's name says that only its own module calls it."""
    return function.node.name.startswith("_") and not function.node.name.endswith("__")


def parameters(function: Function) -> list[str]:
    """The names of a function's parameters."""
    return [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def local_values(function: FunctionRef, name: str) -> list[ast.expr]:
    """What a function assigns to a local name, or the default of a parameter."""
    pairs = [pair for node in inside(function.node) for pair in assignments(node)]
    values = [value for to, value in pairs if isinstance(to, ast.Name) and to.id == name and value is not None]
    return values + [value for to, value in _defaults(function.node) if to == name]


def _defaults(function: Function) -> list[tuple[str, ast.expr]]:
    """The parameters that have a default, with it."""
    named = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    pairs = list(zip(reversed(named), reversed(function.args.defaults), strict=False))
    more = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return [*pairs, *((one.arg, default) for one, default in more if default)]


def _mentions(function: FunctionRef) -> Iterator[tuple[str, Mention]]:
    """What a function names, by the name under which it was imported or else is known."""
    nodes = [node for statement in function.node.body for node in ast.walk(statement)]
    bound = [(to, one) for to, names in function.module.names.items() for one in names if isinstance(one, Import)]
    names = {to: one.name for to, one in bound if one.name}
    names |= {to: default.id for to, default in _defaults(function.node) if isinstance(default, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names |= {one.asname: one.name for one in node.names if one.asname}
    how = {id(node.value): "" for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Call):
            how |= {id(node.func): "call"}
            if ast.unparse(node.func).rpartition(".")[2] in ("Thread", "submit", "to_thread", "run_in_executor"):
                how |= {id(one): "thread" for one in (*node.args, *(word.value for word in node.keywords))}
            if target := process_target(node):
                local = local_values(function, target.id) if isinstance(target, ast.Name) else []
                how |= {id(one): "process" for one in (target, *local)}
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and how.get(id(node), "hand"):
            name = names.get(node.id, node.id) if isinstance(node, ast.Name) else node.attr
            yield name, Mention(function, node, how.get(id(node), "hand"))


def process_target(node: ast.Call) -> ast.expr | None:
    """What a call starts as a process, None if it is no such call (`psutil.Process(pid)` only looks at one)."""
    owner, _, name = ast.unparse(node.func).rpartition(".")
    if name == "Process":
        named = next((one.value for one in node.keywords if one.arg == "target"), None)
        return named or (node.args[1] if len(node.args) > 1 else None)
    spawned = name in ("spawn", "start_processes") and owner.rpartition(".")[2] in ("mp", "multiprocessing")
    return node.args[0] if node.args and (spawned or name == "Popen") else None


def words(node: ast.AST) -> Iterator[str]:
    """The names and the texts in an expression."""
    for one in ast.walk(node):
        for field in ("id", "attr", "arg", "value"):
            if isinstance(word := getattr(one, field, None), str):
                yield word
