"""Local source patches on an installed SGLang: rewritten with LibCST, recorded in git, reverted byte for byte.

The public names are those of `__all__`; each is loaded when it is first used, so importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from patcher.api import (
        apply as apply,
        check as check,
        diff as diff,
        log as log,
        preview as preview,
        repair as repair,
        revert as revert,
        status as status,
        verify as verify,
    )
    from patcher.errors import PatcherError as PatcherError
    from patcher.patch import (
        Edit as Edit,
        Example as Example,
        Finding as Finding,
        Patch as Patch,
        Profile as Profile,
        Rewritten as Rewritten,
        State as State,
    )
    from patcher.results import (
        Check as Check,
        Result as Result,
        Status as Status,
        Verification as Verification,
        Workplace as Workplace,
    )
    from patcher.target import Target as Target

__version__ = "0.1.0"

_HOMES = {
    "patcher.api": "apply check diff log preview repair revert status verify",
    "patcher.results": "Check Result Status Verification Workplace",
    "patcher.errors": "PatcherError",
    "patcher.patch": "Edit Example Finding Patch Profile Rewritten State",
    "patcher.target": "Target",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
