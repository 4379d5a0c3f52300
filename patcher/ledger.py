"""The ledger: a bare git repository that records what is applied to one target, and every byte needed to undo it.

Each operation is one commit. Its tree holds the manifest, the base bytes and the patched bytes of every patched file,
the bytes that the operation replaced, and each patch as a diff; its message says what was done to which SGLang. Objects
are written through GitPython's object database (gitdb) and are on disk before `advance` moves the branch, by
compare-and-swap.

Reading what is applied needs no git: a copy of the manifest lies beside the objects, with the commit it belongs to.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from patcher import git
from patcher.errors import LedgerDamaged, LockHeld, NotPermitted, Surroundings
from patcher.files import fsync_directory, readable_like, replace_file
from patcher.manifest import EMPTY, Manifest, from_json, sha256
from patcher.objects import DamageNamed, Entry, entry_of, put_tree

if TYPE_CHECKING:
    from git import Repo
    from git.objects import Commit

BRANCH = "refs/heads/main"
# By git's own description file a directory is known as a ledger; other things that may be there before it is one.
MARK = "description"
_MARK = "sglang-patch ledger: git log -p reads well here\n"
_AROUND = {".gitignore", "lock", "lock-holder", MARK}
_HEAD = f"ref: {BRANCH}\n"
_NAME = re.compile(rb"[0-9a-f]{40}")
COPY = "manifest.json"
_IDENTITY = "sglang-patch <sglang-patch@localhost>"
# The bytes are in the tree to be restored, the diffs to be read: `git log -p` shows the latter.
_ATTRIBUTES = "base/** -diff\npatched/** -diff\nreplaced/** -diff\nmanifest.json -diff\n"


class Ledger:
    """The ledger in one directory, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def journal(self) -> Path:
        """The journal of an operation that has not ended; it is running or was interrupted."""
        return self.path / "journal.json"

    @property
    def lock(self) -> Path:
        """The file that whoever changes the target holds a lock on."""
        return self.path / "lock"

    @property
    def holder(self) -> Path:
        """The file in which whoever holds the lock says who it is."""
        return self.path / "lock-holder"

    def held(self, timeout: float) -> LockHeld:
        """The error for a lock that was not free within `timeout` seconds; it names the holder."""
        try:
            found = self.holder.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            found = "a process that did not say who it is"
        return LockHeld(
            f"another sglang-patch works on this target and did not finish in {timeout:g} s",
            where=str(self.lock),
            found=found,
            hint="wait for it, or use --lock-timeout SECONDS",
        )

    def interrupted(self) -> bool:
        """Whether an operation was begun and has not ended; it is running or was interrupted."""
        try:
            return self.journal.exists()
        except OSError as error:
            raise self._unreadable(error) from error

    def busy(self) -> bool:
        """Whether somebody holds the lock; asking changes nothing."""
        try:
            descriptor = os.open(self.lock, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def head(self) -> str | None:
        """The commit that the branch is at, or None for a ledger without any; read without git.

        Raises LedgerDamaged where the branch names none, and where the directory is not a ledger.
        """
        try:
            self.require_ours()
            text = (self.path / BRANCH).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return self._packed_head()
        except IsADirectoryError:
            text = b"a directory"
        except OSError as error:
            raise self._unreadable(error) from error
        if not _NAME.fullmatch(text.strip()):
            raise LedgerDamaged(
                "the ledger's branch names no commit",
                where=str(self.path / BRANCH),
                expected="40 hexadecimal digits",
                found=text.decode("ascii", "replace").strip()[:60] or "an empty file",
                hint="sglang-patch repair",
            )
        return text.strip().decode("ascii")

    def require_ours(self) -> None:
        """Raise LedgerDamaged where something else is in the ledger's place."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise LedgerDamaged(
                "a file is where the ledger's directory should be", where=str(self.path), hint="sglang-patch repair"
            )
        if (self.path / MARK).is_file() and (self.path / MARK).read_bytes().startswith(_MARK[:20].encode()):
            return
        others = sorted({entry.name for entry in self.path.iterdir()} - _AROUND)
        if any(not name.startswith(".damaged-") for name in others):
            raise Surroundings(
                "this directory is something else than a ledger of sglang-patch, and stays as it is",
                where=str(self.path),
                found=", ".join(others[:5]),
                hint="give --ledger a directory of its own",
            )

    def _packed_head(self) -> str | None:
        try:
            lines = (self.path / "packed-refs").read_text("ascii").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from error
        return next((line.split()[0] for line in lines if line.endswith(f" {BRANCH}")), None)

    def manifest(self) -> Manifest:
        """What the ledger says is applied: from the copy if it is the branch's, else from the branch's commit."""
        head = self.head()
        if head is None:
            return EMPTY
        copy = self._copy(head)
        if copy is not None:
            return copy
        return from_json(self.blob(head, COPY), f"{self.path} {head[:12]}:{COPY}")

    def _copy(self, head: str) -> Manifest | None:
        """The copied manifest if it is whole and that of the branch's commit, else None: the commit has it."""
        try:
            first, _, rest = (self.path / COPY).read_bytes().partition(b"\n")
            if json.loads(first) == {"commit": head, "sha256": sha256(rest)}:
                return from_json(rest, str(self.path / COPY))
            return None
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
            return None
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError | UnicodeDecodeError) -> NotPermitted | LedgerDamaged:
        where = str(getattr(error, "filename", None) or self.path)
        if not isinstance(error, PermissionError):
            return LedgerDamaged(f"cannot read the ledger: {error}", where=where, hint="sglang-patch repair")
        return NotPermitted(
            f"cannot read the ledger: {error.strerror}",
            where=where,
            hint="run as the ledger's owner or as root, or let others read it: chmod -R a+rX",
        )

    def blob(self, commit: str, path: str) -> bytes:
        """The bytes of a file in a commit's tree; raises LedgerDamaged where it is missing."""
        with self._opened() as repository:
            return bytes((repository.commit(commit).tree / path).data_stream.read())

    def history(self) -> list[Entry]:
        """Every operation, newest first; raises LedgerDamaged."""
        head = self.head()
        if head is None:
            return []
        found: list[Entry] = []
        with self._opened() as repository:
            commit: Commit | None = repository.commit(head)
            while commit is not None:
                found.append(entry_of(commit))
                commit = commit.parents[0] if commit.parents else None
        return found

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Repo]:
        """The repository, through GitPython, with its objects read by gitdb: no git command is needed or started."""
        with DamageNamed(self.path):
            from gitdb import GitDB

            with git.scrubbed():
                from git import Repo

                repository = Repo(self.path, expand_vars=False)
            repository.odb = GitDB(str(self.path / "objects"))
            with repository:
                yield repository

    def create(self, like: Path) -> None:
        """Make the repository where there is none, as readable as the directory `like` is."""
        head = self.path / "HEAD"
        if head.is_file() and head.read_bytes() == _HEAD.encode() and (self.path / "objects").is_dir():
            return
        (self.path / MARK).write_text(_MARK, "ascii")
        git.must("init", "--quiet", "--bare", "--template=", self.path)
        head.write_text(_HEAD, "ascii")
        git.must("--git-dir", self.path, "config", "gc.auto", "0")
        (self.path / "info").mkdir(exist_ok=True)
        (self.path / "info" / "attributes").write_text(_ATTRIBUTES, "ascii")
        for path in (self.path, *self.path.rglob("*")):
            readable_like(path, like)

    def store(self, manifest: Manifest, files: Mapping[str, bytes], message: str) -> str:
        """Write one operation's commit on top of the branch, all objects fsynced; the branch does not move yet.

        `files` are the tree's files beside the manifest, by path. Returns the commit's name.
        """
        from gitdb import IStream, LooseObjectDB

        database = LooseObjectDB(str(self.path / "objects"))
        written: list[bytes] = []

        def put(kind: bytes, data: bytes) -> bytes:
            sha = bytes(database.store(IStream(kind, len(data), BytesIO(data))).binsha)
            written.append(sha)
            return sha

        with DamageNamed(self.path):
            tree = put_tree(put, {**files, COPY: manifest.to_json().encode()})
            head, now = self.head(), int(time.time())
            lines = [f"tree {tree.hex()}", *([f"parent {head}"] if head else [])]
            lines += [f"author {_IDENTITY} {now} +0000", f"committer {_IDENTITY} {now} +0000", "", message]
            commit = put(b"commit", "\n".join(lines).encode("utf-8", "surrogateescape"))
        for sha in dict.fromkeys(written):
            self._fsync_object(sha.hex())
        return commit.hex()

    def _fsync_object(self, name: str) -> None:
        path = self.path / "objects" / name[:2] / name[2:]
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return  # in a pack since an earlier operation
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        readable_like(path.parent, self.path)
        readable_like(path, self.path)
        fsync_directory(path.parent)

    def advance(self, old: str | None, new: str) -> None:
        """Move the branch from `old` to `new`; raises LedgerDamaged if it is not at `old` any more.

        It is done as git does it, by a lock file and a rename, and not by a git that could outlive this process.
        """
        branch, taken = self.path / BRANCH, self.path / f"{BRANCH}.lock"
        branch.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(taken, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError as error:
            raise LedgerDamaged(
                "a git command holds the ledger's branch, or was killed while it did",
                where=str(taken),
                hint="sglang-patch repair",
            ) from error
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(f"{new}\n".encode())
                file.flush()
                os.fsync(descriptor)
            if self.head() != old:
                raise LedgerDamaged("the ledger's branch was moved by somebody else", where=str(branch))
            readable_like(taken, self.path)
            taken.replace(branch)
        except BaseException:
            taken.unlink(missing_ok=True)
            raise
        with contextlib.suppress(OSError):  # it has moved
            readable_like(branch.parent, self.path)
            fsync_directory(branch.parent)

    def copy_manifest(self, manifest: bytes | None = None) -> None:
        """Bring the copy of the manifest up to the branch, whose manifest it is."""
        head = self.head()
        if head is not None:
            if (self.path / COPY).is_dir():
                (self.path / COPY).rename(self.path / f".damaged-{COPY}-{time.time_ns()}")
            manifest = self.blob(head, COPY) if manifest is None else manifest
            first = json.dumps({"commit": head, "sha256": sha256(manifest)}).encode()
            replace_file(self.path / COPY, first + b"\n" + manifest)
            readable_like(self.path / COPY, self.path)
