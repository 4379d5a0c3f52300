"""What people see: tables, states in colour, diffs. Colours only on a terminal, and not with NO_COLOR."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from functools import cache

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from patcher.compose import inserted
from patcher.judgement import PatchStatus
from patcher.launchers import LaunchPath
from patcher.objects import Entry
from patcher.options import typed
from patcher.patch import Candidate, Patch, State
from patcher.plan import Action, Plan, Step
from patcher.results import Result, Status, Verification
from patcher.trial import Trial

_COLOURS = {
    State.APPLIED: "green",
    State.UPSTREAM: "green",
    State.NOT_APPLIED: "yellow",
    State.ABSENT: "dim",
    State.OUTDATED: "yellow",
    State.DRIFTED: "red",
    State.LOST: "red",
    State.PARTIAL: "red",
    State.CONFLICT: "red",
}


@cache
def console() -> Console:
    """Standard output; as wide as it takes where it is no terminal, so that nothing is folded in a pipe."""
    return Console(
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=not sys.stdout.isatty(),
        width=None if sys.stdout.isatty() else 10_000,
    )


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("PATCH", "STATE", "COMMIT", "WHEN"))
    return table


def _print(table: Table) -> None:
    """Print a table without the blanks that pad its last column."""
    if console().is_terminal:
        console().print(table)
        return
    with console().capture() as captured:
        console().print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def status(seen: Status) -> None:
    """The target, every patch, the digest, and what to type next."""
    _target_line(seen)
    table = _table("PATCH", "STATE", "REV", "PROFILE", "WHAT")
    for one in seen.patches:
        state = Text(str(one.state), style=_COLOURS[one.state])
        table.add_row(one.id, state, str(one.revision), _profile(one), one.reason or one.summary)
    _print(table)
    for one in seen.patches:
        _details(one)
    waiting = (State.NOT_APPLIED, State.LOST, State.OUTDATED)
    stuck = any(one.state in (State.PARTIAL, State.CONFLICT, State.DRIFTED) for one in seen.patches)
    fitting = [one.id for one in seen.patches if one.state in waiting and not one.no_place]
    if fitting:
        names = f" {' '.join(fitting)}" if stuck else ""
        console().print(typed(f"next    sglang-patch apply{names}"), style="dim")
    console().print(f"digest  {seen.digest}")
    console().print(f"ledger  {seen.ledger}{'' if seen.head else '  (nothing recorded yet)'}", style="dim")


def verification(seen: Verification) -> None:
    """Per patch whether its effect is there, and each probe that saw something else."""
    for one in seen.patches:
        for probe in one.probes:
            if not probe.passed:
                console().print(
                    Text(f"{one.status.id}: {probe.name}: expected {probe.expected}; found {probe.found}", style="red")
                )
        if not one.probes and one.passed:
            console().print(f"{one.status.id}: {one.status.state}; it declares no probe, so nothing was run")
        if one.probes and one.passed:
            console().print(
                Text(f"{one.status.id}: {one.status.state}, its effect seen in {len(one.probes)} cases", style="green")
            )
        elif one.reason:
            console().print(Text(f"{one.status.id}: not verified: {one.reason}", style="red"))
        for found in one.rebound:
            text = f"{one.status.id}: dead where {found.path}:{found.line} {found.what}: {found.evidence}"
            console().print(Text(text, style="red"))
        launch_paths(one.paths)
    for found in seen.rebinders:
        text = f"{found.package} {found.what} ({found.path}:{found.line}): the patch is dead where that runs"
        console().print(Text(text, style="yellow"))

    if seen.scanned and not seen.rebinders:
        places = " and ".join(map(str, seen.scanned))
        console().print(f"no package in {places} replaces a patched function", style="dim")


def launch_paths(paths: Sequence[LaunchPath]) -> None:
    """The ways of starting workers, and whether each passes through the patched function."""
    if not paths:
        return
    table = _table("STARTED BY", "REACHED", "WHERE", "WHY")
    for path in paths:
        word, colour = {True: ("yes", "green"), False: ("no", "yellow"), None: ("not known", "dim")}[path.covered]
        table.add_row(path.name, Text(word, style=colour), f"{path.file}:{path.line}", path.reason)
    _print(table)


def trial(seen: Trial) -> None:
    """Per patch whether it fits the SGLang that was tried, and what moved where it does not."""
    console().print(f"SGLang {seen.version}, tried on a copy")
    for one in seen.patches:
        status = one.status
        if status.state is State.NOT_APPLIED:
            cases = (
                f", its effect seen in {len(one.verified.probes)} cases" if one.verified and one.verified.probes else ""
            )
            text, style = f"fits{cases}", "green"
        else:
            text, style = f"{status.state}: {status.reason}", _COLOURS[status.state]
        console().print(Text(f"{status.id}: {text}{f', at {status.where}' if status.where else ''}", style=style))
        for line in (one.moved or "").splitlines():
            console().print(Text(f"    {line}", style="dim"))
    for problem in seen.problems:
        console().print(Text(problem, style="red"))
    if not seen.problems and any(one.status.state is State.NOT_APPLIED for one in seen.patches):
        console().print("applied, run, applied again, reverted: every byte came back", style="dim")


def _target_line(seen: Status) -> None:
    target = seen.target
    says = target.metadata_version
    lie = f", although its metadata says {says}" if says and says != target.version else ""
    console().print(f"SGLang {target.version or '(unknown version)'}{lie}, {target.kind}: {target.path}")


def _profile(one: PatchStatus) -> str:
    """The profile, and what was chosen otherwise: `pcie-latency NCCL_NTHREADS=256`."""
    chosen = [f"{name}={value}" for name, value in one.overrides.items()]
    return " ".join([*([one.profile] if one.profile else []), *chosen]) or "-"


def _details(one: PatchStatus) -> None:
    """Where, expected, found and what to type, for a patch that needs a look."""
    if one.state in (State.APPLIED, State.UPSTREAM, State.ABSENT, State.NOT_APPLIED):
        return
    hint = typed(one.hint) if one.hint else None
    lines = [("at", one.where), ("expected", one.expected), ("found", one.found), ("type", hint)]
    for name, value in lines:
        if value:
            console().print(Text(f"  {one.id} {name}: {value}", style="dim"))


def result(done: Result, *, dry_run: bool, diff: str) -> None:
    """What was done, or with a dry run what would be."""
    plan = done.plan
    if done.recovered:
        console().print(done.recovered)
    if diff:
        patch_text(diff)
    for step in plan.steps:
        console().print(_step(step, plan, dry_run=dry_run or bool(plan.refused)))
    if plan.refused:
        return
    if dry_run and plan.does_something:
        console().print(f"nothing was written; to do it: sglang-patch {plan.operation} ...", style="dim")
    elif not plan.does_something:
        console().print("nothing to do: no file was touched", style="dim")
    elif plan.changes:
        console().print("servers that run keep the code that they started with: restart them", style="dim")


# What is said of a step that was taken, of one that would be, and in which colour.
_WORDS = {
    Action.APPLY: ("applied", "would apply", "green"),
    Action.UPDATE: ("updated", "would update", "green"),
    Action.KEEP: ("in place", "in place", "green"),
    Action.SKIP: ("skipped", "would skip", "dim"),
    Action.REVERT: ("reverted", "would revert", "green"),
    Action.FORGET: ("forgotten", "would forget", "yellow"),
    Action.RECORD: ("recorded", "would record", "green"),
    Action.REFUSE: ("refused", "refused", "red"),
}


def _step(step: Step, plan: Plan, *, dry_run: bool) -> Text:
    """One line on a step: what, which patch, where or why."""
    done, would, style = _WORDS[step.action]
    if step.action is Action.KEEP:
        detail = f"revision {step.status.revision}, {_profile(step.status)}"
    elif step.action in (Action.APPLY, Action.REVERT):
        detail = _changed(step, plan)
    elif step.action in (Action.SKIP, Action.REFUSE):
        detail = f"{step.status.state}: {step.reason}"
    else:
        detail = step.reason or ""
    return Text(f"{would if dry_run else done}  {step.id}  {detail}", style=style)


def _changed(step: Step, plan: Plan) -> str:
    """The files of a step with the lines that it adds or takes away."""
    source, sign = (plan.before, -1) if plan.operation == "revert" else (plan.after, 1)
    application = source.application(step.id)
    files = [file for file in (application.files if application else ()) if file.hunks]
    return ", ".join(
        f"{file.path} ({sign * inserted(file.hunks):+d} lines, line {file.hunks[0].line})" for file in files
    )


def patch_text(text: str) -> None:
    """A unified diff, in colour on a terminal and as it is elsewhere."""
    if console().is_terminal and not console().no_color:
        console().print(Syntax(text.encode("utf-8", "replace").decode(), "diff", background_color="default"))
    else:
        sys.stdout.write(text.encode("utf-8", "replace").decode())


def catalog(patches: Iterable[Patch]) -> None:
    """The catalog as a table."""
    table = _table("PATCH", "REV", "FOR", "WHAT")
    for one in patches:
        table.add_row(one.id, str(one.revision), one.releases or "any release", one.summary)
    _print(table)
    console().print(typed("sglang-patch show ID tells more"), style="dim")


def patch(one: Patch) -> None:
    """One patch with everything that it says about itself."""
    console().print(Text(f"{one.id}, revision {one.revision}: {one.summary}", style="bold"))
    _paragraph("", one.why)
    fields = [
        ("releases", one.releases or "any"),
        ("upstream", one.upstream),
        ("retire", one.retire),
        ("file", ", or ".join(path for edit in one.edits for path in edit.paths)),
    ]
    for name, value in fields:
        if value:
            _paragraph(name, value)
    for limit in one.limits:
        _paragraph("limit", limit)
    for name, profile in one.profiles.items():
        default = " (the default)" if name == one.default_profile else ""
        _paragraph("profile", f"{name}{default}: {profile.summary}")
        for key, value in profile.params.items():
            console().print(f"            {key}={value}")
    if one.check_parameter:
        _paragraph("change", f"sglang-patch apply {one.id} --set NAME=VALUE; --set NAME= leaves one out")


def candidates(patch: Patch, found: Sequence[Candidate]) -> None:
    """The places of this target that a family could be applied to, those that fit first."""
    if not patch.family:
        return
    if not found:
        console().print("give --target to see which names fit there", style="dim")
        return
    table = _table("NAME", "VERDICT", "CLASS", "WHY")
    for one in found:
        colour = {"fits": "green", "upstream": "green", "partial": "red"}.get(one.verdict, "dim")
        table.add_row(one.name, Text(one.verdict, style=colour), one.title, one.reason)
    _print(table)
    names = [one.name for one in found if one.verdict == "fits"]
    if names:
        console().print(typed(f"sglang-patch apply {patch.id} --set {patch.family.parameter}={names[0]}"), style="dim")


def _paragraph(name: str, text: str) -> None:
    width = min(console().width, 100) - 12
    for n, line in enumerate(textwrap.wrap(text, max(width, 30), break_on_hyphens=False)):
        console().print(Text(f"  {name if n == 0 else '':9} {line}" if name else f"  {line}"))


def log(entries: Iterable[Entry]) -> None:
    """The ledger's operations, newest first."""
    table = _table("COMMIT", "WHEN", "WHAT")
    for entry in entries:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
        table.add_row(entry.commit[:12], when, entry.subject)
    if table.row_count:
        _print(table)
    else:
        console().print("nothing was ever recorded for this target", style="dim")
