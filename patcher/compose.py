"""Compose the new text of each file, and the record of it, from the survey and the patches that are wanted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from patcher.attempt import attempt
from patcher.errors import UsageError
from patcher.hunks import Hunk, between, find, placed, take_out_found
from patcher.manifest import Application, AppliedFile, FileRecord, Manifest, sha256
from patcher.patch import Edit, Finding, Params, Patch, Rewritten, State
from patcher.source import Source, parses
from patcher.survey import Survey

Texts = dict[str, bytes]


@dataclass(frozen=True)
class Wanted:
    """One patch to be put into the files, with the parameters that it will have."""

    patch: Patch
    profile: str | None
    overrides: Params
    params: Params


@dataclass(frozen=True)
class Refused:
    """Why the files could not be composed."""

    id: str
    finding: Finding


def compose(survey: Survey, put: Sequence[Wanted], forgotten: set[str]) -> tuple[list[Application], Texts] | Refused:
    """The applications and the new text of each file after putting patches in.

    In files that nobody edited, the patches that are there already are derived anew together with the new ones, in the
    catalog's order, so that the order of commands leaves no trace. Where that is not possible they stay where they are.
    """
    again = _rederived(survey, put)
    if again:
        composed = _compose_with(survey, [*put, *again], forgotten)
        if not isinstance(composed, Refused):
            return composed
    return _compose_with(survey, put, forgotten)


def _rederived(survey: Survey, put: Sequence[Wanted]) -> list[Wanted]:
    """The patches in place that can be made again, exactly, from the catalog: none if a file has other edits."""
    named = {wanted.patch.id for wanted in put}
    again = []
    for application in survey.manifest.applications:
        patch = survey.catalog.get(application.id)
        if not all(survey.as_recorded(file.path) for file in application.files):
            continue
        if application.id in named or patch is None or patch.revision != application.revision:
            continue
        try:
            profile, params = patch.resolve(application.profile, application.overrides)
        except UsageError:
            continue
        if dict(params) == dict(application.params):
            again.append(Wanted(patch, profile, application.overrides, params))
    return again


def _compose_with(
    survey: Survey, put: Sequence[Wanted], forgotten: set[str]
) -> tuple[list[Application], Texts] | Refused:
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
            return Refused(wanted.patch.id, changed)
        made.append(changed)
    texts = {path: source.data for path, source in sources.items()}
    kept = [one for one in survey.manifest.applications if one.id not in taken | forgotten]
    applications = with_places([*kept, *made], texts)
    return _checked(survey, applications, texts, made) or (applications, texts)


def _existing(survey: Survey, path: str) -> Source | None:
    data = survey.text(path)
    return None if data is None else Source(path, data)


def _insert(survey: Survey, wanted: Wanted, sources: dict[str, Source]) -> Application | Finding:
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
        patch.id,
        patch.revision,
        patch.summary,
        wanted.profile,
        wanted.overrides,
        wanted.params,
        tuple(files),
        survey.target.version,
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


def with_places(applications: Iterable[Application], texts: Texts) -> list[Application]:
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
    survey: Survey, applications: Sequence[Application], texts: Texts, made: Sequence[Application]
) -> Refused | None:
    """Proof, before anything is written, that taking every patch out again gives what was there without them."""
    for path, text in texts.items():
        without = base_of(applications, path, text)
        expected = base_of(survey.manifest.applications, path, survey.text(path) or b"")
        if without != expected:
            by = next((one.id for one in made if one.hunks_in(path)), made[0].id if made else "")
            return Refused(
                by, Finding(State.CONFLICT, "taking it out again would not give back the file as it was", path=path)
            )
    return None


def base_of(applications: Sequence[Application], path: str, text: bytes) -> bytes:
    """A file's text with all that patches put into it taken out, the last patch first."""
    for one in reversed(applications):
        text = take_out_found(text, one.hunks_in(path))
    return text


def manifest_of(survey: Survey, applications: Sequence[Application], texts: Texts) -> Manifest:
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


def inserted(hunks: Iterable[Hunk]) -> int:
    """How many lines the hunks add, less those that they remove."""
    return sum(len(hunk.after.splitlines()) - len(hunk.before.splitlines()) for hunk in hunks)
