"""The ways in which an SGLang tree starts processes that use NCCL, and whether each passes through a function first.

Everything is found in the source: a statement that starts a process for one rank, and the calls that lead to it.
Followed are calls by name, imports across modules, `self.x`, `cls.x` and base classes, functions handed to threads, and
started processes, which inherit the environment. Not followed are callables in attributes or containers and other
distributions; what depends on them is told as unknown.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from patcher.source import syntax
from patcher.target import Target
from patcher.wrappers.classes import lineage, methods
from patcher.wrappers.modules import ClassRef, FunctionRef, Import
from patcher.wrappers.statements import Function, assignments, inside
from patcher.wrappers.tree import Package, Tree

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
_NOT_SERVED = re.compile(r"(^|/)(\.|tests?/|test_\w*\.py$|unit_test\.py$)")
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


def launch_paths(target: Target, function: str = "_set_envs_and_config", file: str | None = None) -> list[LaunchPath]:
    """The ways in which this tree starts workers, and whether each calls `function` (of `file`, or found) before."""
    calls = _Calls(target)
    ways = _Ways(calls, calls.defined(function, file), function)
    found = [*ways.processes(), *ways.actors(), *ways.elsewhere()]
    return sorted(found, key=lambda way: (way.name, way.file, way.line, str(way.covered)))


@dataclass(frozen=True)
class _Mention:
    """Something is named at a node: to `call` it, to start a `thread` or a `process` with it, or to `hand` it on."""

    function: FunctionRef
    node: ast.expr
    how: str


@dataclass(frozen=True)
class _Use(_Mention):
    """A mention that is known to mean `used`; `receiver` is the class that a method is looked up in, if it is named."""

    used: FunctionRef
    receiver: ClassRef | None

    @property
    def where(self) -> str:
        """Its place, as `file:line`."""
        return self.function.module.at(self.node)


class _Calls:
    """The functions of a tree and who uses whom, each looked up when first asked for."""

    def __init__(self, target: Target) -> None:
        self.texts = dict(_texts(target.path))
        self.tree = Tree(self.texts.get)
        self._functions: dict[str, list[FunctionRef]] = {}
        self._mentions: dict[str, dict[str, list[_Mention]]] = {}
        self._uses: dict[ast.AST, list[_Use]] = {}

    def functions(self, path: str) -> list[FunctionRef]:
        """The functions and methods of a file, and what it does as a script as a function `__main__`."""
        if path not in self._functions:
            module = self.tree.module(path)
            bound = [one for names in module.names.values() for one in names] if module else []
            found = [one for one in bound if isinstance(one, FunctionRef)]
            found += [one for cls in bound if isinstance(cls, ClassRef) for one in methods(cls)]
            script = _script(self.texts[path]) if b"__main__" in self.texts[path] else None
            self._functions[path] = [*found, FunctionRef(module, script)] if module and script else found
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
            if values := _local_values(function, node.id):
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

    def uses(self, used: FunctionRef) -> list[_Use]:
        """Where the functions of the tree use one, also by the name that it overrides in a base."""
        if used.node not in self._uses:
            found = list(self._find_uses(used))
            above = used.owner and used.node.name != "__init__" and self.method(used.owner, used.node.name, above=True)
            self._uses[used.node] = found + (self.uses(above) if above else [])
        return self._uses[used.node]

    def _find_uses(self, used: FunctionRef) -> Iterator[_Use]:
        constructor = used.owner if used.node.name == "__init__" else None
        name, stem = (constructor or used.node).name, Path(used.module.path).stem
        imported = re.compile(rf"\b{stem} import\b|\bimport\b.*\b{stem}\b".encode())
        for path, text in self.texts.items():
            if name.encode() not in text or not (path == used.module.path or imported.search(text)):
                continue
            for one in self.mentions(path).get(name, ()):
                if constructor and one.how != "call":
                    continue
                if any(meant.node is used.node for meant in self.meant(one.node, one.function)):
                    receiver = next(iter(self.classes(one.node, one.function)), None)
                    yield _Use(one.function, one.node, one.how, used, receiver)

    def mentions(self, path: str) -> dict[str, list[_Mention]]:
        """What the functions of a file mention, by the name that it was defined under."""
        if path not in self._mentions:
            self._mentions[path] = {}
            for function in self.functions(path):
                for name, mention in _mentions(function):
                    self._mentions[path].setdefault(name, []).append(mention)
        return self._mentions[path]


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


class _Ways:
    """Climbs from what starts workers to the functions that others call, and looks for the asked one on the way."""

    def __init__(self, calls: _Calls, asked: FunctionRef | None, name: str) -> None:
        self.calls = calls
        self.asked = asked
        self.name = name
        self.passing: dict[ast.AST, list[_Use]] = {}
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
            order = _before(function.node, use.node, node)
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
        target = _process_target(node)
        if target is None or {"rank", "local_rank"} & {*_parameters(function.node)}:
            return False
        told = [*node.args, *(word.value for word in node.keywords)]
        named = [one.id for value in told for one in ast.walk(value) if isinstance(one, ast.Name)]
        told += [value for name in named for value in _local_values(function, name)]
        words = {word for value in told for word in _words(value)}
        words |= {name for one in self.calls.meant(target, function) for name in _parameters(one.node)}
        return any(_RANK.search(word) for word in words) or ast.unparse(node.func).endswith(
            ("spawn", "start_processes")
        )

    def _within(self, node: ast.Call, function: FunctionRef) -> _Passed:
        """Whether a worker calls the asked function itself; whether that is early enough cannot be told."""
        target = _process_target(node)
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
            lost = callers or (not self.calls.uses(function) and (function.owner or _is_private(function)))
            if passed.covered is False:
                unknown = _Passed(None, f"what calls {_shown(function)} is not found")
                passed = unknown if lost else self._above(function, _DEEPEST_ABOVE)
            yield replace(start, passed=passed)
            return
        for use in callers:
            if self._reaches(use, (*trail, function)):
                up = replace(start, child_at=start.child_at or use.where) if use.how == "process" else start
                if use.how == "hand" and passed.covered is False:
                    up = replace(up, passed=_Passed(None, f"{_shown(function)} is handed on at {use.where}"))
                yield from self._climb(use.function, use.node, up, (*trail, function))

    def _callers(self, function: FunctionRef) -> list[_Use]:
        """The uses of a function that is only a step of a way: private, used next to itself, or only as a process."""
        uses = self.calls.uses(function)
        direct = [use for use in uses if use.how != "process"]
        own = any(use.function.module is function.module and use.function.node.name != "__main__" for use in direct)
        return direct or uses if own or not direct or _is_private(function) else []

    def _reaches(self, use: _Use, trail: tuple[FunctionRef, ...]) -> bool:
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
                        if first and any(_RANK.search(name) for name in _parameters(first.node)):
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
            for node in ast.walk(function.node) if "server_args" in _parameters(function.node) else ():
                if isinstance(node, ast.ImportFrom) and not node.level and _ELSEWHERE.match(node.module or ""):
                    at = function.module.at(node)
                    yield _path(
                        function, None, f"{node.module} (imported at {at}) starts the workers, outside of this tree"
                    )


def _path(owner: FunctionRef, covered: bool | None, reason: str, name: str | None = None) -> LaunchPath:
    label = f"{owner.module.path} {_shown(owner)}"
    name = name or next((name for pattern, name in _NAMES if re.search(pattern, label)), _shown(owner))
    return LaunchPath(name, owner.module.path, owner.node.lineno, covered, reason)


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


def _shown(function: FunctionRef) -> str:
    return f"{function.owner.name}.{function.node.name}" if function.owner else function.node.name


def _is_private(function: FunctionRef) -> bool:
    return function.node.name.startswith("_") and not function.node.name.endswith("__")


def _parameters(function: Function) -> list[str]:
    return [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _local_values(function: FunctionRef, name: str) -> list[ast.expr]:
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


def _mentions(function: FunctionRef) -> Iterator[tuple[str, _Mention]]:
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
            if target := _process_target(node):
                local = _local_values(function, target.id) if isinstance(target, ast.Name) else []
                how |= {id(one): "process" for one in (target, *local)}
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and how.get(id(node), "hand"):
            name = names.get(node.id, node.id) if isinstance(node, ast.Name) else node.attr
            yield name, _Mention(function, node, how.get(id(node), "hand"))


def _process_target(node: ast.Call) -> ast.expr | None:
    """What a call starts as a process, None if it is no such call (`psutil.Process(pid)` only looks at one)."""
    owner, _, name = ast.unparse(node.func).rpartition(".")
    if name == "Process":
        named = next((one.value for one in node.keywords if one.arg == "target"), None)
        return named or (node.args[1] if len(node.args) > 1 else None)
    spawned = name in ("spawn", "start_processes") and owner.rpartition(".")[2] in ("mp", "multiprocessing")
    return node.args[0] if node.args and (spawned or name == "Popen") else None


def _words(node: ast.AST) -> Iterator[str]:
    """The names and the texts in an expression."""
    for one in ast.walk(node):
        for field in ("id", "attr", "arg", "value"):
            if isinstance(word := getattr(one, field, None), str):
                yield word


def _before(function: ast.AST, call: ast.AST, node: ast.AST | None) -> bool | None:
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
