"""Local source patches on an installed SGLang: rewritten with LibCST, recorded in git, reverted byte for byte.

The public names are those of `__all__`; each is loaded when it is first used, so importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from patcher.api import (
        Check as Check,
    )
    from patcher.api import (
        Result as Result,
    )
    from patcher.api import (
        Status as Status,
    )
    from patcher.api import (
        Workplace as Workplace,
    )
    from patcher.api import (
        apply as apply,
    )
    from patcher.api import (
        check as check,
    )
    from patcher.api import (
        diff as diff,
    )
    from patcher.api import (
        log as log,
    )
    from patcher.api import (
        preview as preview,
    )
    from patcher.api import (
        revert as revert,
    )
    from patcher.api import (
        status as status,
    )
    from patcher.errors import PatcherError as PatcherError
    from patcher.patch import (
        Edit as Edit,
    )
    from patcher.patch import (
        Example as Example,
    )
    from patcher.patch import (
        Finding as Finding,
    )
    from patcher.patch import (
        Patch as Patch,
    )
    from patcher.patch import (
        Profile as Profile,
    )
    from patcher.patch import (
        Rewritten as Rewritten,
    )
    from patcher.patch import (
        State as State,
    )
    from patcher.target import Target as Target

__version__ = "0.1.0"

_HOMES = {
    "patcher.api": (
        "Check Result Status Verification Workplace apply check diff log preview repair revert status verify"
    ),
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
