"""The ways in which an SGLang tree starts processes that use NCCL, and whether each passes through a function first.

Everything is found in the source: a statement that starts a process for one rank, and the calls that lead to it. What is

"""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from patcher.target import Target
from patcher.wrappers.classes import lineage, methods
from patcher.wrappers.statements import Function, assignments, inside
from patcher.wrappers.tree import ClassRef, FunctionRef, Package, Tree

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
                for node in _mentions(function, name, called=used.node.name == "__init__"):
                    if any(one.node is used.node for one in self.meant(node, function)):
                        receiver = next(iter(self.classes(node, function)), None)
                        yield _Use(function, used, node, node in _process_targets(function), receiver)


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
        self, function: FunctionRef, node: ast.AST, start: _Start, trail: tuple[FunctionRef, ...]
    ) -> Iterator[_Start]:
        """The starts that come to a node of a function: by the functions that nothing private or near them calls."""
        passed = start.passed if start.passed.covered else self.passes(function, node)
        passed = start.passed if passed.covered is False else passed
        start = replace(start, passed=passed, owner=start.owner if start.child_at else function)
        trail = (*trail, function)
        uses = self.calls.uses(function) if len(trail) < _DEEPEST else []
        direct = [use for use in uses if not use.as_process]
        ends = not uses or function.node in [one.node for one in trail[:-1]]
        if ends or (
            direct and not _is_private(function) and all(use.user.module is not function.module for use in direct)
        ):
            yield start
            return
        for use in direct or uses:
            if self._reaches(use, trail):
                place = use.user.module.at(use.node)
                yield from self._climb(use.user, use.node, start if direct else replace(start, child_at=place), trail)

    def _reaches(self, use: _Use, trail: tuple[FunctionRef, ...]) -> bool:
        """Whether an object that is used leads through these methods, none of which its class overrides."""
        cls = use.receiver or (use.user.owner if use.user.owner is not use.used.owner else None)
        if cls is None:
            return True
        family = lineage(self.calls.tree, cls).classes
        for one in trail:
            if one.owner and one.node.name != "__init__":
                below = use.receiver and cls in lineage(self.calls.tree, one.owner).classes
                own = self.calls.method(cls, one.node.name) if one.owner in family or below else one
                if own is None or own.node is not one.node:
                    return False
        return True

    def _way(self, starts: list[_Start]) -> LaunchPath:
        owner, passed = starts[0].owner, starts[0].passed
        sites = ", ".join(dict.fromkeys(start.site for start in starts))
        children = ", ".join(dict.fromkeys(start.child_at for start in starts if start.child_at))
        before = f"{self.name} is called at {passed.where} before"
        covered = passed.covered
        if passed.covered is False and not children and (above := self._above(owner, _DEEPEST)):
            covered, before = None, f"{self.name} is called before only when it is started by {above}"
        elif passed.covered is None:
            before = f"{self.name} is called at {passed.where} on some paths only, or not surely before"
        elif not passed.covered:
            before = f"{self.name} is not called before"
        child = f"; it is a process itself, started at {children}, and has that environment" if children else ""
        return self._path(owner, covered, f"{before} the workers are started at {sites}{child}")

    def _above(self, function: FunctionRef, depth: int) -> str:
        """A function that calls the asked one before it comes to this one; "" if there is none."""
        for use in self.calls.uses(function) if depth else ():
            if self.passes(use.user, use.node).covered is not False:
                return f"{_shown(use.user)} ({use.user.module.at(use.node)})"
            if above := self._above(use.user, depth - 1):
                return above
        return ""

    def _path(self, owner: FunctionRef, covered: bool | None, reason: str) -> LaunchPath:
        label = f"{owner.module.path} {_shown(owner)}"
        name = next((name for pattern, name in _NAMES if re.search(pattern, label)), _shown(owner))
        return LaunchPath(name, owner.module.path, owner.node.lineno, covered, reason)

    def actors(self) -> Iterator[LaunchPath]:
        """The ways that start workers as Ray actors, in processes of Ray that do not get the driver's environment."""
        for function in self.calls.containing(b".remote("):
            for node in ast.walk(function.node):
                if not (
                    isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "remote"
                ):
                    continue
                for cls in self.calls.classes(node.func, function):
                    start = self.calls.method(cls, "__init__")
                    if start and any(_RANK.search(name) for name in _parameters(start.node)):
                        yield self._actor(function, node, cls, start)

    def _actor(self, function: FunctionRef, node: ast.Call, cls: ClassRef, start: FunctionRef) -> LaunchPath:
        at = function.module.at(node)
        inside_it = self.passes(start, None)
        if inside_it.covered is not False:
            return self._path(
                function, inside_it.covered, f"the actor {cls.name} of {at} calls {self.name} at {inside_it.where}"
            )
        if "runtime_env" in ast.unparse(node):
            return self._path(
                function, None, f"the actor {cls.name} of {at} gets an environment of its own (runtime_env)"
            )
        reason = f"the actor {cls.name} of {at} runs in a process of Ray, which does not inherit what its driver sets"
        return self._path(function, False, f"{reason}; {cls.where} does not call {self.name}")

    def elsewhere(self) -> Iterator[LaunchPath]:
        """The ways that hand over to a package for SGLang that is not part of it."""
        for function in self.calls.containing(b".sglang"):
            for node in ast.walk(function.node):
                if isinstance(node, ast.ImportFrom) and not node.level and _ELSEWHERE.match(node.module or ""):
                    reason = (
                        f"the workers are started by {node.module} ({function.module.at(node)}), outside of this tree"
                    )
                    yield self._path(function, None, reason)


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


def _shown(function: FunctionRef) -> str:
    return f"{function.owner.name}.{function.node.name}" if function.owner else function.node.name


def _is_private(function: FunctionRef) -> bool:
    return function.node.name.startswith("_") and not function.node.name.endswith("__")


def _parameters(function: Function) -> list[str]:
    return [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _local_values(function: FunctionRef, name: str) -> list[ast.expr]:
    """What a function assigns to a local name."""
    return [
        value
        for node in inside(function.node)
        for target, value in assignments(node)
        if isinstance(target, ast.Name) and target.id == name and value is not None
    ]


def _mentions(function: FunctionRef, name: str, *, called: bool) -> list[ast.expr]:
    """Where a function uses something by its name or by what it imports it as; only in calls if `called`."""
    module = function.module
    names = {name} | {
        to for to, bound in module.names.items() if any(getattr(one, "name", "") == name for one in bound)
    }
    nodes = [node for statement in function.node.body for node in ast.walk(statement)]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names |= {one.asname for one in node.names if one.name == name and one.asname}
    owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    functions = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    return [
        node
        for node in nodes
        if (
            (isinstance(node, ast.Name) and node.id in names) or (isinstance(node, ast.Attribute) and node.attr == name)
        )
        and (id(node) in functions if called else id(node) not in owners)
    ]


def _process_target(node: ast.AST) -> ast.expr | None:
    """What a call starts as a process, None if it is no such call (`psutil.Process(pid)` only looks at one)."""
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func).rpartition(".")
    if name[2] == "Process":
        named = next((one.value for one in node.keywords if one.arg == "target"), None)
        return named or (node.args[1] if len(node.args) > 1 else None)
    spawned = name[2] in ("spawn", "start_processes") and name[0].rpartition(".")[2] in ("mp", "multiprocessing")
    return node.args[0] if node.args and (spawned or name[2] == "Popen") else None


def _process_targets(function: FunctionRef) -> list[ast.expr]:
    """What a function starts as processes, also where it is given a local name first."""
    targets = [target for node in ast.walk(function.node) if (target := _process_target(node))]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return targets + [value for name in names for value in _local_values(function, name)]


def _starts_rank(node: ast.AST, function: FunctionRef) -> bool:
    """Whether a node starts a process for one rank, in a function that is not itself what a rank runs."""
    if _process_target(node) is None or not isinstance(node, ast.Call):
        return False
    if {"rank", "local_rank"} & set(_parameters(function.node)):
        return False
    words = {word for one in (*node.args, *node.keywords) for word in _words(one)}
    words |= {inner for word in words for value in _local_values(function, word) for inner in _words(value)}
    return any(_RANK.search(word) for word in words)


def _words(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        for field in ("id", "attr", "arg", "value"):
            word = getattr(one, field, None)
            if isinstance(word, str):
                yield word


def _before(function: ast.AST, call: ast.AST, node: ast.AST | None) -> bool | None:
    """Whether a call has surely run (None: perhaps) when a function comes to a node, or to its end."""
    mine, other = _path_to(function, call), _path_to(function, node) if node else []
    if node is None or not other:
        line = getattr(call, "lineno", 0)
        left = any(isinstance(one, ast.Return) and one.lineno < line for one in ast.walk(function))
        return True if not left and all(_surely(*step) for step in mine[1:]) else None
    same = next((n for n, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), None)
    if same is None:
        return len(mine) > len(other)
    (split, field, place), (_, its, its_place) = mine[same], other[same]
    if (split._fields.index(field), place) > (split._fields.index(its), its_place):
        return False
    if (field, its) == ("body", "orelse") and isinstance(split, ast.If | ast.IfExp):
        return False
    if field in ("cases", "handlers") and its in (field, "orelse"):
        return False
    reached = field == its or (its == "orelse" and isinstance(split, ast.Try)) or _surely(split, field, place)
    return True if reached and all(_surely(*step) for step in mine[same + 1 :]) else None


def _path_to(root: ast.AST, node: ast.AST) -> list[tuple[ast.AST, str, int]]:
    """The nodes from one down to another, each with the field and the place in it that leads on."""
    for field, value in ast.iter_fields(root):
        for place, child in enumerate(value if isinstance(value, list) else [value]):
            if child is node:
                return [(root, field, place)]
            if isinstance(child, ast.AST) and (below := _path_to(child, node)):
                return [(root, field, place), *below]
    return []


def _surely(node: ast.AST, field: str, place: int) -> bool:
    """Whether what is in a field of a node runs whenever the node does, and to its end if the code behind it runs."""
    if isinstance(node, ast.Try):
        last = [handler.body[-1] for handler in node.handlers]
        return field == "finalbody" or (
            field == "body" and all(isinstance(one, ast.Raise | ast.Return) for one in last)
        )
    if isinstance(node, ast.If | ast.IfExp | ast.While | ast.For | ast.AsyncFor | ast.Match):
        return field in ("test", "iter", "subject")
    deferred = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.comprehension
    return not isinstance(node, deferred) and not (isinstance(node, ast.BoolOp) and place)
