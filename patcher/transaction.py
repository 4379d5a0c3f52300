"""Carry out a plan: all of its files and its record change together, or not at all.

The order is: lock, objects on disk, journal, new files beside the old ones, renames, read back, branch moved, journal
removed. The branch is the commit point. Until it has moved, a failure or a crash is rolled back from the bytes that the
commit holds under `replaced/`; after that, only the copy of the manifest is left to write.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout

from patcher import bytecode
from patcher.errors import Interrupted, NotPermitted, PatcherError, Surroundings
from patcher.files import fsync_directory, prepare, replace_by_link, replace_file
from patcher.ledger import Ledger
from patcher.manifest import sha256
from patcher.plan import FileChange, Plan
from patcher.recovery import Pending, end_journal, roll_back
from patcher.target import Target


@contextlib.contextmanager
def locked(target: Target, ledger: Ledger, timeout: float) -> Iterator[None]:
    """Hold the target's lock, waiting at most `timeout` seconds; the ledger's directory exists from then on.

    Raises naming the holder, and NotPermitted or Surroundings where no lock can be made.
    """
    ledger.require_ours()
    try:
        ledger.path.mkdir(parents=True, exist_ok=True)
        ignore = ledger.path / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", "ascii")
        lock = FileLock(ledger.lock, timeout=timeout, mode=0o644)
        with lock:
            holder = ledger.holder
            holder.write_text(f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n", "ascii")
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    holder.unlink(missing_ok=True)
    except Timeout as error:
        raise ledger.held(timeout) from error
    except OSError as error:
        if isinstance(error, PatcherError):
            raise
        raise _not_writable(error, target.path) from error


def _not_writable(error: OSError, path: Path) -> PatcherError:
    where = str(error.filename or path)
    message = f"cannot write here: {error.strerror or error}"
    if isinstance(error, PermissionError):
        return NotPermitted(message, where=where, hint="run the command as the owner of SGLang's files or as root")
    return Surroundings(message, where=where, hint="make room or make it writable, then run the same command again")


def check_writable(target: Target, ledger: Ledger, plan: Plan) -> None:
    """Raise NotPermitted for the first place that the plan must write and this user may not."""
    places = [(target.path / change.path).parent for change in plan.changes]
    places.append(ledger.path if ledger.path.exists() else _first_existing(ledger.path))
    for place in places:
        if not os.access(place, os.W_OK | os.X_OK):
            raise NotPermitted(
                "this directory is not writable for this user",
                where=str(place),
                expected="a directory in which a new file can be made and renamed",
                hint="run the command as the owner of SGLang's files or as root; nothing was changed",
            )


def _first_existing(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.exists())


def execute(target: Target, ledger: Ledger, plan: Plan, message: str, diffs: Mapping[str, str]) -> str:
    """Carry out a plan, holding the lock; returns the commit that records it.

    On failure everything is as before, and PatcherError says what was in the way.
    """
    try:
        with _signals_deferred():
            return _execute(target, ledger, plan, message, diffs)
    except OSError as error:
        if isinstance(error, PatcherError):
            raise
        raise _not_writable(error, target.path) from error


def _execute(target: Target, ledger: Ledger, plan: Plan, message: str, diffs: Mapping[str, str]) -> str:
    ledger.create(like=target.path)
    old_head = ledger.head()
    new_head = ledger.store(plan.after, _tree(target, ledger, plan, diffs), message)
    pending = [_pending(target, change) for change in plan.changes]
    journal = {"schema": 1, "old_head": old_head, "new_head": new_head, "files": [vars(one) for one in pending]}
    try:
        replace_file(ledger.journal, json.dumps(journal, indent=1).encode())
        formerly = [bytecode.compiled(target.path / change.path) for change in plan.changes]
        new_files = [prepare(target.path / c.path, c.new, mtime_ns=_mtime(target, c)) for c in plan.changes]
        for change, new in zip(plan.changes, new_files, strict=True):
            bytecode.discard(target.path / change.path)
            _put_in_place(target.path / change.path, new, change)
        _read_back(target, plan)
        ledger.advance(old_head, new_head)
    except BaseException:
        roll_back(target, ledger, pending, {change.path: change.old for change in plan.changes})
        raise
    # The operation is done. What is left can fail without undoing it: the next command finishes it.
    with contextlib.suppress(OSError, PatcherError):
        ledger.copy_manifest(plan.after.to_json().encode())
    for change, former in zip(plan.changes, formerly, strict=True):
        bytecode.compile_again(target.path / change.path, former)
    with contextlib.suppress(OSError):
        end_journal(ledger)
    return new_head


def _tree(target: Target, ledger: Ledger, plan: Plan, diffs: Mapping[str, str]) -> dict[str, bytes]:
    """The files of the commit: base, patched and replaced bytes, and each patch as a diff."""
    from patcher.compose import base_of

    new = {change.path: change.new for change in plan.changes}
    tree: dict[str, bytes] = {}
    for record in plan.after.files:
        data = new.get(record.path)
        data = target.read(record.path) if data is None else data
        if data is not None:
            tree[f"patched/{record.path}"] = data
            tree[f"base/{record.path}"] = base_of(plan.after.applications, record.path, data)
    for change in plan.changes:
        if change.old is not None:
            tree[f"replaced/{change.path}"] = change.old
    tree |= {f"patches/{name}.diff": text.encode("utf-8", "surrogateescape") for name, text in diffs.items()}
    return tree


def _pending(target: Target, change: FileChange) -> Pending:
    return Pending(
        change.path,
        None if change.old is None else sha256(change.old),
        sha256(change.new),
        target.modified(change.path),
        target.link(change.path),
    )


def _mtime(target: Target, change: FileChange) -> int:
    """The modification time of a file's next contents, in nanoseconds.

    A base gets its own time back. Anything else gets one of another second than the file's last, so that no bytecode of
    the former contents can seem to fit.
    """
    if change.mtime_ns is not None:
        return change.mtime_ns
    return max(time.time_ns(), (target.modified(change.path) // 10**9 + 1) * 10**9)


def _put_in_place(path: Path, new: Path, change: FileChange) -> None:
    """Rename a file's next contents over it; a base that was a symbolic link becomes that link again."""
    if change.link is not None and _link_has(path, change):
        replace_by_link(path, change.link)
        return
    new.replace(path)
    fsync_directory(path.parent)


def _link_has(path: Path, change: FileChange) -> bool:
    try:
        return (path.parent / str(change.link)).read_bytes() == change.new
    except OSError:
        return False


def _read_back(target: Target, plan: Plan) -> None:
    for change in plan.changes:
        if target.read(change.path) != change.new:
            raise Surroundings(
                "the file does not hold what was written to it",
                where=str(target.path / change.path),
                hint="check the file system, and whether another program writes here",
            )


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the operation is complete, then raise Interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(number)

    former = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except OSError as error:
        if received:
            raise Interrupted("interrupted; everything is as before") from error
        raise
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if received:
        raise Interrupted(
            "interrupted; the operation was completed first, nothing is half-done", hint="sglang-patch status"
        )
