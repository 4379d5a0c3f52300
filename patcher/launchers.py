"""The ways in which an SGLang tree starts processes that use NCCL, and whether each passes through a function first.

Everything is found in the source: a statement that starts a process for one rank, and the calls that lead to it. What is
followed are calls by name, imports across modules, `self.x`, `cls.x` and base classes, threads, and started processes,
which inherit the environment. What is not: callables kept in attributes or containers, and other distributions.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from patcher.target import Target
from patcher.wrappers.classes import lineage, methods
from patcher.wrappers.tree import ClassRef, Function, FunctionRef, Package, Tree, assignments, inside

# What a way is called, by where its function is; one that none of these fits is called by its own name.
_NAMES = (
    (r"^multimodal_gen/", "multimodal_gen server"),
    (r"/ray/", "Ray actors"),
    (r"encode.*grpc", "encoder-only gRPC server"),
    (r"encode", "encoder-only server"),
    (r"grpc", "gRPC server"),
    (r"weight_cache", "weight cache daemon"),
    (r"(data_parallel_controller|controller_multi)\.py", "data-parallel controller"),
    (r"controller_single\.py", "tensor-parallel controller"),
    (r"(bench_one_batch|benchmark/one_batch)\.py", "bench_one_batch"),
    (r"bench_latency\.py", "bench_latency"),
    (r" Engine\.__init__$", "Engine"),
    (r"server\.py launch_server$", "HTTP server"),
)
# A process for one rank is told its rank or its GPU; detokenizers, HTTP servers and the like are told neither.
_RANK = re.compile(r"(?:^|[_-])(?:rank|gpu_ids?|gpu-id)$|scheduler_process")
_ELSEWHERE = re.compile(r"(?!sglang\.)[\w.]+\.sglang(\.|$)")
_NOT_SERVED = re.compile(r"(^|/)(\.|tests?/|test_\w*\.py$|unit_test\.py$)")
_DEEPEST = 5


@dataclass(frozen=True)
class LaunchPath:
    """One way to start worker processes: `file` and `line` (from 1) are of the function that does.

    `covered` is whether what the asked function does to the environment arrives in them, None where the source does not
    tell; `reason` is the evidence, with places as `file:line`.
    """

    name: str
    file: str
    line: int
    covered: bool | None
    reason: str


def launch_paths(target: Target, function: str = "_set_envs_and_config", file: str | None = None) -> list[LaunchPath]:
    """The ways in which this tree starts workers, and whether each calls `function` (of `file`, or found) before."""
    calls = _Calls(target)
    ways = _Ways(calls, calls.defined(function, file), function)
    found = [*ways.processes(), *ways.actors(), *ways.elsewhere()]
    return sorted(found, key=lambda way: (way.name, way.file, way.line, str(way.covered)))


@dataclass(frozen=True)
class _Use:
    """`user` uses `used` at a node: to start a process with it (`as_process`), or else to call it or hand it on.

    `receiver` is the class that a method is looked up in, None for a method of the user's own object.
    """

    user: FunctionRef
    used: FunctionRef
    node: ast.expr
    as_process: bool
    receiver: ClassRef | None


class _Calls:
    """The functions of a tree and who uses whom, each looked up when first asked for."""

    def __init__(self, target: Target) -> None:
        self.texts = dict(_texts(target.path))
        self.tree = Tree(self.texts.get)
        self._functions: dict[str, list[FunctionRef]] = {}
        self._uses: dict[ast.AST, list[_Use]] = {}

    def functions(self, path: str) -> list[FunctionRef]:
        """The functions and methods of a file."""
        if path not in self._functions:
            module = self.tree.module(path)
            bound = [one for names in module.names.values() for one in names] if module else []
            self._functions[path] = [one for one in bound if isinstance(one, FunctionRef)]
            self._functions[path] += [one for cls in bound if isinstance(cls, ClassRef) for one in methods(cls)]
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

    def meant(self, node: ast.expr, function: FunctionRef) -> list[FunctionRef]:
        """The functions of the tree that an expression in a function may stand for; a class stands for its `__init__`."""
        if isinstance(node, ast.Attribute):
            return self._member(node, function)
        if not isinstance(node, ast.Name):
            return []
        if values := _local_values(function, node.id):
            return [one for value in values for one in self.meant(value, function)]
        return self._callable(self.tree.meaning(node, function.module, function))

    def _callable(self, meanings: Iterable[object]) -> list[FunctionRef]:
        refs = [self.method(one, "__init__") if isinstance(one, ClassRef) else one for one in meanings]
        return [one for one in refs if isinstance(one, FunctionRef)]

    def _member(self, node: ast.Attribute, function: FunctionRef) -> list[FunctionRef]:
        owner = node.value
        if isinstance(owner, ast.Name) and function.owner and owner.id == function.me:
            return self._callable([self.method(function.owner, node.attr)])
        if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super":
            return self._callable([function.owner and self.method(function.owner, node.attr, above=True)])
        found: list[FunctionRef] = []
        for one in self.tree.meaning(owner, function.module, function):
            if isinstance(one, ClassRef):
                found += self._callable([self.method(one, node.attr)])
            elif isinstance(one, Package) and (module := self.tree.module(f"{one.dotted.replace('.', '/')}.py")):
                found += self._callable(self.tree.meaning(ast.Name(node.attr), module))
        return found

    def method(self, cls: ClassRef, name: str, *, above: bool = False) -> FunctionRef | None:
        """The method that a class or, with `above`, its bases give under a name."""
        return lineage(self.tree, cls).method(name, after=cls if above else None)

    def classes(self, node: ast.expr, function: FunctionRef) -> list[ClassRef]:
        """The classes of the tree that a name, or the name that a dotted expression starts with, may stand for."""
        while isinstance(node, ast.Attribute | ast.Call):
            node = node.value if isinstance(node, ast.Attribute) else node.func
        meanings = self.tree.meaning(node, function.module, function) if isinstance(node, ast.Name) else []
        return [one for one in meanings if isinstance(one, ClassRef)]

    def uses(self, used: FunctionRef) -> list[_Use]:
        """Where the functions of the tree use one, also by the name that it overrides in a base."""
        if used.node not in self._uses:
            found = list(self._find_uses(used))
            above = used.owner and used.node.name != "__init__" and self.method(used.owner, used.node.name, above=True)
            self._uses[used.node] = found + (self.uses(above) if above else [])
        return self._uses[used.node]

    def _find_uses(self, used: FunctionRef) -> Iterator[_Use]:
        name = used.owner.name if used.owner and used.node.name == "__init__" else used.node.name
        word, stem = re.compile(rf"\b{name}\b".encode()), Path(used.module.path).stem.encode()
        files = [path for path, text in self.texts.items() if stem in text and word.search(text)]
        for path in {used.module.path, *files}:
            for function in self.functions(path):
                nodes = [
                    node
                    for node in _mentions(function, name)
                    if any(one.node is used.node for one in self.meant(node, function))
                ]
                targets = [_process_target(node) for node in ast.walk(function.node)] if nodes else []
                for node in nodes:
                    receiver = next(iter(self.classes(node, function)), None)
                    yield _Use(function, used, node, node in targets, receiver)


@dataclass(frozen=True)
class _Passed:
    """Whether the asked function has been called, None if only on some paths, and where."""

    covered: bool | None = False
    where: str = ""


@dataclass(frozen=True)
class _Start:
    """Workers are started at `site` by `owner`, itself started as a process at `child_at` unless that is empty."""

    owner: FunctionRef
    site: str
    passed: _Passed
    child_at: str


class _Ways:
    """Climbs from what starts workers to the functions that others call, and looks for the asked function on the way."""

    def __init__(self, calls: _Calls, asked: FunctionRef | None, name: str) -> None:
        self.calls = calls
        self.asked = asked
        self.name = name
        self.passing: dict[ast.AST, list[_Use]] = {}
        level = [asked] if asked else []
        for _ in range(_DEEPEST):
            uses = [use for one in level for use in calls.uses(one) if not use.as_process]
            level = [use.user for use in uses if use.user.node not in self.passing]
            for use in uses:
                self.passing.setdefault(use.user.node, []).append(use)

    def passes(self, function: FunctionRef, node: ast.AST | None, trail: tuple[ast.AST, ...] = ()) -> _Passed:
        """Whether a function has called the asked one before it comes to a node, or to its end."""
        found = _Passed()
        for use in self.passing.get(function.node, ()) if function.node not in trail else ():
            order = _before(function.node, use.node, node)
            inner = _Passed(True, function.module.at(use.node))
            if order is not False and use.used is not self.asked:
                inner = self.passes(use.used, None, (*trail, function.node))
            if order and inner.covered:
                return inner
            if order is not False and inner.covered is not False:
                found = _Passed(None, inner.where)
        return found

    def processes(self) -> Iterator[LaunchPath]:
        """The ways that start workers as processes of this machine."""
        starts: dict[tuple[ast.AST, bool | None], list[_Start]] = {}
        for function in self.calls.containing(b"Process(", b"Popen(", b"spawn("):
            for node in ast.walk(function.node):
                if _starts_rank(node, function):
                    site = function.module.at(node)
                    for start in self._climb(function, node, _Start(function, site, _Passed(), ""), ()):
                        starts.setdefault((start.owner.node, start.passed.covered), []).append(start)
        for group in starts.values():
            yield self._way(group)

    def _climb(
        self, function: FunctionRef, node: ast.AST, start: _Start, chain: tuple[FunctionRef, ...]
    ) -> Iterator[_Start]:
        """The starts that lead to a node of a function. `chain`: the methods of one object that were climbed through."""
        passed = self.passes(function, node) if not start.passed.covered else start.passed
        passed = passed if passed.covered is not False else start.passed
        owner = start.owner if start.child_at else function
        start = _Start(owner, start.site, passed, start.child_at)
        uses = self.calls.uses(function)
        direct = [use for use in uses if not use.as_process]
        if not _is_private(function) and not any(use.user.module is function.module for use in direct):
            uses = [] if direct else uses
        else:
            uses = direct or uses
        if not uses or len(chain) > _DEEPEST:
            yield start
        for use in uses:
            ...


