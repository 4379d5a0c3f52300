"""The argument of the function under test: an object with the attributes of a case and sensible ones besides.

What a case does not name is, by its name: a setting that is off (`enable_...`, `disable_...`, ...) False, a question
(`is_...`, `use_...`, ...) also False, asked with or without a call, a count (`..._size`, `nnodes`, `num_...`) 1, a rank
0, something custom (`custom_...`, `..._handler`) None, anything else a false `Stub`.

Runs in the child: standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from patcher.sandbox.stubs import StandIn


class _No(int):
    """False, and when called, False."""

    def __call__(self, *args: object, **kwargs: object) -> bool:
        return False

    def __repr__(self) -> str:
        return "False"


_BY_NAME: tuple[tuple[re.Pattern[str], object], ...] = (
    (re.compile(r"(enable|disable|skip|allow|with|no)_"), False),
    (re.compile(r"(is|has|use|should)_"), _No()),
    (re.compile(r"num_|(.*_)?(size|nnodes)$"), 1),
    (re.compile(r"(.*_)?rank$"), 0),
    (re.compile(r"custom_|.*_handler$"), None),
)


def stand_in(attributes: Mapping[str, object]) -> StandIn:
    """The stand-in for the server arguments with these attributes set."""
    argument = _ServerArgs("server_args")
    vars(argument).update(attributes)
    return argument


class _ServerArgs(StandIn):
    """Gives an unset attribute the value that its name suggests, and keeps it."""

    def __getattr__(self, name: str) -> object:
        for pattern, value in _BY_NAME:
            if pattern.match(name):
                return value
        return super().__getattr__(name)
