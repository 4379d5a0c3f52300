"""Run one edit on one source. Whatever a transform does, what comes back is an outcome."""

from __future__ import annotations

import traceback
from dataclasses import replace

from patcher.errors import PatcherError
from patcher.patch import Edit, Finding, Outcome, Params, Rewritten, State
from patcher.source import Source, Unparsable, too_deep

_FAULT = "this is a fault of the patch, not of the target: tell its author"


def attempt(edit: Edit, source: Source, params: Params) -> Outcome:
    """What an edit makes of a source.

    A file that cannot be parsed and a transform that fails are conflicts; one that changes nothing has nothing to do.
    """
    try:
        outcome: object = edit.rewrite(source, params)
    except Unparsable as error:
        reason = f"the file cannot be rewritten: {error.reason}"
        expected, found = "Python that LibCST can parse and give back unchanged", error.reason
        return Finding(State.CONFLICT, reason, error.line, expected, found, source.path)
    except RecursionError:
        reason = f"the file cannot be rewritten: {too_deep(source.data)}"
        return Finding(
            State.CONFLICT, reason, None, "code that is less deeply nested", "a recursion error", source.path
        )
    except PatcherError:
        raise
    except Exception as error:  # noqa: BLE001 (one patch author's fault must not hide the other patches)
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"its rewrite fails with {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        return Finding(State.CONFLICT, reason, path=source.path, hint=_FAULT)
    if isinstance(outcome, Finding):
        return outcome if outcome.path else replace(outcome, path=source.path)
    if not isinstance(outcome, Rewritten):
        reason = f"its rewrite returns {type(outcome).__name__}, neither Rewritten nor Finding"
        return Finding(State.CONFLICT, reason, path=source.path, hint=_FAULT)
    if outcome.source.data == source.data:
        return Finding(State.UPSTREAM, "there is nothing left to change", path=source.path)
    return outcome
