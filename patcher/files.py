"""Replace files so that a crash leaves the old one or the new one, and the file's other names keep their bytes."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

from patcher.errors import NotPermitted

SUFFIX = ".sglang-patch-new"


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def beside(path: Path) -> Path:
    """The temporary name of a file's next contents, in the same directory and invisible to Python's import."""
    return path.with_name(f".{path.name}{SUFFIX}")


def prepare(path: Path, data: bytes, *, mtime_ns: int | None = None) -> Path:
    """Write a file's next contents beside it, fsynced, with its mode, owner and extended attributes.

    `mtime_ns` is the modification time to set, in nanoseconds since the epoch. Raises NotPermitted where the owner
    cannot be kept.
    """
    new = beside(path)
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()  # before the time is set, which a later write would change
        if path.exists():
            _keep_owner(path, descriptor)
            shutil.copystat(path, new)
        else:
            os.fchmod(descriptor, 0o644)
        if mtime_ns is not None:
            os.utime(new, ns=(mtime_ns, mtime_ns))
        os.fsync(descriptor)
    return new


def _keep_owner(path: Path, descriptor: int) -> None:
    wanted, got = path.stat(), os.fstat(descriptor)
    if (wanted.st_uid, wanted.st_gid) == (got.st_uid, got.st_gid):
        return
    try:
        os.fchown(descriptor, wanted.st_uid, wanted.st_gid)
    except PermissionError as error:
        raise NotPermitted(
            f"its owner (user {wanted.st_uid}, group {wanted.st_gid}) could not be kept by user {os.geteuid()}",
            where=str(path),
            hint="run the command as the file's owner or as root",
        ) from error


def replace_file(path: Path, data: bytes, *, mtime_ns: int | None = None) -> None:
    """Replace a file's bytes by a new file and a rename; a failure leaves nothing beside it."""
    try:
        prepare(path, data, mtime_ns=mtime_ns).replace(path)
    except BaseException:
        beside(path).unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def replace_by_link(path: Path, text: str) -> None:
    """Replace a file by a symbolic link to `text`, in one rename."""
    new = beside(path)
    new.unlink(missing_ok=True)
    new.symlink_to(text)
    new.replace(path)
    fsync_directory(path.parent)


def readable_like(path: Path, like: Path) -> None:
    """Let those who may read `like` read `path`: another user's `check` must see what root has recorded."""
    granted = stat.S_IMODE(like.stat().st_mode) & (stat.S_IRGRP | stat.S_IROTH)
    mode = stat.S_IMODE(path.stat().st_mode)
    if path.is_dir():
        granted |= granted >> 2
    if mode | granted != mode:
        path.chmod(mode | granted)
