"""Decide what a command will do, completely, before anything is written. Pure: a survey goes in, a plan comes out.

`status`, `--dry-run`, `apply` and `revert` share this path, so what is shown is what is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from patcher.attempt import attempt
from patcher.errors import UsageError
from patcher.hunks import Hunk, between, find, placed, take_out, take_out_found
from patcher.manifest import Application, AppliedFile, FileRecord, Manifest, sha256
from patcher.patch import Edit, Finding, Params, Patch, Rewritten, State
from patcher.source import Source, parses
from patcher.survey import REPAIR, PatchStatus, Survey


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


@dataclass(frozen=True)
class _Wanted:
    """One patch to be put into the files, with the parameters that it will have."""

    patch: Patch
    profile: str | None
    overrides: Params
    params: Params


def plan_apply(survey: Survey, requests: Sequence[Request], environ: Mapping[str, str]) -> Plan:
    """The plan that puts patches in place: all of them, or none if one is refused.

    Raises UsageError for an unknown patch, profile or parameter.
    """
    steps: list[Step] = []
    put: list[_Wanted] = []
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
    composed = _compose(survey, put, forgotten)
    while isinstance(composed, _Refused) and composed.finding.state is State.UPSTREAM:
        # an earlier patch of this very plan brings what this one would
        steps = [_skip(step, composed) if step.id == composed.id else step for step in steps]
        put = [wanted for wanted in put if wanted.patch.id != composed.id]
        composed = _compose(survey, put, forgotten)
    nothing = replace(nothing, steps=tuple(steps))
    if isinstance(composed, _Refused):
        refused = [_refuse(step, composed) if step.id == composed.id else step for step in steps]
        return replace(nothing, steps=tuple(refused))
    applications, texts = composed
    return replace(
        nothing, after=manifest_of(survey, applications, texts), changes=_changes(survey, applications, texts)
    )


def _decide(survey: Survey, request: Request) -> tuple[Step, _Wanted | None]:
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
        case State.LOST if not request.by_name and status.hint and "revert" in status.hint:
            return Step(patch_id, Action.SKIP, status, f"{status.reason}; {status.hint}"), None
        case State.DRIFTED if status.found is not None:
            return Step(patch_id, Action.REFUSE, status, status.reason), None
        case _:
            return Step(patch_id, Action.APPLY, status, status.reason), wanted


def _parameters(patch: Patch, application: Application | None, request: Request) -> _Wanted:
    """The parameters that a request means: what it names, else what is recorded, else the default."""
    profile, overrides = request.profile, request.overrides
    if application is not None and profile is None:
        profile = application.profile
        overrides = {**application.overrides, **overrides}
    profile, params = patch.resolve(profile, overrides)
    return _Wanted(patch, profile, dict(sorted(overrides.items())), params)


@dataclass(frozen=True)
class _Refused:
    """Why the files could not be composed."""

    id: str
    finding: Finding


def _refuse(step: Step, refused: _Refused) -> Step:
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


def _skip(step: Step, refused: _Refused) -> Step:
    status = replace(step.status, state=State.UPSTREAM, reason=refused.finding.reason)
    return Step(step.id, Action.SKIP, status, refused.finding.reason)


_Texts = dict[str, bytes]


def _compose(
    survey: Survey, put: Sequence[_Wanted], forgotten: set[str]
) -> tuple[list[Application], _Texts] | _Refused:
    """The applications and the new text of each file after putting patches in.

    In files that nobody edited, the patches that are there already are derived anew together with the new ones, in the
    catalog's order, so that the order of commands leaves no trace. Where that is not possible they stay where they are.
    """
    again = _rederived(survey, put)
    if again:
        composed = _compose_with(survey, [*put, *again], forgotten)
        if not isinstance(composed, _Refused):
            return composed
    return _compose_with(survey, put, forgotten)


def _rederived(survey: Survey, put: Sequence[_Wanted]) -> list[_Wanted]:
    """The patches in place that can be made again, exactly, from the catalog: none if a file has other edits."""
    named = {wanted.patch.id for wanted in put}
    if not all(survey.as_recorded(record.path) for record in survey.manifest.files):
        return []
    again = []
    for application in survey.manifest.applications:
        patch = survey.catalog.get(application.id)
        if application.id in named or patch is None or patch.revision != application.revision:
            continue
        try:
            profile, params = patch.resolve(application.profile, application.overrides)
        except UsageError:
            continue
        if dict(params) == dict(application.params):
            again.append(_Wanted(patch, profile, application.overrides, params))
    return again


def _compose_with(
    survey: Survey, put: Sequence[_Wanted], forgotten: set[str]
) -> tuple[list[Application], _Texts] | _Refused:
    put = sorted(put, key=lambda wanted: survey.catalog.place(wanted.patch.id))
    taken = {wanted.patch.id for wanted in put}
    sources: dict[str, Source] = {}
    for application in reversed(survey.manifest.applications):
        for file in application.files if application.id in taken else ():
            source = sources.get(file.path) or _existing(survey, file.path)
            if source is not None:
                sources[file.path] = Source(file.path, take_out_found(source.data, file.hunks))
    made: list[Application] = []
    for wanted in put:
        changed = _insert(survey, wanted, sources)
        if isinstance(changed, Finding):
            return _Refused(wanted.patch.id, changed)
        made.append(changed)
    texts = {path: source.data for path, source in sources.items()}
    kept = [one for one in survey.manifest.applications if one.id not in taken | forgotten]
    applications = _with_places([*kept, *made], texts)
    return _checked(survey, applications, texts, made) or (applications, texts)


def _existing(survey: Survey, path: str) -> Source | None:
    data = survey.text(path)
    return None if data is None else Source(path, data)


def _insert(survey: Survey, wanted: _Wanted, sources: dict[str, Source]) -> Application | Finding:
    """Run a patch's edits on the sources so far, replacing them; the application that results."""
    patch, files = wanted.patch, []
    for edit in patch.edits:
        path = survey.place(edit)
        if isinstance(path, Finding):
            return path
        source = sources.get(path) or survey.source(path)
        outcome = _rewritten(edit, source, wanted.params)
        if isinstance(outcome, Finding):
            return outcome
        files.append(AppliedFile(path, between(source.data, outcome.data)))
        sources[path] = outcome
    return Application(
        patch.id, patch.revision, patch.summary, wanted.profile, wanted.overrides, wanted.params, tuple(files)
    )


def _rewritten(edit: Edit, source: Source, params: Params) -> Source | Finding:
    """The edited source, or why there is none; a result that does not parse is a conflict."""
    outcome = attempt(edit, source, params)
    if isinstance(outcome, Finding):
        return outcome
    assert isinstance(outcome, Rewritten)
    if parses(source.data) and not parses(outcome.source.data):
        return Finding(State.CONFLICT, "the patch would leave a file that is not valid Python", path=source.path)
    return outcome.source


def _with_places(applications: Iterable[Application], texts: _Texts) -> list[Application]:
    """The applications with their hunks' lines as they are in the new texts."""
    return [
        replace(
            one,
            files=tuple(
                replace(file, hunks=placed(texts[file.path], file.hunks)) if file.path in texts else file
                for file in one.files
            ),
        )
        for one in applications
    ]


def _checked(
    survey: Survey, applications: Sequence[Application], texts: _Texts, made: Sequence[Application]
) -> _Refused | None:
    """Proof, before anything is written, that taking every patch out again gives what was there without them."""
    for path, text in texts.items():
        without = base_of(applications, path, text)
        expected = base_of(survey.manifest.applications, path, survey.text(path) or b"")
        if without != expected:
            by = next((one.id for one in made if one.hunks_in(path)), made[0].id if made else "")
            return _Refused(
                by, Finding(State.CONFLICT, "taking it out again would not give back the file as it was", path=path)
            )
    return None


def base_of(applications: Sequence[Application], path: str, text: bytes) -> bytes:
    """A file's text with all that patches put into it taken out, the last patch first."""
    for one in reversed(applications):
        text = take_out_found(text, one.hunks_in(path))
    return text


def plan_revert(survey: Survey, ids: Sequence[str]) -> Plan:
    """The plan that takes patches out, in whatever order they were put in; it needs no patch code."""
    texts: _Texts = {}
    last_first = [one.id for one in reversed(survey.manifest.applications) if one.id in ids]
    others = [name for name in ids if name not in last_first]
    steps = [_take_out(survey, patch_id, texts, set(ids)) for patch_id in [*last_first, *others]]
    steps.sort(key=lambda step: list(ids).index(step.id))
    before = survey.manifest
    plan = Plan("revert", tuple(steps), before, before)
    if plan.refused:
        return plan
    gone = {step.id for step in steps if step.action in (Action.REVERT, Action.FORGET)}
    applications = _with_places((one for one in before.applications if one.id not in gone), texts)
    return replace(plan, after=manifest_of(survey, applications, texts), changes=_changes(survey, applications, texts))


def _take_out(survey: Survey, patch_id: str, texts: _Texts, ids: set[str]) -> Step:
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


def manifest_of(survey: Survey, applications: Sequence[Application], texts: _Texts) -> Manifest:
    """The record after the operation: a file that has no patch any more has no record."""
    paths = list(dict.fromkeys(file.path for one in applications for file in one.files))
    files = tuple(_record(survey, applications, path, texts.get(path, survey.text(path))) for path in sorted(paths))
    version = survey.target.version
    if not applications:
        return Manifest(version)
    return Manifest(version, tuple(applications), files)


def _record(survey: Survey, applications: Sequence[Application], path: str, text: bytes | None) -> FileRecord:
    old = survey.manifest.file(path)
    if text is None or (old is not None and text == survey.text(path) and _same(survey, applications, path)):
        return old or FileRecord(path, "", 0, "", None)
    base = base_of(applications, path, text)
    whole = all(_whole(one, applications, path, text) for one in applications if one.hunks_in(path))
    mtime, link = survey.target.modified(path), survey.target.link(path)
    if old is not None and old.base_sha256 == sha256(base):
        mtime, link = old.base_mtime_ns, old.link
    pristine = survey.oracle.is_pristine(path, base)
    return FileRecord(
        path,
        base_sha256=sha256(base),
        base_mtime_ns=mtime,
        sha256=sha256(text) if whole else "",
        local_changes=None if pristine is None else not pristine,
        link=link,
    )


def _same(survey: Survey, applications: Sequence[Application], path: str) -> bool:
    return [one.hunks_in(path) for one in applications] == [one.hunks_in(path) for one in survey.manifest.applications]


def _whole(one: Application, applications: Sequence[Application], path: str, text: bytes) -> bool:
    later = applications[list(applications).index(one) + 1 :]
    text = base_of(later, path, text)
    return all(find(text, hunk) is not None for hunk in one.hunks_in(path))


def _changes(survey: Survey, applications: Sequence[Application], texts: _Texts) -> tuple[FileChange, ...]:
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


def inserted(hunks: Iterable[Hunk]) -> int:
    """How many lines the hunks add, less those that they remove."""
    return sum(len(hunk.after.splitlines()) - len(hunk.before.splitlines()) for hunk in hunks)
