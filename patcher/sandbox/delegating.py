"""The child's side of `run_delegation`: an instance with a recording object inside, and what comes of each call on it.

Runs in the child: standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from patcher.sandbox.execution import described, execute, flush_output, stubbed_imports
from patcher.sandbox.guard import guarded
from patcher.sandbox.stubs import STRICT, Stub, StubBase


class Token(tuple[object, object]):
    """What a method of the recording object returns: a pair, so that it can be unpacked, equal to no other."""

    __slots__ = ()

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Recording:
    """Has every method, and keeps what each was called with and what it returned."""

    def __init__(self) -> None:
        self._received: list[dict[str, Any]] = []
        self._returned: list[Token] = []

    def __getattr__(self, name: str) -> Callable[..., Token]:
        if name.startswith("__"):
            raise AttributeError(name)

        def record(*args: object, **kwargs: object) -> Token:
            self._received.append({"method": name, "args": _plain(args), "kwargs": _plain(kwargs)})
            self._returned.append(Token((object(), object())))
            return self._returned[-1]

        return record


class WithoutMethods:
    """An inner model that has none of the methods."""


def perform(job: Mapping[str, Any], report: Callable[[object], None], send_environment: object) -> None:
    """Make the instance, perform each call, report them all."""
    source = Path(job["source"])
    inner = {"recording": Recording, "without-methods": WithoutMethods}.get(job["inner"], lambda: None)()
    answer: dict[str, Any] = {"calls": [], "error": None}
    with stubbed_imports():
        try:
            with guarded(source.read_bytes()):
                instance = _instance(vars(execute(source)), job["class_name"])
                if job["inner"] != "missing":
                    setattr(instance, job["inner_attribute"], inner)
                answer["calls"] = [_outcome(instance, inner, call, source) for call in job["calls"]]
        except BaseException as problem:  # noqa: BLE001 (whatever the module raises is the result)
            answer["error"] = described(problem, source)
    flush_output()
    report(answer)


def _instance(module: Mapping[str, Any], class_name: str) -> object:
    """An instance of what the name means at the end of the module, without `__init__`; unset attributes are errors."""
    owner = module.get(class_name)
    if isinstance(owner, Stub) or owner is None:
        raise NameError(f"{class_name} is not a class of this file: {owner!r} once the module is executed")
    instance: object = object.__new__(owner)
    if isinstance(instance, StubBase):
        vars(instance)[STRICT] = True
    return instance


def _outcome(instance: object, inner: object, call: Mapping[str, Any], source: Path) -> dict[str, Any]:
    received = inner._received if isinstance(inner, Recording) else []
    already = len(received)
    outcome: dict[str, Any] = {"defined": hasattr(type(instance), call["method"]), "returned": None, "error": None}
    try:
        value = getattr(instance, call["method"])(*call["args"], **call["kwargs"])
    except BaseException as problem:  # noqa: BLE001 (whatever the method raises is the result)
        outcome["error"] = described(problem, source)
        outcome["error_type"] = type(problem).__name__
    else:
        tokens = inner._returned[already:] if isinstance(inner, Recording) else []
        outcome["returned"] = _kind(value, tokens)
        outcome["value"] = repr(value)[:200]
    outcome["received"] = received[already:]
    return outcome


def _kind(value: object, tokens: list[Token]) -> str:
    if value is None:
        return "none"
    if any(value is token for token in tokens):
        return "same"
    if isinstance(value, (tuple, list)) and any([*value] == [*token] for token in tokens):
        return "equal"
    return "other"


def _plain(value: Any) -> Any:
    """The value as JSON has it, with a text for what JSON has not."""
    return json.loads(json.dumps(value, default=repr, skipkeys=True))
