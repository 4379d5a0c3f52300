"""Proves a patch by its effect: runs one source file of SGLang in a fresh interpreter, with SGLang itself stubbed.

The whole file is executed as the module it is, so that a rebinding further down, a decorator or a second method of the
same name shows. Only the standard library is real; every other import is a stub (`stubs.py` says how one behaves),
installed or not. Importing SGLang would take seconds and a GPU driver; a run here takes about 0.2 s.
What the code does stays inside its process (`guard.py` says how), but for `os.environ`, the effect that is measured.

Whatever the module raises is part of the result. The only exception of these functions is Surroundings: the interpreter
itself does not work. The bytes of the file are what runs, never its bytecode.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from patcher.sandbox.launch import Answers, ask

__all__ = [
    "Call",
    "CallEffect",
    "Case",
    "DelegationEffect",
    "FunctionEffect",
    "Received",
    "run_delegation",
    "run_function",
    "run_function_cases",
]

_NONE_SET: Mapping[str, object] = MappingProxyType({})
_Interpreter = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Case:
    """One call of a function: the environment that it finds, and the attributes of its argument, as JSON has them."""

    name: str
    env: Mapping[str, str]
    attributes: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class FunctionEffect:
    """What a call did.

    `environment` is `os.environ` after the call; `child_environment` is what a process spawned after it wakes up with,
    None if none was spawned. `set_by_call` is what the call itself added or changed, without what importing the module
    did. `error` is the exception's type, message and place, `output` the tail of what was printed.
    """

    environment: dict[str, str]
    child_environment: dict[str, str] | None
    set_by_call: dict[str, str]
    error: str | None
    output: str


@dataclass(frozen=True)
class Call:
    """One call of a method; arguments are values as JSON has them."""

    method: str
    args: Sequence[object] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Received:
    """One call that the inner object received; arguments as JSON has them, a tuple as a list, an object as its repr."""

    method: str
    args: list[Any]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class CallEffect:
    """What came of one call.

    `defined` says whether the class has the method. `returned` is "same" for the very object that the inner one
    returned during this call, "equal" for its items in another container, "none" for None and "other" for anything else
    (`value` shows it); it is None after an exception, whose type is `error_type`, with message and place in `error`.
    """

    call: Call
    defined: bool
    received: tuple[Received, ...]
    returned: Literal["same", "equal", "none", "other"] | None
    value: str | None
    error_type: str | None
    error: str | None


@dataclass(frozen=True)
class DelegationEffect:
    """What came of the calls, in order. There are none if the module, or making the instance, raised: `error`."""

    calls: tuple[CallEffect, ...]
    error: str | None
    output: str


def run_function(
    source: Path,
    function: str,
    *,
    env: Mapping[str, str],
    attributes: Mapping[str, object] = _NONE_SET,
    spawn: bool = True,
    timeout: float = 60,
    python: _Interpreter = None,
) -> FunctionEffect:
    """Execute the file and call its `function` (or `Class.method`, or a coroutine function) in the environment `env`.

    It gets one argument, with these attributes and sensible ones besides (`stand_in.py`). `timeout` is in seconds.
    Raises Surroundings.
    """
    cases = [Case("", env, attributes)]
    spawned: Literal["first", "none"] = "first" if spawn else "none"
    return run_function_cases(source, function, cases, spawn=spawned, timeout=timeout, python=python)[0]


def run_function_cases(
    source: Path,
    function: str,
    cases: Sequence[Case],
    *,
    spawn: Literal["first", "all", "none"] = "first",
    timeout: float = 60,
    python: _Interpreter = None,
) -> list[FunctionEffect]:
    """`run_function` for several cases in one interpreter; the effects come in the order of the cases.

    The module is executed anew for each, in the case's environment. `spawn` says for which of them a process is spawned
    (about 0.1 s each); `timeout`, in seconds, is for all of them together: those that finished keep their result.
    Raises Surroundings.
    """
    job = {
        "kind": "function",
        "source": str(Path(source).absolute()),
        "function": function,
        "spawn": spawn,
        "cases": [{"env": dict(case.env), "attributes": dict(case.attributes)} for case in cases],
    }
    answers = ask(job, python=python, timeout=timeout)
    return [_function_effect(answers, number) for number in range(len(cases))]


def _function_effect(answers: Answers, number: int) -> FunctionEffect:
    if number >= len(answers.documents):
        return FunctionEffect({}, None, {}, answers.ended, answers.output())
    document = dict(answers.documents[number])
    start, end = document.pop("printed")
    return FunctionEffect(**document, output=answers.output(start, end))


def run_delegation(
    source: Path,
    class_name: str,
    *,
    inner_attribute: str,
    calls: Sequence[Call],
    inner: Literal["recording", "none", "missing", "without-methods"] = "recording",
    timeout: float = 60,
    python: _Interpreter = None,
) -> DelegationEffect:
    """Execute the file, make an instance of its class without `__init__`, and perform the calls on it.

    `inner` says what the instance has in `inner_attribute`: an object that has every method and records what it
    receives, None, nothing, or an object without methods. `timeout` is in seconds. Raises Surroundings.
    """
    job = {
        "kind": "delegation",
        "source": str(Path(source).absolute()),
        "class_name": class_name,
        "inner_attribute": inner_attribute,
        "inner": inner,
        "calls": [{"method": call.method, "args": list(call.args), "kwargs": dict(call.kwargs)} for call in calls],
    }
    answers = ask(job, python=python, timeout=timeout)
    if not answers.documents:
        return DelegationEffect((), answers.ended, answers.output())
    (document,) = answers.documents
    outcomes = zip(calls, document["calls"], strict=False)
    effects = tuple(_call_effect(call, outcome) for call, outcome in outcomes)
    return DelegationEffect(effects, document["error"], answers.output())


def _call_effect(call: Call, outcome: Mapping[str, Any]) -> CallEffect:
    return CallEffect(
        call=call,
        defined=outcome["defined"],
        received=tuple(Received(**received) for received in outcome["received"]),
        returned=outcome["returned"],
        value=outcome.get("value"),
        error_type=outcome.get("error_type"),
        error=outcome["error"],
    )
