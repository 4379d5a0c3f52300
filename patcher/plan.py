"""Decide what a command will do, completely, before anything is written. Pure: a survey goes in, a plan comes out.

`status`, `--dry-run`, `apply` and `revert` share this path, so what is shown is what is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from patcher.compose import Refused, Texts, Wanted, compose, manifest_of, with_places
from patcher.hunks import take_out, take_out_found
from patcher.judgement import REPAIR, PatchStatus
from patcher.manifest import Application, Manifest, sha256
from patcher.patch import Params, Patch, State
from patcher.source import parses
from patcher.survey import Survey


class Action(str, Enum):
    """What a plan does with one patch."""

    APPLY = "apply"
    UPDATE = "update"
    KEEP = "keep"
    SKIP = "skip"
    REVERT = "revert"
    FORGET = "forget"
    RECORD = "record"
    REFUSE = "refuse"

    __str__ = str.__str__


@dataclass(frozen=True)
class Request:
    """One patch that should be in place. Without a profile and overrides, the recorded ones stay."""

    id: str
    profile: str | None = None
    overrides: Params = field(default_factory=dict)
    by_name: bool = True


@dataclass(frozen=True)
class Step:
    """What happens to one patch, and why; `status` is its state before."""

    id: str
    action: Action
    status: PatchStatus
    reason: str | None = None


@dataclass(frozen=True)
class FileChange:
    """New bytes for one file. `mtime_ns` and `link` are those of the base, when the base comes back."""

    path: str
    old: bytes | None
    new: bytes
    mtime_ns: int | None = None
    link: str | None = None


@dataclass(frozen=True)
class Plan:
    """What one operation will do: steps per patch, changes per file, the record afterwards."""

    operation: str
    steps: tuple[Step, ...]
    before: Manifest
    after: Manifest
    changes: tuple[FileChange, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def refused(self) -> tuple[Step, ...]:
        """The steps that stand in the way of the whole plan."""
        return tuple(step for step in self.steps if step.action is Action.REFUSE)

    @property
    def does_something(self) -> bool:
        """Whether executing it changes a file or the record."""
        return not self.refused and (bool(self.changes) or self.before != self.after)


def plan_apply(survey: Survey, requests: Sequence[Request], environ: Mapping[str, str]) -> Plan:
    """The plan that puts patches in place: all of them, or none if one is refused.

    Raises UsageError for an unknown patch, profile or parameter.
    """
    steps: list[Step] = []
    put: list[Wanted] = []
    notices: list[str] = []
    for request in requests:
        step, wanted = _decide(survey, request)
        steps.append(step)
        if wanted is not None:
            put.append(wanted)
        patch = survey.catalog.get(request.id)
        if patch and step.action in (Action.APPLY, Action.UPDATE, Action.KEEP):
            params = wanted.params if wanted else step.status.params
            notices += [f"{patch.id}: {notice}" for notice in patch.notices(params, environ)]
    before = survey.manifest
    nothing = Plan("apply", tuple(steps), before, before, notices=tuple(notices))
    forgotten = {step.id for step in steps if step.action is Action.FORGET}
    if nothing.refused or not (put or forgotten):
        return nothing
    composed = compose(survey, put, forgotten)
    while isinstance(composed, Refused) and composed.finding.state is State.UPSTREAM:
        # an earlier patch of this very plan brings what this one would
        steps = [_skip(step, composed) if step.id == composed.id else step for step in steps]
        put = [wanted for wanted in put if wanted.patch.id != composed.id]
        composed = compose(survey, put, forgotten)
    nothing = replace(nothing, steps=tuple(steps))
    if isinstance(composed, Refused):
        refused = [_refuse(step, composed) if step.id == composed.id else step for step in steps]
        return replace(nothing, steps=tuple(refused))
    applications, texts = composed
    return replace(
        nothing, after=manifest_of(survey, applications, texts), changes=_changes(survey, applications, texts)
    )


def _decide(survey: Survey, request: Request) -> tuple[Step, Wanted | None]:
    """What to do about one request, judged by the patch's state."""
    patch_id = request.id
    patch = survey.catalog.get(patch_id)
    application = survey.manifest.application(patch_id)
    if patch is None:
        status = survey.status(patch_id)
        if status.state is State.APPLIED and not request.profile and not request.overrides:
            return Step(patch_id, Action.KEEP, status), None
        return Step(patch_id, Action.REFUSE, status, "its code is gone: it can be reverted, not applied"), None
    wanted = _parameters(patch, application, request)
    status = survey.status(patch_id, wanted.params)
    match status.state:
        case State.APPLIED if application and (application.profile, application.overrides) != (
            wanted.profile,
            wanted.overrides,
        ):
            return Step(patch_id, Action.UPDATE, status, "the same code under another name"), wanted
        case State.APPLIED:
            return Step(patch_id, Action.KEEP, status), None
        case State.UPSTREAM:
            return Step(patch_id, Action.FORGET if application else Action.SKIP, status, status.reason), None
        case State.ABSENT if not request.by_name:
            return Step(patch_id, Action.SKIP, status, status.reason), None
        case State.ABSENT | State.PARTIAL | State.CONFLICT:
            return Step(patch_id, Action.REFUSE, status, status.reason), None
        case State.OUTDATED:
            return Step(patch_id, Action.UPDATE, status, status.reason), wanted
        case State.LOST if not request.by_name and status.no_place:
            return Step(patch_id, Action.FORGET, status, f"{status.reason}: its record stays in the history"), None
        case State.DRIFTED if status.found is not None:
            return Step(patch_id, Action.REFUSE, status, status.reason), None
        case _:
            return Step(patch_id, Action.APPLY, status, status.reason), wanted


def _parameters(patch: Patch, application: Application | None, request: Request) -> Wanted:
    """The parameters that a request means: what it names, else what is recorded, else the default."""
    profile, overrides = request.profile, request.overrides
    if application is not None and profile is None:
        profile = application.profile
        overrides = {**application.overrides, **overrides}
    profile, params = patch.resolve(profile, overrides)
    return Wanted(patch, profile, dict(sorted(overrides.items())), params)


def _refuse(step: Step, refused: Refused) -> Step:
    finding = refused.finding
    where = f"{finding.path}:{finding.line}" if finding.path and finding.line else finding.path
    status = replace(
        step.status,
        state=finding.state,
        where=where,
        reason=finding.reason,
        expected=finding.expected,
        found=finding.found,
    )
    return Step(step.id, Action.REFUSE, status, finding.reason)


def _skip(step: Step, refused: Refused) -> Step:
    status = replace(step.status, state=State.UPSTREAM, reason=refused.finding.reason)
    return Step(step.id, Action.SKIP, status, refused.finding.reason)


def plan_revert(survey: Survey, ids: Sequence[str]) -> Plan:
    """The plan that takes patches out, in whatever order they were put in; it needs no patch code."""
    texts: Texts = {}
    last_first = [one.id for one in reversed(survey.manifest.applications) if one.id in ids]
    others = [name for name in ids if name not in last_first]
    steps = [_take_out(survey, patch_id, texts, set(ids)) for patch_id in [*last_first, *others]]
    steps.sort(key=lambda step: list(ids).index(step.id))
    before = survey.manifest
    plan = Plan("revert", tuple(steps), before, before)
    if plan.refused:
        return plan
    gone = {step.id for step in steps if step.action in (Action.REVERT, Action.FORGET)}
    if not gone:
        return plan
    broken = next((path for path in texts if parses(survey.text(path) or b"") and not parses(texts[path])), None)
    if broken is not None:
        reason = "without it the file is not valid Python any more: something beside it depends on it"
        steps = [_depended_on(step, broken, reason) if step.action is Action.REVERT else step for step in steps]
        return replace(plan, steps=tuple(steps))
    applications = with_places((one for one in before.applications if one.id not in gone), texts)
    return replace(plan, after=manifest_of(survey, applications, texts), changes=_changes(survey, applications, texts))


def _depended_on(step: Step, path: str, reason: str) -> Step:
    hint = f"sglang-patch diff {step.id}, and take out by hand what depends on its lines"
    return Step(step.id, Action.REFUSE, replace(step.status, where=path, reason=reason, hint=hint), reason)


def _take_out(survey: Survey, patch_id: str, texts: Texts, ids: set[str]) -> Step:
    """Take one patch out of the texts, or say why not."""
    application, status = survey.manifest.application(patch_id), survey.status(patch_id)
    if application is None:
        if status.hint == REPAIR:
            return Step(patch_id, Action.REFUSE, status, status.reason)
        return Step(patch_id, Action.SKIP, status, "it is not applied")
    if patch_id not in survey.whole:
        if status.state is State.DRIFTED and status.found is not None:
            return Step(patch_id, Action.REFUSE, status, f"{status.reason}: taking it out would lose that edit")
        for file in application.files:
            text = texts.get(file.path, survey.text(file.path))
            if text is not None:
                texts[file.path] = take_out_found(text, file.hunks)
        return Step(patch_id, Action.FORGET, status, status.reason)
    for file in application.files:
        text = texts.get(file.path, survey.text(file.path) or b"")
        without = take_out(text, file.hunks)
        if without is None:
            above = " ".join(_standing_on(survey, application, file.path, text, ids)) or "another patch"
            hinted = replace(status, hint=f"sglang-patch revert {patch_id} {above}")
            return Step(patch_id, Action.REFUSE, hinted, f"{above} was put into its lines")
        texts[file.path] = without
    return Step(patch_id, Action.REVERT, status)


def _standing_on(survey: Survey, lower: Application, path: str, text: bytes, ids: set[str]) -> list[str]:
    """The later patches that changed lines which `lower` had inserted."""
    later = survey.manifest.applications[survey.manifest.applications.index(lower) + 1 :]
    return [
        one.id
        for one in later
        if one.id not in ids and take_out(take_out_found(text, one.hunks_in(path)), lower.hunks_in(path)) is not None
    ]


def _changes(survey: Survey, applications: Sequence[Application], texts: Texts) -> tuple[FileChange, ...]:
    changes = []
    for path in sorted(texts):
        old, new = survey.text(path), texts[path]
        if new == old:
            continue
        record = survey.manifest.file(path)
        base_again = record is not None and sha256(new) == record.base_sha256
        if base_again and record and not any(one.hunks_in(path) for one in applications):
            changes.append(FileChange(path, old, new, record.base_mtime_ns, record.link))
        else:
            changes.append(FileChange(path, old, new))
    return tuple(changes)
