"""What a patch promises about its effect, as data: `verify` runs the patched code and compares.

A patch file declares its probes beside its transform. They are run by `patcher.proof` in the sandbox.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Inner: TypeAlias = Literal["recording", "none", "missing", "without-methods"]


@dataclass(frozen=True)
class EnvironmentProbe:
    """Call a function in an environment, and look at the environment afterwards.

    `env` is what the process starts with, `attributes` what the function's argument has. `expected` maps variables to
    the value that they must have then, None for unset. With `spawned`, a process spawned after the call must have them
    too. Every other variable must be as the function leaves it without the patch.
    """

    name: str
    function: str
    expected: Mapping[str, str | None]
    env: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, object] = field(default_factory=dict)
    spawned: bool = False


@dataclass(frozen=True)
class MethodCall:
    """One call of a method, as SGLang makes it, and whether what the inner object returns must come back."""

    method: str
    args: Sequence[object] = ()
    returns: bool = False


@dataclass(frozen=True)
class DelegationProbe:
    """Call methods of a class on an instance that holds an inner object.

    With `inner` "recording" the inner object must receive each call, once, with the same arguments. With "none",
    "missing" and "without-methods" each call must raise an AttributeError that names what is missing.
    """

    name: str
    class_name: str
    attribute: str
    calls: Sequence[MethodCall]
    inner: Inner = "recording"


Probe: TypeAlias = EnvironmentProbe | DelegationProbe


@dataclass(frozen=True)
class ProbeResult:
    """Whether a probe saw what it expected; if not, what was expected and what was found."""

    name: str
    passed: bool
    expected: str | None = None
    found: str | None = None
