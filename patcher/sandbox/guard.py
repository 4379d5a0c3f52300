"""Keeps what the module and the function do inside their own process, except for `os.environ`, which is the point.

Done without effect: installing signal handlers, timers and event loop policies; sending signals; changing limits, the
start method or the process group; starting `multiprocessing` processes. A PermissionError for the caller: opening a
file for writing; changing the file system; connecting, binding, sending; resolving a host name; starting a program;
forking. `os._exit` and `os.abort` are a SystemExit. Exit handlers never run: the child leaves by `os._exit`.

This protects the user from code that is about to be deployed anyway; it is no defence against an attacker, and what
goes through ctypes or shared memory is not covered.

Runs in the child: standard library only.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED = frozenset(
    f"{module}.{event}"
    for module, events in {
        "os": "chmod chown link mkdir mkfifo mknod remove removexattr rename rmdir setxattr symlink truncate utime "
        "exec fork forkpty posix_spawn system",
        "socket": "bind connect getaddrinfo gethostbyaddr gethostbyname sendmsg sendto",
        "subprocess": "Popen",
        "pty": "spawn",
    }.items()
    for event in events.split()
)
_on = False


def _nothing(*args: object, **kwargs: object) -> None:
    """Stands for a function whose effect is not wanted."""


def _leave(status: int = 1) -> NoReturn:
    raise SystemExit(status)


def _temporary_directory() -> str:
    """`tempfile` finds one by writing to it."""
    return "/tmp"  # noqa: S108 (only named, as nothing can be written to it)


_REPLACED: dict[str, tuple[str, ...]] = {
    "signal": ("signal", "raise_signal", "alarm", "setitimer", "pthread_kill", "siginterrupt"),
    "os": ("kill", "killpg", "setsid", "setpgid", "setpgrp", "_exit", "abort"),
    "resource": ("setrlimit", "prlimit"),
    "multiprocessing": ("set_start_method", "set_executable"),
    "multiprocessing.context:DefaultContext": ("set_start_method",),
    "multiprocessing.process:BaseProcess": ("start",),
    "asyncio": ("set_event_loop_policy",),
    "asyncio.events": ("set_event_loop_policy",),
    "tempfile": ("_get_default_tempdir",),
}
_REPLACEMENTS = {"_exit": _leave, "abort": _leave, "_get_default_tempdir": _temporary_directory}


@contextmanager
def guarded(source: bytes) -> Iterator[None]:
    """Within the block, effects stay in; after it, everything is as before. Not for nesting.

    `source` is what will run: a module that it never names is not loaded only to be guarded.
    """
    global _on
    kept: list[tuple[Any, str, object]] = []
    for place, names in _REPLACED.items():
        module, _, inner = place.partition(":")
        if module not in sys.modules and module.partition(".")[0].encode() not in source:
            continue
        owner: Any = importlib.import_module(module)
        owner = getattr(owner, inner) if inner else owner
        kept += [(owner, name, vars(owner)[name]) for name in names if name in vars(owner)]
    for owner, name, _ in kept:
        setattr(owner, name, _REPLACEMENTS.get(name, _nothing))
    _on = True
    try:
        yield
    finally:
        _on = False
        for owner, name, value in kept:
            setattr(owner, name, value)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    """The audit hook; it cannot be taken out again, so it looks at `_on`."""
    if not _on:
        return
    if event == "open":
        path, _, flags = args
        if isinstance(flags, int) and flags & _WRITING and not isinstance(path, int) and path != os.devnull:
            raise PermissionError(errno.EPERM, "the sandbox writes no file", path)
    elif event in _REFUSED:
        raise PermissionError(errno.EPERM, f"the sandbox refuses {event}{_shown(args)}")


def _shown(args: tuple[Any, ...]) -> str:
    """The arguments of an audit event, cut to what a message can hold."""
    return repr(args)[:200]


sys.addaudithook(_refuse)
