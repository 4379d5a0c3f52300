"""The JSON documents: one function a command, plain dictionaries, schema 1. Documented in docs/json.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from patcher.errors import DoesNotFit
from patcher.judgement import PatchStatus
from patcher.patch import Patch

if TYPE_CHECKING:
    from patcher.launchers import LaunchPath
    from patcher.objects import Entry
    from patcher.plan import Step
    from patcher.rebinding import Rebinding
    from patcher.results import Check, Result, Status, Verification
    from patcher.target import Target
    from patcher.trial import Trial

Document = dict[str, object]


def patch_status(status: PatchStatus) -> Document:
    """One element of `patches`."""
    return {
        "id": status.id,
        "state": str(status.state),
        "revision": status.revision,
        "profile": status.profile,
        "params": dict(status.params),
        "overrides": dict(status.overrides),
        "reason": status.reason,
        "where": status.where,
        "expected": status.expected,
        "found": status.found,
        "hint": status.hint,
        "files": [{"path": path, "sha256": sha256} for path, sha256 in status.files],
    }


def status(seen: Status) -> Document:
    """The document of `status`."""
    return {
        "schema": 1,
        "target": seen.target.describe(),
        "patches": [patch_status(one) for one in seen.patches],
        "digest": seen.digest,
        "ledger": {"path": str(seen.ledger), "head": seen.head},
    }


def check(seen: Check) -> Document:
    """The document of `check`."""
    return {
        "schema": 1,
        "target": seen.target.describe(),
        "in_place": seen.in_place,
        "patches": [
            {**patch_status(one), "in_place": one.state.in_place(by_name=one.id in seen.by_name)}
            for one in seen.patches
        ],
    }


def verification(seen: Verification) -> Document:
    """The document of `verify`: that of `check`, with the probes of each patch."""
    document = check(seen.check)
    patches = [
        {
            **patch_status(one.status),
            "in_place": one.status.state.in_place(by_name=one.status.id in seen.check.by_name),
            "verified": one.passed,
            "not_verified": one.reason,
            "probes": [asdict(probe) for probe in one.probes],
            "launch_paths": launch_paths(one.paths),
            "rebound": [_rebinding(found) for found in one.rebound],
        }
        for one in seen.patches
    ]
    rebinders = [_rebinding(found) for found in seen.rebinders]
    return {
        **document,
        "verified": seen.passed,
        "patches": patches,
        "rebinders": rebinders,
        "scanned": [str(one) for one in seen.scanned],
    }


def launch_paths(paths: Iterable[LaunchPath]) -> list[Document]:
    """The ways of starting workers; `covered` is null where the source does not tell."""
    return [asdict(path) for path in paths]


def _rebinding(found: Rebinding) -> Document:
    return {**asdict(found), "path": str(found.path)}


def trial(seen: Trial) -> Document:
    """The document of `try`."""
    patches = [{**patch_status(one.status), "fits": one.fits, "moved": one.moved} for one in seen.patches]
    return {
        "schema": 1,
        "version": seen.version,
        "passed": seen.passed,
        "patches": patches,
        "problems": list(seen.problems),
    }


def result(done: Result, target: Target, *, dry_run: bool, diff: str | None) -> Document:
    """The document of `apply` and `revert`; `state` is the state before, `patches` afterwards are in `status`."""
    plan = done.plan
    document: Document = {
        "schema": 1,
        "operation": plan.operation,
        "dry_run": dry_run,
        "changed": done.done,
        "target": target.describe(),
        "steps": [
            {**patch_status(step.status), "action": str(step.action), "reason": step.reason} for step in plan.steps
        ],
        "files": [change.path for change in plan.changes],
        "notices": list(plan.notices),
        "commit": done.commit,
        "recovered": done.recovered,
        "digest": done.status.digest,
    }
    if plan.refused:
        document |= refusal(plan.refused[0], target).as_json()
    return {**document, "diff": diff} if diff is not None else document


def refusal(step: Step, target: Target) -> DoesNotFit:
    """A refused step as the error that people and programs are told."""
    status = step.status
    return DoesNotFit(
        f"{step.id}: {step.reason}; nothing was changed",
        where=str(target.path / status.where) if status.where else None,
        expected=status.expected,
        found=status.found,
        hint=status.hint,
    )


def catalog(patches: Iterable[Patch]) -> Document:
    """The document of `list`."""
    return {"schema": 1, "patches": [patch(one) for one in patches]}


def patch(one: Patch) -> Document:
    """The document of `show`, and an element of `list`."""
    return {
        "id": one.id,
        "revision": one.revision,
        "summary": one.summary,
        "why": one.why,
        "upstream": one.upstream,
        "retire": one.retire,
        "releases": one.releases,
        "limits": list(one.limits),
        "files": [path for edit in one.edits for path in edit.paths],
        "default_profile": one.default_profile,
        "profiles": {
            name: {"summary": profile.summary, "params": dict(profile.params)} for name, profile in one.profiles.items()
        },
        "takes_parameters": one.check_parameter is not None,
    }


def log(entries: Iterable[Entry]) -> Document:
    """The document of `log`, newest operation first."""
    return {"schema": 1, "operations": [_entry(entry) for entry in entries]}


def _entry(entry: Entry) -> Mapping[str, object]:
    first = dict(reversed(entry.trailers))
    return {
        "commit": entry.commit,
        "time": entry.time,
        "subject": entry.subject,
        "operation": first.get("Operation"),
        "sglang_version": first.get("SGLang-Version"),
        "target": first.get("Target"),
        "patches": entry.all("Patch"),
    }
