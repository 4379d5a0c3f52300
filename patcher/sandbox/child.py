"""The script of the fresh interpreter: `python -I -S -B -X utf8 child.py REPORT_FD`, with the job as JSON on stdin.

Answers on REPORT_FD, one JSON document a line: first `{"ready": true}`, then one for each case as soon as it is done,
so that what came before a crash or a timeout is kept. What the module prints goes to stdout and disturbs nothing.
Standard library only, and nothing of this package is imported in the ordinary way: its `__init__` may need more.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

OUTPUT_LIMIT = 64 * 1024 * 1024


def main() -> None:
    """Read the job, do it, report, and leave without running exit handlers or waiting for threads."""
    report_fd = int(sys.argv[1])

    def report(document: object) -> None:
        os.write(report_fd, json.dumps(document).encode() + b"\n")

    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # printed in order, and before a crash
    job = json.load(sys.stdin)
    _bare_packages()
    _limit_output()
    if job["kind"] == "function":
        from patcher.sandbox.calling import perform
    else:
        from patcher.sandbox.delegating import perform
    report({"ready": True})
    perform(job, report, send_environment)
    os._exit(0)


def _bare_packages() -> None:
    """Let `patcher.sandbox` be imported from here without executing any `__init__.py`."""
    here = Path(__file__).resolve().parent
    for name, folder in (("patcher", here.parent), ("patcher.sandbox", here)):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


def _limit_output() -> None:
    """A module that prints without end gets an OSError, and does not fill the disk."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if hard == resource.RLIM_INFINITY or hard > OUTPUT_LIMIT:
        resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_LIMIT, hard))


def send_environment(connection: Any) -> None:
    """What the spawned process does: it sends the environment that it woke up with."""
    connection.send(dict(os.environ))
    connection.close()


if __name__ == "__main__":
    main()
