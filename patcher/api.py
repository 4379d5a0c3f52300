"""What the command line does, as functions: each takes a target and returns what holds or what was done.

target = Target.find("/opt/venv")
result = apply(target, ["nccl-defaults"], profile="pcie-throughput")
assert check(target).in_place
revert(target)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from patcher import unidiff
from patcher.errors import LedgerDamaged, UsageError
from patcher.manifest import Manifest
from patcher.patch import NO_PARAMS, Params
from patcher.record import diffs, message
from patcher.results import Check, Report, Result, Status, Verification, Workplace, silent
from patcher.survey import Survey
from patcher.target import Target

if TYPE_CHECKING:
    from patcher.launchers import LaunchPath
    from patcher.objects import Entry
    from patcher.plan import Plan, Request

T = TypeVar("T")


def _workplace(target: Target | Workplace) -> Workplace:
    return target if isinstance(target, Workplace) else Workplace.of(target)


def _survey(place: Workplace) -> Survey:
    return Survey(place.target, place.catalog, place.ledger.manifest())


def _consistent(place: Workplace, look: Callable[[Survey], T]) -> T:
    """What `look` sees on a target that nobody changed meanwhile; it looks again if somebody did.

    Raises LedgerDamaged where an operation was interrupted, LockHeld where one still runs after the lock timeout.
    """
    deadline = time.monotonic() + place.lock_timeout
    while True:
        head, where = place.ledger.head(), str(place.ledger.journal)
        if not place.ledger.interrupted():
            seen = look(_survey(place))
            if place.ledger.head() == head and not place.ledger.interrupted():
                return seen
        elif not place.ledger.busy() and place.ledger.interrupted():
            raise LedgerDamaged("an operation on this target was interrupted", where=where, hint="sglang-patch repair")
        if time.monotonic() > deadline:
            raise place.ledger.held(place.lock_timeout)
        time.sleep(0.02)


def status(target: Target | Workplace) -> Status:
    """The state of every known patch. It reads only."""
    place = _workplace(target)
    return _consistent(place, lambda survey: _status(place, survey))


def _status(place: Workplace, survey: Survey) -> Status:
    return Status(place.target, tuple(survey.statuses()), survey.digest(), place.ledger.path, place.ledger.head())


def paths(target: Target | Workplace) -> list[LaunchPath]:
    """The ways in which this SGLang starts workers, judged for the catalog's patches that depend on one."""
    from patcher.launchers import launch_paths

    place = _workplace(target)
    functions = dict.fromkeys(one.function for one in place.catalog.values() if one.function)
    return [path for function in functions for path in launch_paths(place.target, function)]


def check(target: Target | Workplace, ids: Sequence[str] = ()) -> Check:
    """Whether the named patches are in place, or without names the recorded ones, or without any record the catalog.

    It reads only, and starts nothing. Raises UsageError for an unknown patch.
    """
    place = _workplace(target)
    return _consistent(place, lambda survey: _check(place, survey, ids))


def _check(place: Workplace, survey: Survey, ids: Sequence[str]) -> Check:
    named = meant(place, survey.manifest, ids)
    names = named or [one.id for one in survey.manifest.applications] or list(place.catalog)
    return Check(place.target, tuple(survey.status(name) for name in names), frozenset(named))


def meant(place: Workplace, manifest: Manifest, ids: Sequence[str]) -> list[str]:
    """The patches that ids mean, each once: a family's own id means those of its instances that are recorded.

    Raises UsageError for an unknown patch, and for a family of which nothing is recorded.
    """
    recorded = [one.id for one in manifest.applications]
    found: list[str] = []
    for patch_id in ids:
        place.catalog.known(patch_id, also=recorded)
        family = place.catalog.families.get(patch_id)
        instances = [name for name in recorded if name.startswith(f"{patch_id}:")]
        if family and family.family and not instances:
            raise UsageError(
                f"{patch_id} is applied to one {family.family.parameter} at a time, and none is recorded here",
                expected=f"{patch_id}:NAME, or --set {family.family.parameter}=NAME with apply",
                hint=f"sglang-patch show {patch_id}   # lists the names that fit",
            )
        found += instances if family else [patch_id]
    return list(dict.fromkeys(found))


def verify(
    target: Target | Workplace,
    ids: Sequence[str] = (),
    *,
    reach: bool = True,
    scan: bool = False,
    report: Report = silent,
) -> Verification:
    """`check`, then the patched code is run in a sandbox and its effect compared with what each patch promises.

    With `reach`, the ways of starting workers are judged by whether they pass through a patched function. With `scan`,
    installed packages that replace a patched function are looked for too; finding some is no failure, as
    they may never be imported. `report` is told what is being run. Raises UsageError for an unknown patch, Surroundings
    if nothing can be run.
    """
    from patcher.proof import scan_environment, verify_patch

    place = _workplace(target)

    def look(survey: Survey) -> Verification:
        checked = _check(place, survey, ids)
        verified = tuple(verify_patch(survey, one, report, reach=reach) for one in checked.patches)
        if not scan:
            return Verification(checked, verified)
        report("scanning the installed packages")
        files = {one.id: one.files[0][0] for one in checked.patches if one.files}
        patches = [place.catalog[name] for name in files if name in place.catalog]
        found = tuple(scan_environment(place.target, patches, files))
        return Verification(checked, verified, found, tuple(place.target.site_packages()))

    return _consistent(place, look)


def apply(
    target: Target | Workplace,
    ids: Sequence[str] = (),
    *,
    profile: str | None = None,
    overrides: Params = NO_PARAMS,
    dry_run: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Result:
    """Put patches in place, all or none; without ids the whole catalog, of which absent patches are skipped.

    A refusal is in the result's plan, not an exception. Raises UsageError for an unknown patch, profile or parameter,
    and Surroundings where something is in the way.
    """
    from patcher.plan import plan_apply

    place = _workplace(target)

    def plan(survey: Survey) -> Plan:
        return plan_apply(survey, _requests(place, survey.manifest, ids, profile, overrides), environ)

    return carry_out(place, plan, dry_run=dry_run)


def _requests(
    place: Workplace, manifest: Manifest, ids: Sequence[str], profile: str | None, overrides: Params
) -> list[Request]:
    """One request a patch; a profile and parameters go to the one patch that can have them."""
    from patcher.plan import Request

    plain = list(place.catalog)
    instances = [one.id for one in manifest.applications if one.id not in plain and one.id in place.catalog]
    names = meant(place, manifest, ids) or [*plain, *instances]
    if not profile and not overrides:
        return [Request(name, by_name=bool(ids)) for name in names]
    takes = [name for name in names if name in place.catalog and place.catalog[name].check_parameter]
    tuned = names if len(names) == 1 else takes
    if len(tuned) != 1:
        raise UsageError(
            "--profile and --set need one patch to go to",
            found=", ".join(tuned) or "no patch with parameters",
            hint="name it: sglang-patch apply nccl-defaults --profile NAME",
        )
    return [
        Request(name, profile, overrides, by_name=bool(ids)) if name in tuned else Request(name, by_name=bool(ids))
        for name in names
    ]


def revert(target: Target | Workplace, ids: Sequence[str] = (), *, dry_run: bool = False) -> Result:
    """Take patches out, in any order, byte for byte; without ids everything that is recorded.

    A refusal is in the result's plan. Raises UsageError for an unknown patch and Surroundings where something is in the
    way.
    """
    from patcher.plan import plan_revert

    place = _workplace(target)

    def plan(survey: Survey) -> Plan:
        everything = [*(one.id for one in survey.manifest.applications), *survey.orphans()]
        return plan_revert(survey, meant(place, survey.manifest, ids) or everything)

    return carry_out(place, plan, dry_run=dry_run)


def repair(target: Target | Workplace) -> Result:
    """Finish or roll back an interrupted operation, and record anew what the bytes prove.

    A ledger that cannot be read is set aside, whole, as `.damaged-N` beside the new one; nothing of it is deleted. No
    file of SGLang changes, unless an interrupted operation is rolled back.
    """
    from patcher import recovery, transaction
    from patcher.rebuild import plan_repair

    place = _workplace(target)
    recovery.set_aside_a_file(place.ledger)
    with transaction.locked(place.target, place.ledger, place.lock_timeout):
        aside = recovery.set_aside_if_damaged(place.ledger)
        recovered = recovery.recover(place.target, place.ledger)
        survey = _survey(place)
        planned = plan_repair(survey)
        commit = None
        if planned.does_something:
            transaction.check_writable(place.target, place.ledger, planned)
            commit = transaction.execute(
                place.target, place.ledger, planned, message(place, planned), diffs(place, planned)
            )
        elif place.ledger.head() is not None:
            place.ledger.copy_manifest()
    told = "; ".join(one for one in (aside, recovered) if one) or None
    return Result(planned, done=commit is not None, commit=commit, status=status(place), recovered=told)


def carry_out(place: Workplace, plan: Callable[[Survey], Plan], *, dry_run: bool) -> Result:
    """Plan, and if there is something to do: lock, recover, plan again, execute."""
    from patcher import recovery, transaction

    if dry_run and place.ledger.interrupted():
        return _consistent(place, lambda survey: Result(plan(survey), False, None, _status(place, survey)))
    survey = None
    if not place.ledger.interrupted() or place.ledger.busy():
        survey, planned = _consistent(place, lambda seen: (seen, plan(seen)))
        if dry_run or not planned.does_something:
            return Result(planned, done=False, commit=None, status=_status(place, survey))
        transaction.check_writable(place.target, place.ledger, planned)
    with transaction.locked(place.target, place.ledger, place.lock_timeout):
        recovered = recovery.recover(place.target, place.ledger)
        survey = Survey(place.target, place.catalog, place.ledger.manifest(), earlier=survey)
        planned = plan(survey)
        if dry_run or not planned.does_something:
            return Result(planned, done=False, commit=None, status=_status(place, survey), recovered=recovered)
        transaction.check_writable(place.target, place.ledger, planned)
        commit = transaction.execute(
            place.target, place.ledger, planned, message(place, planned), diffs(place, planned)
        )
    return Result(planned, done=True, commit=commit, status=_status(place, _survey(place)), recovered=recovered)


def diff(target: Target | Workplace, ids: Sequence[str] = ()) -> str:
    """What is changed on the target, as one unified diff; with ids, by those patches.

    A patch that drifted shows what was edited since it was applied. Raises UsageError for an unknown patch.
    """
    place = _workplace(target)

    def look(survey: Survey) -> str:
        named = meant(place, survey.manifest, ids)
        return "".join(_file_diff(place, survey, record.path, named) for record in survey.manifest.files)

    return _consistent(place, look)


def _file_diff(place: Workplace, survey: Survey, path: str, ids: Sequence[str]) -> str:
    from patcher.hunks import take_out_found

    now = survey.text(path)
    asked = [one for one in survey.manifest.applications if one.hunks_in(path) and (not ids or one.id in ids)]
    without = now
    for one in reversed(asked):
        without = None if without is None else take_out_found(without, one.hunks_in(path))
    shown = unidiff.unified(path, without, now)
    head = place.ledger.head()
    if head is not None and any(one.id not in survey.whole for one in asked):
        shown += unidiff.unified(path, place.ledger.blob(head, f"patched/{path}"), now)
    return shown


def log(target: Target | Workplace) -> list[Entry]:
    """The ledger's operations, newest first."""
    return _workplace(target).ledger.history()


def preview(plan: Plan) -> str:
    """What a plan would change, as a unified diff."""
    return "".join(unidiff.unified(change.path, change.old, change.new) for change in plan.changes)
