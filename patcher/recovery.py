"""Undo what was begun and not ended, and set aside what cannot be read. All of it is done holding the lock."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patcher import bytecode
from patcher.errors import LedgerDamaged
from patcher.files import beside, fsync_directory, replace_by_link, replace_file
from patcher.ledger import BRANCH, COPY, Ledger
from patcher.manifest import sha256
from patcher.target import Target


@dataclass(frozen=True)
class Pending:
    """One file of the journal: sha256 (hexadecimal) before, None for a new file, and after."""

    path: str
    before: str | None
    after: str
    mtime_ns: int
    link: str | None


def set_aside_if_damaged(ledger: Ledger) -> str | None:
    """Move what cannot be read of a ledger out of the way, holding the lock; one sentence on it, or None."""
    for stale in ledger.path.glob("refs/**/*.lock"):
        stale.unlink()  # a git that was killed left it: nobody else writes here while the lock is held
    try:
        ledger.manifest()
    except LedgerDamaged as error:
        kept = {ledger.lock.name, ledger.holder.name, ".gitignore"}
        entries = [
            one for one in ledger.path.iterdir() if one.name not in kept and not one.name.startswith(".damaged-")
        ]
        aside = _set_aside(ledger.path, entries)
        return f"the record could not be read ({error.found or error.message}) and is set aside in {aside}"
    try:
        if ledger.interrupted():
            _journal(ledger)
    except LedgerDamaged as error:
        aside = _set_aside(ledger.path, [ledger.journal])
        return f"the journal could not be read ({error.found}) and is set aside in {aside}"
    return None


def _set_aside(folder: Path, entries: Iterable[Path]) -> Path:
    """Move entries of a directory into a new one inside it."""
    aside = next(one for one in (folder / f".damaged-{n}" for n in range(1, 10**6)) if not one.exists())
    aside.mkdir()
    for entry in entries:
        entry.rename(aside / entry.name)
    fsync_directory(folder)
    return aside


def set_aside_a_file(ledger: Ledger) -> None:
    """Make a directory where a file is in the ledger's place, and keep the file in it."""
    if ledger.path.is_file():
        aside = beside(ledger.path)
        ledger.path.rename(aside)
        ledger.path.mkdir()
        _set_aside(ledger.path, [aside])


def recover(target: Target, ledger: Ledger) -> str | None:
    """Finish or roll back an interrupted operation, holding the lock; one sentence on what was done, or None.

    Raises LedgerDamaged where a file is neither as before nor as after the operation.
    """
    for path in (ledger.journal, ledger.path / COPY):
        with contextlib.suppress(OSError):  # a killed operation left it
            beside(path).unlink(missing_ok=True)
    if not ledger.interrupted():
        return None
    journal = _journal(ledger)
    pending: list[Pending] = journal["files"]
    (ledger.path / f"{BRANCH}.lock").unlink(missing_ok=True)
    for one in pending:
        bytecode.sweep(target.path / one.path)
    if ledger.head() == journal["new_head"]:
        ledger.copy_manifest()
        end_journal(ledger)
        return "an interrupted operation was complete: its record was finished"
    old = {one.path: _replaced(ledger, journal["new_head"], one) for one in pending}
    for one in pending:
        data = target.read(one.path)
        now = None if data is None else sha256(data)
        if now not in (one.before, one.after):
            raise LedgerDamaged(
                "an operation was interrupted, and the file was changed since by something else",
                where=str(target.path / one.path),
                expected=f"sha256 {one.before} or {one.after}",
                found=f"sha256 {now}",
                hint=f"before it: git --git-dir {ledger.path} show {journal['new_head'][:12]}:replaced/{one.path}",
            )
    roll_back(target, ledger, pending, old)
    return "an interrupted operation was rolled back: the files are as before it"


def _replaced(ledger: Ledger, commit: str, one: Pending) -> bytes | None:
    return None if one.before is None else ledger.blob(commit, f"replaced/{one.path}")


def _journal(ledger: Ledger) -> dict[str, Any]:
    try:
        journal = dict(json.loads(ledger.journal.read_bytes()))
        journal["files"] = [Pending(**fields) for fields in journal["files"]]
        return {name: journal[name] for name in ("old_head", "new_head", "files")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerDamaged(
            "the journal of an interrupted operation cannot be read",
            where=str(ledger.journal),
            found=f"{type(error).__name__}: {error}",
            hint="sglang-patch repair",
        ) from error


def roll_back(target: Target, ledger: Ledger, pending: list[Pending], old: Mapping[str, bytes | None]) -> None:
    """Bring back the files as they were, and end the journal."""
    for one in pending:
        path = target.path / one.path
        beside(path).unlink(missing_ok=True)
        data = target.read(one.path)
        if data is None or sha256(data) != one.after or one.before == one.after:
            continue
        bytecode.discard(path)
        before = old[one.path]
        if before is None:
            path.unlink()
        elif one.link is not None:
            replace_by_link(path, one.link)
        else:
            replace_file(path, before, mtime_ns=one.mtime_ns)
    end_journal(ledger)


def end_journal(ledger: Ledger) -> None:
    """Say that no operation is under way any more."""
    ledger.journal.unlink(missing_ok=True)
    fsync_directory(ledger.path)
