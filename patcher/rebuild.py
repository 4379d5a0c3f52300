"""Rebuild what the bytes prove: the record of patches that are in the source, but not in the ledger.

A patch's code is proved to be ours by taking it out and putting it in again: if the transform, run on the file without
those lines, inserts the very same lines in the same function or class, then the file without them is the base.
"""

from __future__ import annotations

from collections.abc import Iterator

from patcher.attempt import attempt
from patcher.compose import manifest_of
from patcher.hunks import Hunk, between
from patcher.judgement import REPAIR
from patcher.manifest import Application, AppliedFile
from patcher.patch import Edit, Params, Patch, Rewritten
from patcher.plan import Action, Plan, Step
from patcher.source import Source
from patcher.survey import Survey, marked


def plan_repair(survey: Survey) -> Plan:
    """The plan that records every unrecorded patch whose code is proved to be in place. It changes no file of SGLang.

    A patch that cannot be proved is skipped in its step, and the others are recorded all the same.
    """
    steps, found = [], []
    for patch in survey.catalog.values():
        if survey.manifest.application(patch.id) is not None:
            continue
        status = survey.status(patch.id)
        if status.hint != REPAIR:
            continue
        application = _proved(survey, patch)
        if application is None:
            reason = (
                f"its code differs from what revision {patch.revision} inserts with any profile: take it out by hand"
            )
            steps.append(Step(patch.id, Action.SKIP, status, reason))
        else:
            found.append(application)
            reason = "its code is exactly what the patch inserts: recorded anew"
            steps.append(Step(patch.id, Action.RECORD, status, reason))
    before = survey.manifest
    if not found:
        return Plan("repair", tuple(steps), before, before)
    texts = {file.path: survey.text(file.path) or b"" for one in found for file in one.files}
    return Plan("repair", tuple(steps), before, manifest_of(survey, [*before.applications, *found], texts))


def _proved(survey: Survey, patch: Patch) -> Application | None:
    """The application that explains a patch's code in the target, under one of its profiles, or None."""
    for profile in patch.profiles or [None]:
        params = patch.resolve(profile, {})[1]
        files = [_proved_file(survey, patch, edit, params) for edit in patch.edits]
        whole = [file for file in files if file is not None]
        if len(whole) == len(files):
            return Application(
                patch.id, patch.revision, patch.summary, profile, {}, params, tuple(whole), survey.target.version
            )
    return None


def _proved_file(survey: Survey, patch: Patch, edit: Edit, params: Params) -> AppliedFile | None:
    path = survey.place(edit)
    if not isinstance(path, str):
        return None
    data = survey.text(path) or b""
    for base in _without(data, patch, edit, params):
        outcome = attempt(edit, Source(path, base), params)
        if isinstance(outcome, Rewritten):
            there, made = between(base, data), between(base, outcome.source.data)
            if [_content(hunk) for hunk in there] == [_content(hunk) for hunk in made]:
                return AppliedFile(path, there)
    return None


def _content(hunk: Hunk) -> tuple[bytes, str]:
    """What a hunk inserts and where: other lines beside it may have moved it within its class or function."""
    return hunk.after.strip(b"\r\n"), hunk.scope


def _without(data: bytes, patch: Patch, edit: Edit, params: Params) -> Iterator[bytes]:
    """The file without as many lines from the patch's marker on as the patch inserts, with the empty line before it."""
    lines = data.splitlines(keepends=True)
    at = next((n for n, line in enumerate(lines) if marked(line, patch.id) is not None), None)
    count = _inserted_lines(patch, edit, params)
    if at is None or count is None:
        return
    for start in (at - 1, at):
        yield b"".join([*lines[: max(start, 0)], *lines[max(start, 0) + count :]])


def _inserted_lines(patch: Patch, edit: Edit, params: Params) -> int | None:
    """How many lines the patch inserts, as its own example shows."""
    for example in patch.examples:
        before = example.before.encode()
        outcome = attempt(edit, Source(example.path or edit.paths[0], before), params)
        if isinstance(outcome, Rewritten):
            return len(outcome.source.data.splitlines()) - len(before.splitlines())
    return None
