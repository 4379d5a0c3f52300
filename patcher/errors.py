"""What can go wrong, and the exit code of each.

    PatcherError            4  (the base class; never raised itself)
    ├── UsageError          2  the command line, a parameter or the configuration is wrong; also a ValueError
    ├── DoesNotFit          3  a patch does not fit this SGLang; nothing was changed
    ├── Surroundings        4  something around the target is in the way; nothing was changed
    │   ├── TargetNotFound     also a FileNotFoundError
    │   ├── NotPermitted       also a PermissionError
    │   ├── LockHeld
    │   ├── GitMissing
    │   ├── LedgerDamaged
    │   └── LedgerTooNew
    └── Interrupted       130  Ctrl-C or SIGTERM; nothing is half-done

Expected outcomes of a patch (`absent`, `conflict`, ...) are values, not exceptions: see `patcher.patch.State`.
`patcher.cli.main` is the one place that turns these into exit codes.
"""

from __future__ import annotations


class PatcherError(Exception):
    """A failure with everything that its reader needs.

    `message` says what is wrong; `where` is a path, with `:line` if a line is known; `expected` is what was looked for,
    `found` what was there instead; `hint` is what to type next.
    """

    exit_code = 4
    kind = "error"

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.expected = expected
        self.found = found
        self.hint = hint

    def __str__(self) -> str:
        """The message and its details, one a line."""
        lines = [f"{self.where}: {self.message}" if self.where else self.message]
        lines += [f"  {name}: {value}" for name, value in self.details() if name != "where"]
        return "\n".join(lines)

    def details(self) -> list[tuple[str, str]]:
        """The filled details, as (name, text) pairs in reading order."""
        pairs = (("where", self.where), ("expected", self.expected), ("found", self.found), ("hint", self.hint))
        return [(name, value) for name, value in pairs if value]

    def as_json(self) -> dict[str, object]:
        """The document that `--json` prints for this failure."""
        error = {"kind": self.kind, "code": self.exit_code, "message": self.message, **dict(self.details())}
        return {"schema": 1, "error": error}


class UsageError(PatcherError, ValueError):
    """The command line, a parameter or the configuration is wrong."""

    exit_code = 2
    kind = "usage"


class DoesNotFit(PatcherError):
    """A patch does not fit this SGLang; nothing was changed."""

    exit_code = 3
    kind = "does-not-fit"


class Surroundings(PatcherError):
    """Something around the target is in the way; nothing was changed."""

    exit_code = 4
    kind = "surroundings"


class TargetNotFound(Surroundings, FileNotFoundError):
    """No SGLang source tree where one was looked for."""

    kind = "target-not-found"


class NotPermitted(Surroundings, PermissionError):
    """A file or directory may not be read or written by this user."""

    kind = "not-permitted"


class LockHeld(Surroundings):
    """Another sglang-patch works on this target and did not finish in time."""

    kind = "lock-held"


class GitMissing(Surroundings):
    """Writing the ledger needs the git command, and it is not on PATH."""

    kind = "git-missing"


class LedgerDamaged(Surroundings):
    """The ledger cannot be read, or contradicts itself."""

    kind = "ledger-damaged"


class LedgerTooNew(Surroundings):
    """The ledger was written by a newer sglang-patch, and nothing is wrong with it."""

    kind = "ledger-too-new"


class Interrupted(PatcherError):
    """The user or the system asked this process to stop."""

    exit_code = 130
    kind = "interrupted"
