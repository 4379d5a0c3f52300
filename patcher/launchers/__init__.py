"""The ways in which an SGLang tree starts processes that use NCCL, and whether each passes through a function first.

Everything is found in the source: a statement that starts a process for one rank, and the calls that lead to it.
Followed are calls by name, imports across modules, `self.x`, `cls.x` and base classes, functions handed to threads, and
started processes, which inherit the environment. Not followed are callables in attributes or containers and other
distributions; what depends on them is told as unknown.
"""

from __future__ import annotations

from patcher.launchers.calls import Calls
from patcher.launchers.ways import LaunchPath, Ways
from patcher.target import Target

__all__ = ["LaunchPath", "launch_paths"]


def launch_paths(target: Target, function: str = "_set_envs_and_config", file: str | None = None) -> list[LaunchPath]:
    """The ways in which this tree starts workers, and whether each calls `function` (of `file`, or found) before."""
    calls = Calls(target)
    ways = Ways(calls, calls.defined(function, file), function)
    found = [*ways.processes(), *ways.actors(), *ways.elsewhere()]
    return sorted(found, key=lambda way: (way.name, way.file, way.line, str(way.covered)))
