"""What the functions of `patcher.api` take and return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from patcher.catalog import Catalog, collect
from patcher.judgement import PatchStatus
from patcher.ledger import Ledger
from patcher.patch import State
from patcher.target import LEDGER, Target

if TYPE_CHECKING:
    from patcher.plan import Plan
    from patcher.proof import Verified
    from patcher.rebinding import Rebinding


# What is told about the steps of long work, one text a step.
Report: TypeAlias = Callable[[str], None]
LOCK_TIMEOUT = 60.0


def silent(text: str) -> None:
    """A report that tells nobody."""


@dataclass(frozen=True)
class Workplace:
    """A target with the catalog and the ledger that belong to it; `lock_timeout` is in seconds."""

    target: Target
    catalog: Catalog
    ledger: Ledger
    lock_timeout: float = LOCK_TIMEOUT

    @classmethod
    def of(
        cls,
        target: Target,
        *,
        catalog: Catalog | None = None,
        patches: Sequence[Path] = (),
        ledger: Path | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
    ) -> Workplace:
        """The target with the built-in catalog and the patches of more directories, and its own or another ledger."""
        return cls(
            target, (catalog or collect(patches)).on(target), Ledger(ledger or target.path / LEDGER), lock_timeout
        )


@dataclass(frozen=True)
class Status:
    """Every known patch and its state, the digest of what is applied, the ledger's path and branch."""

    target: Target
    patches: tuple[PatchStatus, ...]
    digest: str
    ledger: Path
    head: str | None

    def __getitem__(self, patch_id: str) -> PatchStatus:
        return next(one for one in self.patches if one.id == patch_id)


@dataclass(frozen=True)
class Check:
    """What was checked and whether all of it is in place; `by_name` are the patches that were asked for by name."""

    target: Target
    patches: tuple[PatchStatus, ...]
    by_name: frozenset[str]

    @property
    def missing(self) -> tuple[PatchStatus, ...]:
        """The patches that are not in place."""
        return tuple(one for one in self.patches if not one.state.in_place(by_name=one.id in self.by_name))

    @property
    def in_place(self) -> bool:
        """Whether everything that was checked is in place."""
        return not self.missing


@dataclass(frozen=True)
class Verification:
    """A check, and per patch what its probes saw when the code was run.

    `rebinders` are installed packages that replace a patched function at run time, looked for in `scanned`.
    """

    check: Check
    patches: tuple[Verified, ...]
    rebinders: tuple[Rebinding, ...] = ()
    scanned: tuple[Path, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything is in place and has its effect."""
        seen = [one for one in self.patches if one.status.state is not State.ABSENT]
        return self.check.in_place and all(one.passed for one in seen)


@dataclass(frozen=True)
class Result:
    """What `apply` or `revert` did: the plan, whether it was carried out, the commit that records it.

    `recovered` says what was done about an interrupted operation that was found first.
    """

    plan: Plan
    done: bool
    commit: str | None
    status: Status
    recovered: str | None = None
