"""Climb from what starts workers to the functions that others call, and look for the asked one on the way."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from patcher.launchers.calls import Calls, Use, is_private, local_values, parameters, process_target, shown, words
from patcher.launchers.order import before
from patcher.wrappers.classes import lineage
from patcher.wrappers.modules import ClassRef, FunctionRef

# What a way is called, by the file and name of its function; one that none of these fits is called by that name.
_NAMES = (
    (r"^multimodal_gen/", "multimodal_gen server"),
    (r"/ray/.* launch_server$", "HTTP server with Ray"),
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
_RANK = re.compile(r"(?:^|[_-])(?:rank|gpu[_-]ids?)$")

_ELSEWHERE = re.compile(r"(?!sglang\.)[\w.]+\.sglang(\.|$)")

_DEEPEST = 12

_DEEPEST_ABOVE = 6


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


@dataclass(frozen=True)
class _Passed:
    """Whether the asked function has been called, None if that cannot be told, and what shows it."""

    covered: bool | None = False
    evidence: str = ""


@dataclass(frozen=True)
class _Start:
    """Workers are started at `site` by `owner`, itself started as a process at `child_at` unless that is empty."""

    owner: FunctionRef
    site: str
    passed: _Passed = _Passed()
    child_at: str = ""


class Ways:
    """Climbs from what starts workers to the functions that others call, and looks for the asked one on the way."""

    def __init__(self, calls: Calls, asked: FunctionRef | None, name: str) -> None:
        self.calls = calls
        self.asked = asked
        self.name = name
        self.passing: dict[ast.AST, list[Use]] = {}
        level = [asked] if asked else []
        for _ in range(_DEEPEST):
            uses = [use for one in level for use in calls.uses(one) if use.how == "call"]
            level = [use.function for use in uses if use.function.node not in self.passing]
            for use in uses:
                self.passing.setdefault(use.function.node, []).append(use)

    def passes(self, function: FunctionRef, node: ast.AST | None, trail: tuple[ast.AST, ...] = ()) -> _Passed:
        """Whether a function has called the asked one before it comes to a node, or to its end."""
        found = _Passed()
        for use in self.passing.get(function.node, ()) if function.node not in trail else ():
            order = before(function.node, use.node, node)
            inner = _Passed(True, f"{self.name} is called at {use.where}")
            if order is not False and use.used is not self.asked:
                inner = self.passes(use.used, None, (*trail, function.node))
            if order and inner.covered:
                return inner
            if order is not False and inner.covered is not False:
                found = _Passed(None, f"{inner.evidence}, but perhaps not always")
        return found

    def processes(self) -> Iterator[LaunchPath]:
        """The ways that start workers as processes of this machine."""
        starts: dict[tuple[ast.AST, bool | None], list[_Start]] = {}
        for function in self.calls.containing(b"Process(", b"Popen(", b"spawn("):
            for node in ast.walk(function.node):
                if isinstance(node, ast.Call) and self._starts_rank(node, function):
                    first = _Start(function, function.module.at(node), self._within(node, function))
                    for start in self._climb(function, node, first, ()):
                        starts.setdefault((start.owner.node, start.passed.covered), []).append(start)
        return (self._way(group) for group in starts.values())

    def _starts_rank(self, node: ast.Call, function: FunctionRef) -> bool:
        """Whether a call starts a process for one rank, in a function that is not itself what a rank runs."""
        target = process_target(node)
        if target is None or {"rank", "local_rank"} & {*parameters(function.node)}:
            return False
        told = [*node.args, *(word.value for word in node.keywords)]
        named = [one.id for value in told for one in ast.walk(value) if isinstance(one, ast.Name)]
        told += [value for name in named for value in local_values(function, name)]
        said = {word for value in told for word in words(value)}
        said |= {name for one in self.calls.meant(target, function) for name in parameters(one.node)}
        return any(_RANK.search(word) for word in said) or ast.unparse(node.func).endswith(("spawn", "start_processes"))

    def _within(self, node: ast.Call, function: FunctionRef) -> _Passed:
        """Whether a worker calls the asked function itself; whether that is early enough cannot be told."""
        target = process_target(node)
        meant = self.calls.meant(target, function) if target else []
        late = [inner for one in meant if (inner := self.passes(one, None)).covered is not False]
        return _Passed(None, f"{late[0].evidence} in the worker itself, perhaps too late") if late else _Passed()

    def _climb(
        self, function: FunctionRef, node: ast.AST, start: _Start, trail: tuple[FunctionRef, ...]
    ) -> Iterator[_Start]:
        """The starts that lead to a node of a function, each by a function that is there for others to call."""
        passed = start.passed if start.passed.covered else self.passes(function, node)
        passed = start.passed if passed.covered is False else passed
        start = replace(start, passed=passed, owner=start.owner if start.child_at else function)
        callers = self._callers(function)
        if not callers or len(trail) == _DEEPEST or any(one.node is function.node for one in trail):
            lost = callers or (not self.calls.uses(function) and (function.owner or is_private(function)))
            if passed.covered is False:
                unknown = _Passed(None, f"what calls {shown(function)} is not found")
                passed = unknown if lost else self._above(function, _DEEPEST_ABOVE)
            yield replace(start, passed=passed)
            return
        for use in callers:
            if self._reaches(use, (*trail, function)):
                up = replace(start, child_at=start.child_at or use.where) if use.how == "process" else start
                if use.how == "hand" and passed.covered is False:
                    up = replace(up, passed=_Passed(None, f"{shown(function)} is handed on at {use.where}"))
                yield from self._climb(use.function, use.node, up, (*trail, function))

    def _callers(self, function: FunctionRef) -> list[Use]:
        """The uses of a function that is only a step of a way: private, used next to itself, or only as a process."""
        uses = self.calls.uses(function)
        direct = [use for use in uses if use.how != "process"]
        own = any(use.function.module is function.module and use.function.node.name != "__main__" for use in direct)
        return direct or uses if own or not direct or is_private(function) else []

    def _reaches(self, use: Use, trail: tuple[FunctionRef, ...]) -> bool:
        """Whether the object that is used leads through these methods, none of which its class has another of."""
        cls = use.receiver or (use.function.owner if use.function.owner is not use.used.owner else None)
        if cls is None:
            return True
        family = lineage(self.calls.tree, cls).classes
        for one in trail:
            if one.owner and one.node.name != "__init__":
                below = use.receiver and cls in lineage(self.calls.tree, one.owner).classes
                its = self.calls.method(cls, one.node.name) if one.owner in family or below else one
                if its is None or its.node is not one.node:
                    return False
        return True

    def _way(self, starts: list[_Start]) -> LaunchPath:
        owner, passed = starts[0].owner, starts[0].passed
        sites = ", ".join(dict.fromkeys(start.site for start in starts))
        children = ", ".join(dict.fromkeys(start.child_at for start in starts if start.child_at))
        never = f"{self.name} is not called before that" if self.asked else f"there is no {self.name} in this tree"
        evidence = f"{passed.evidence} before that" if passed.covered else passed.evidence or never
        started = f", in a process that is started at {children} and inherits its environment" if children else ""
        return _path(owner, passed.covered, f"workers are started at {sites}{started}; {evidence}")

    def _above(self, function: FunctionRef, depth: int) -> _Passed:
        """Whether what calls a function, further up too, has called the asked one: always, never, or now and then."""
        found: list[_Passed] = []
        for use in self.calls.uses(function) if depth else ():
            passed = self.passes(use.function, use.node)
            found.append(passed if passed.covered else self._above(use.function, depth - 1))
        passing = [one for one in found if one.covered is not False]
        if not passing or all(one.covered for one in found):
            return passing[0] if passing else _Passed()
        return _Passed(None, f"{passing[0].evidence} before that, but not on every way that leads there")

    def actors(self) -> Iterator[LaunchPath]:
        """The ways that start workers as Ray actors, in processes of Ray that do not get the driver's environment."""
        for function in self.calls.containing(b".remote("):
            for node in ast.walk(function.node):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "remote":
                    for cls in self.calls.classes(node.func, function):
                        first = self.calls.method(cls, "__init__")
                        if first and any(_RANK.search(name) for name in parameters(first.node)):
                            yield self._actor(function, node, cls, self.passes(first, None))

    def _actor(self, function: FunctionRef, node: ast.Call, cls: ClassRef, within: _Passed) -> LaunchPath:
        covered: bool | None = False
        evidence = f"Ray's processes do not inherit what the driver sets, and {self.name} is not called in them"
        if within.covered is not False:
            covered, evidence = None, f"{within.evidence} in the actor itself, perhaps too late"
        elif "runtime_env" in ast.unparse(node):
            covered, evidence = None, "they get an environment of their own (runtime_env)"
        started = f"workers are started at {function.module.at(node)} as Ray actors ({cls.where})"
        return _path(function, covered, f"{started}; {evidence}", "Ray actors")

    def elsewhere(self) -> Iterator[LaunchPath]:
        """The ways that hand the server's arguments to a package for SGLang that is not part of it."""
        for function in self.calls.containing(b".sglang"):
            for node in ast.walk(function.node) if "server_args" in parameters(function.node) else ():
                if isinstance(node, ast.ImportFrom) and not node.level and _ELSEWHERE.match(node.module or ""):
                    at = function.module.at(node)
                    yield _path(
                        function, None, f"{node.module} (imported at {at}) starts the workers, outside of this tree"
                    )


def _path(owner: FunctionRef, covered: bool | None, reason: str, name: str | None = None) -> LaunchPath:
    label = f"{owner.module.path} {shown(owner)}"
    name = name or next((name for pattern, name in _NAMES if re.search(pattern, label)), shown(owner))
    return LaunchPath(name, owner.module.path, owner.node.lineno, covered, reason)
