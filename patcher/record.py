"""What an operation writes into the ledger about itself: the commit message, and each patch as a diff."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher import unidiff
from patcher.results import Workplace

if TYPE_CHECKING:
    from patcher.plan import Plan


def message(place: Workplace, plan: Plan) -> str:
    """The commit's message: a subject, one line a file, trailers."""
    from patcher import __version__
    from patcher.compose import inserted
    from patcher.plan import Action

    acted = [step for step in plan.steps if step.action not in (Action.KEEP, Action.SKIP)]
    version = place.target.version
    forgotten = [f"(forget {step.id})" for step in acted if step.action is Action.FORGET]
    named = [step.id for step in acted if step.action is not Action.FORGET] + forgotten
    lines = [f"{plan.operation} {', '.join(named)} (SGLang {version or 'of unknown version'})", ""]
    source = plan.before if plan.operation == "revert" else plan.after
    for step in acted:
        application = source.application(step.id)
        for file in application.files if application else ():
            count = inserted(file.hunks)
            lines.append(
                f"{file.path}: {count:+d} lines, {step.id}" if plan.operation == "apply" else f"{file.path}: {step.id}"
            )
    lines += ["", f"Operation: {plan.operation}"]
    for step in acted:
        application = source.application(step.id)
        profile = f" profile {application.profile}" if application and application.profile else ""
        revision = application.revision if application else step.status.revision
        lines.append(f"Patch: {step.id} revision {revision}{profile} ({step.action}, was {step.status.state})")
    lines += [f"SGLang-Version: {version}", f"Target: {place.target.path}", f"Target-Kind: {place.target.kind}"]
    return "\n".join([*lines, f"Tool: sglang-patch {__version__}"]) + "\n"


def diffs(place: Workplace, plan: Plan) -> dict[str, str]:
    """Each patch of the record afterwards as one unified diff."""
    from patcher.hunks import take_out_found

    new = {change.path: change.new for change in plan.changes}
    texts = {one.path: new.get(one.path) or place.target.read(one.path) or b"" for one in plan.after.files}
    return {
        one.id: "".join(
            unidiff.unified(file.path, take_out_found(texts[file.path], file.hunks), texts[file.path])
            for file in one.files
        )
        for one in plan.after.applications
    }
