"""What a patch is: plain frozen data, and the few values that flow between a patch and the engine."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from patcher.errors import UsageError
from patcher.probe import Probe

if TYPE_CHECKING:
    from patcher.source import Source
    from patcher.target import Target

Params: TypeAlias = Mapping[str, str]
NO_PARAMS: Params = MappingProxyType({})


class State(str, Enum):
    """The state of one patch on one target, proved from the target's bytes."""

    APPLIED = "applied"
    UPSTREAM = "upstream"
    NOT_APPLIED = "not-applied"
    ABSENT = "absent"
    OUTDATED = "outdated"
    DRIFTED = "drifted"
    LOST = "lost"
    PARTIAL = "partial"
    CONFLICT = "conflict"

    __str__ = str.__str__

    def in_place(self, *, by_name: bool) -> bool:
        """Whether this counts as in place; `absent` does only for a patch that nobody asked for by name."""
        return self in (State.APPLIED, State.UPSTREAM) or (self is State.ABSENT and not by_name)


@dataclass(frozen=True)
class Rewritten:
    """A transform's outcome: it fits, and this is the new source."""

    source: Source


@dataclass(frozen=True)
class Finding:
    """A transform's outcome: there is nothing to do, or nothing that can be done.

    `state` is one of upstream, absent, partial and conflict. `reason` is one sentence; `line` counts from 1; `expected`
    and `found` say what was looked for and what was there instead.
    """

    state: State
    reason: str
    line: int | None = None
    expected: str | None = None
    found: str | None = None
    path: str | None = None
    hint: str | None = None


Outcome: TypeAlias = Rewritten | Finding
Rewrite: TypeAlias = Callable[["Source", Params], Outcome]


@dataclass(frozen=True)
class Edit:
    """One file of the target and one transform.

    `paths` are the places where the file can be, relative to the `sglang` package, newest layout first. With `anchor`,
    a text that the right file must contain, a file that upstream moved elsewhere is still found. `missing` is what to
    say where there is no such file.
    """

    paths: tuple[str, ...]
    rewrite: Rewrite
    anchor: str | None = None
    missing: str | None = None


@dataclass(frozen=True)
class Profile:
    """A named set of parameters."""

    summary: str
    params: Params


@dataclass(frozen=True)
class Example:
    """A module before and after the patch: documentation that is run as a test.

    `after` is the rewritten module, or the state that is found instead.
    """

    name: str
    before: str
    after: str | State
    params: Params = field(default_factory=dict)
    path: str | None = None


@dataclass(frozen=True)
class Candidate:
    """One place that a family of patches could be applied to: the name to give, what it is, a verdict, the reason."""

    name: str
    title: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class Family:
    """A patch for one of several places, each an instance with a state of its own, called `id:name`.

    `parameter` is the one whose value names an instance; `instance(target, name)` makes its patch, and
    `candidates(target)` lists the places of a target, those that fit first.
    """

    parameter: str
    instance: Callable[[Target, str], Patch]
    candidates: Callable[[Target], Sequence[Candidate]]


def _no_probes(params: Params) -> Sequence[Probe]:
    return ()


def _no_notices(params: Params, environ: Mapping[str, str]) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Patch:
    """An id, a revision, what it is for, its parameters and its edits.

    `revision` grows whenever the code that a patch inserts changes. `check_parameter(name, value)` returns None, or a
    sentence naming the parameter and why it is refused; without it the patch takes no parameters. A parameter set to
    the empty string is left out.
    `notices(params, environ)` returns warnings for the machine that it is applied on, `probes(params)` what `verify`
    runs. `function` is one that workers must pass through for the patch to reach them, if there is such a one: the ways
    of starting workers are judged by it. `fixed` are parameters that cannot be changed. A patch with a `family` is
    never applied itself, its instances are. `releases` is a PEP 440 specifier of the SGLang releases that it is meant
    for; it informs, the source decides.
    """

    id: str
    revision: int
    summary: str
    why: str
    edits: tuple[Edit, ...]
    upstream: str = ""
    retire: str = ""
    releases: str = ""
    limits: tuple[str, ...] = ()
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    default_profile: str | None = None
    check_parameter: Callable[[str, str], str | None] | None = None
    notices: Callable[[Params, Mapping[str, str]], Sequence[str]] = _no_notices
    probes: Callable[[Params], Sequence[Probe]] = _no_probes
    function: str | None = None
    examples: tuple[Example, ...] = ()
    fixed: Params = field(default_factory=dict)
    family: Family | None = None

    def resolve(self, profile: str | None, overrides: Params) -> tuple[str | None, Params]:
        """The profile that is meant and the parameters that it makes with `overrides`, sorted by name.

        Raises UsageError for an unknown profile, an unknown parameter or a bad value.
        """
        name = profile or self.default_profile
        if profile and profile not in self.profiles:
            known = ", ".join(self.profiles) or "none"
            raise UsageError(
                f"{self.id} has no profile {profile!r}{did_you_mean(profile, self.profiles)}",
                expected=f"one of: {known}",
                hint=f"sglang-patch show {self.id}",
            )
        params = {**self.fixed, **(self.profiles[name].params if name else {})}
        for key, value in overrides.items():
            self._check(key, value)
            params[key] = value
        return name, {key: params[key] for key in sorted(params) if params[key] != ""}

    def _check(self, key: str, value: str) -> None:
        if self.check_parameter is None:
            raise UsageError(
                f"{self.id} takes no parameters, but {key}={value!r} was set", hint=f"sglang-patch show {self.id}"
            )
        refusal = self.check_parameter(key, value)
        if refusal:
            raise UsageError(f"{self.id}: {refusal}", hint=f"sglang-patch show {self.id}")


def did_you_mean(word: str, known: Mapping[str, object] | Sequence[str]) -> str:
    """A clause naming the near misses of `word` among `known`, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else ""
