"""The objects of the ledger: trees and commits as they are written, operations as they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patcher.errors import LedgerDamaged, NotPermitted, PatcherError

if TYPE_CHECKING:
    from git.objects import Commit


@dataclass(frozen=True)
class Entry:
    """One operation of the history: commit, time in seconds since the epoch, subject, trailers."""

    commit: str
    time: int
    subject: str
    trailers: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        """The values of the trailers of one name."""
        return [value for key, value in self.trailers if key == name]


class DamageNamed:
    """Turns what GitPython and gitdb raise on a damaged repository into LedgerDamaged."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None or not isinstance(error, Exception) or isinstance(error, PatcherError):
            return
        if isinstance(error, PermissionError):
            raise NotPermitted(
                f"cannot use the ledger: {error.strerror}",
                where=str(error.filename or self._path),
                hint="run as its owner",
            ) from error
        # what GitPython (git.exc), gitdb (gitdb.exc) and zlib raise on damaged objects has no common base
        library = type(error).__module__.partition(".")[0] in ("git", "gitdb", "zlib")
        if library or isinstance(error, ValueError | LookupError | OSError):
            raise LedgerDamaged(
                "the ledger is damaged",
                where=str(self._path),
                found=f"{type(error).__name__}: {error}",
                hint="sglang-patch repair",
            ) from error


def put_tree(put: Callable[[bytes, bytes], bytes], files: Mapping[str, bytes]) -> bytes:
    """Store files, by path, as nested trees; returns the tree's name."""
    folders: dict[str, dict[str, bytes]] = {}
    entries: list[tuple[bytes, bytes, bytes]] = []
    for path, data in files.items():
        first, _, rest = path.partition("/")
        if rest:
            folders.setdefault(first, {})[rest] = data
        else:
            entries.append((first.encode(), b"100644", put(b"blob", data)))
    entries += [(name.encode(), b"40000", put_tree(put, inside)) for name, inside in folders.items()]
    # git sorts a directory as if its name ended in a slash
    entries.sort(key=lambda entry: entry[0] + (b"/" if entry[1] == b"40000" else b""))
    return put(b"tree", b"".join(mode + b" " + name + b"\0" + sha for name, mode, sha in entries))


def entry_of(commit: Commit) -> Entry:
    """The operation that a commit records."""
    message = commit.message if isinstance(commit.message, str) else commit.message.decode("utf-8", "replace")
    lines = message.strip().splitlines()
    trailers = []
    for line in reversed(lines):
        name, colon, value = line.partition(": ")
        if not colon or " " in name:
            break
        trailers.append((name, value))
    return Entry(commit.hexsha, commit.committed_date, lines[0] if lines else "", tuple(reversed(trailers)))
