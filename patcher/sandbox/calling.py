"""The child's side of `run_function_cases`: execute the module, call the function, report the environment.

Every case executes the module anew, in the environment of the case: neither a global that the module keeps nor what
importing it sets reaches the next case.

Runs in the child: standard library only.
"""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from patcher.sandbox.execution import described, execute, flush_output, stubbed_imports
from patcher.sandbox.guard import guarded
from patcher.sandbox.stand_in import stand_in
from patcher.sandbox.stubs import Stub

SPAWN_SECONDS = 30
_environ = os.environ
_started_with = dict(os.environ)
_output_fd = os.dup(1)


def perform(job: Mapping[str, Any], report: Callable[[object], None], send_environment: Callable[..., None]) -> None:
    """Run each case of the job and report it."""
    source, spawn = Path(job["source"]), job["spawn"]
    with stubbed_imports():
        for number, case in enumerate(job["cases"]):
            start = _printed()
            effect = _effect(source, job["function"], case)
            if spawn == "all" or (spawn == "first" and number == 0):
                effect["child_environment"], problem = _spawned(send_environment)
                effect["error"] = effect["error"] or problem
            effect["printed"] = [start, _printed()]
            report(effect)


def _effect(source: Path, function: str, case: Mapping[str, Any]) -> dict[str, Any]:
    before: dict[str, str] | None = None
    error = None
    try:
        _reset_environment(case["env"])
        with guarded(source.read_bytes()):
            call = _bound(execute(source), function)
            before = dict(os.environ)
            _finish(call(stand_in(case["attributes"])))
    except BaseException as problem:  # noqa: BLE001 (whatever the module raises is the result)
        error = described(problem, source)
    after = _environment_now()
    known = after if before is None else before
    set_by_call = {name: value for name, value in after.items() if known.get(name) != value}
    return {"environment": after, "child_environment": None, "set_by_call": set_by_call, "error": error}


def _reset_environment(env: Mapping[str, str]) -> None:
    os.environ = _environ  # noqa: B003 (undoes a rebinding by the module)
    os.environ.clear()
    os.environ.update(env)


def _environment_now() -> dict[str, str]:
    """What the code sees in `os.environ`, also where it bound that name to a mapping of its own."""
    try:
        return {str(name): str(value) for name, value in dict(os.environ).items()}
    except Exception:  # noqa: BLE001 (the module put something there that is no mapping)
        return dict(_environ)


def _finish(result: object) -> None:
    """Run the function to its end where a call only made a coroutine."""
    if inspect.iscoroutine(result):
        import asyncio

        asyncio.run(result)


def _bound(module: types.ModuleType, function: str) -> Callable[..., object]:
    """What `function` means at the end of the module: a module-level name, or `Class.method` with a `self` made up."""
    *owners, name = function.split(".")
    holder: Any = module
    for owner in owners:
        holder = getattr(holder, owner)
    if isinstance(holder, type):
        return _method(holder, name)
    try:
        found = vars(holder)[name]
    except (KeyError, TypeError):
        raise NameError(f"{function} is not there once the module is executed") from None
    if isinstance(found, Stub):
        raise NameError(f"{function} is not defined in this file; the name stands for {found!r}")
    call: Callable[..., object] = found
    return call


def _method(owner: type, name: str) -> Callable[..., object]:
    raw = inspect.getattr_static(owner, name)
    if not isinstance(raw, types.FunctionType):
        bound: Callable[..., object] = getattr(owner, name)
        return bound
    return types.MethodType(raw, _made_up(owner))


def _made_up(owner: type) -> object:
    """An instance without `__init__`; what it lacks is a stub."""

    def missing(self: object, name: str) -> Stub:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(f"self.{name}")

    body = {"__getattr__": missing, "__module__": owner.__module__, "__qualname__": owner.__qualname__}
    try:
        permissive = type(owner)(owner.__name__, (owner,), body)
        if inspect.isabstract(permissive):
            permissive.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
        return object.__new__(permissive)
    except TypeError:
        return Stub("self")


def _spawned(send_environment: Callable[..., None]) -> tuple[dict[str, str] | None, str | None]:
    """The environment that a really spawned process of this one wakes up with, or why there is none.

    What this interpreter needed to start, or set itself when it did (LC_CTYPE, PEP 538), is lent and not reported.
    """
    import multiprocessing

    lent = {name: value for name, value in _started_with.items() if name not in _environ}
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    try:
        process = context.Process(target=send_environment, args=(sender,), daemon=True)
        _environ.update(lent)
        process.start()
        for name in lent:
            del _environ[name]
        sender.close()
        found: dict[str, str] | None = receiver.recv() if receiver.poll(SPAWN_SECONDS) else None
        process.kill()  # it has nothing left to do
        process.join(SPAWN_SECONDS)
    except (EOFError, OSError) as problem:
        return None, f"the spawned process did not report its environment: {problem or type(problem).__name__}"
    if found is None:
        return None, f"the spawned process did not report its environment within {SPAWN_SECONDS} s"
    return {name: value for name, value in found.items() if name not in lent}, None


def _printed() -> int:
    """How many bytes this process has printed so far; its stdout and stderr are one file."""
    flush_output()
    return os.fstat(_output_fd).st_size
