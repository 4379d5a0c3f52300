"""What is said about one patch on one target: its status, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from patcher.errors import UsageError
from patcher.hunks import Hunk, find, in_its_place
from patcher.manifest import Application
from patcher.patch import Finding, Params, Patch, State


@dataclass(frozen=True)
class PatchStatus:
    """One patch on one target.

    `revision`, `profile` and `params` are what is applied, or for a patch that is not, what would be; `overrides` are
    the parameters that were chosen otherwise than the profile has them. `reason` is one sentence; `where` a path of the
    target with a line; `expected` and `found` the texts that differ. `files` are the patched files with the sha256
    (hexadecimal) of their bytes now. `no_place` says of a lost patch that this SGLang has no place for it.
    """

    id: str
    state: State
    revision: int
    summary: str
    profile: str | None = None
    params: Params = field(default_factory=dict)
    overrides: Params = field(default_factory=dict)
    reason: str | None = None
    where: str | None = None
    expected: str | None = None
    found: str | None = None
    hint: str | None = None
    files: tuple[tuple[str, str], ...] = ()
    no_place: bool = False


REPAIR = "sglang-patch repair"


def advice(patch: Patch, finding: Finding) -> str | None:
    """What to type about a patch that cannot be applied, where its transform does not say."""
    family, _, instance = patch.id.partition(":")
    if instance:
        return f"sglang-patch show {family}   # lists the names that fit"
    if finding.state is State.CONFLICT:
        return f"sglang-patch show {patch.id}, and change the file there, or apply the other patches by name"
    if finding.state is State.ABSENT:
        return f"sglang-patch show {patch.id}   # says which releases it is for"
    return None


def in_place(known: PatchStatus, application: Application, patch: Patch | None, params: Params | None) -> PatchStatus:
    """The status of a recorded patch that is whole: applied, or outdated."""
    if patch is None:
        return replace(known, reason="this catalog does not have it; it can still be reverted")
    if application.revision > patch.revision:
        return replace(known, reason=f"revision {application.revision} is newer than this catalog's {patch.revision}")
    try:
        wanted = patch.resolve(application.profile, application.overrides)[1] if params is None else params
    except UsageError as error:
        return replace(known, state=State.OUTDATED, reason=error.message, hint=f"sglang-patch show {known.id}")
    apply = f"sglang-patch apply {known.id}"
    if application.revision < patch.revision:
        reason = f"revision {application.revision} is applied, {patch.revision} is current"
        return replace(known, state=State.OUTDATED, reason=reason, hint=apply)
    if dict(wanted) != dict(application.params):
        reason = f"other parameters are applied: {_difference(application.params, wanted)}"
        return replace(known, state=State.OUTDATED, reason=reason, hint=apply)
    return known


def _difference(applied: Params, wanted: Params) -> str:
    names = sorted(name for name in {*applied, *wanted} if applied.get(name) != wanted.get(name))
    return ", ".join(f"{name}={applied.get(name, '(unset)')}, wanted {wanted.get(name, '(unset)')}" for name in names)


def first_difference(data: bytes, hunk: Hunk) -> tuple[int | None, str, str | None]:
    """Where a file first departs from a hunk that it should contain: line, the expected line, the line found.

    The line found is None where nothing of the hunk is left.
    """
    lines, wanted = data.splitlines(), hunk.after.splitlines()
    own = [line for line in wanted if line.strip() and line not in hunk.before.splitlines()]
    starts = [number - wanted.index(own[0]) for number, line in enumerate(lines) if own and line == own[0]]
    if not starts:
        there = in_its_place(data, hunk)
        expected = _shown(own[0] if own else b"")
        return (there[0], expected, _shown(there[1])) if there else (None, expected, None)

    def likeness(at: int) -> tuple[int, int]:
        """How many of the hunk's lines are there, and how near it is to where they were."""
        there = sum(0 <= at + n < len(lines) and lines[at + n] == line for n, line in enumerate(wanted))
        return there, -abs(at + 1 - hunk.line)

    first = max(starts, key=likeness)
    for n, line in enumerate(wanted):
        now = lines[first + n] if 0 <= first + n < len(lines) else b""
        if now != line:
            return first + n + 1, _shown(line), _shown(now)
    if hunk.closed and find(data, replace(hunk, closed=False)) is not None:
        beside = first if first and lines[first - 1].lstrip().startswith(b"@") else first + len(wanted) + 1
        now = lines[beside - 1] if beside <= len(lines) else b""
        return beside, "no line that belongs to the patched statements", _shown(now)
    return first + 1, f"once, in {hunk.scope or 'the module'}", "elsewhere, or more than once"


def _shown(line: bytes) -> str:
    return line.decode("utf-8", "replace").strip() or "(an empty line)"
