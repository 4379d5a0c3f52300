"""Starts the child in a fresh interpreter and collects its answers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from patcher.errors import Surroundings

_CHILD = Path(__file__).with_name("child.py")
# A shared libpython may be found through these; every other variable is the job's to set.
_NEEDED_TO_START = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
_TAIL = 4000
_NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Answers:
    """What the child said: one document a case that it finished, and all that was printed.

    `ended` says why there are no more documents, where that matters.
    """

    documents: tuple[dict[str, Any], ...]
    printed: bytes
    ended: str

    def output(self, start: int = 0, end: int | None = None) -> str:
        """The tail of what was printed between two byte offsets, at most 4000 characters."""
        return self.printed[start:end].decode(errors="replace")[-_TAIL:]


def ask(job: Mapping[str, object], *, python: str | os.PathLike[str] | None, timeout: float) -> Answers:
    """Run the job in a fresh interpreter for at most `timeout` seconds; then its whole process group is killed.

    Raises Surroundings where that interpreter does not start, or is older than Python 3.10.
    """
    question = json.dumps(job).encode()
    executable = _found(os.fspath(python or sys.executable))
    with _temporary(executable) as report, _temporary(executable) as printed:
        ended = _run(executable, question, report, printed, timeout)
        documents = [json.loads(line) for line in _lines(report)]
        printed.seek(0)
        answers = Answers(tuple(documents[1:]), printed.read(), ended)
    if not documents and not ended.startswith(_NO_ANSWER):
        raise Surroundings(
            f"the sandbox's interpreter does not work: {ended}",
            where=executable,
            expected="Python 3.10 or newer",
            found=answers.output().strip().rpartition("\n")[2] or None,
            hint="name another one with --python",
        )
    return answers


def _found(python: str) -> str:
    """The interpreter's absolute path where it can be found; a virtual environment's link is not followed."""
    found = shutil.which(python)
    return str(Path(found).absolute()) if found else python


def _temporary(executable: str) -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise Surroundings(
            f"the sandbox needs a temporary file: {error}", where=executable, hint="set TMPDIR to a writable directory"
        ) from error


def _run(executable: str, question: bytes, report: IO[bytes], printed: IO[bytes], timeout: float) -> str:
    """Start the child, wait for it, and say how it ended."""
    command = [executable, "-I", "-S", "-B", "-X", "utf8", str(_CHILD), str(report.fileno())]
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env={name: os.environ[name] for name in _NEEDED_TO_START if name in os.environ},
            cwd="/",
            pass_fds=(report.fileno(),),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise Surroundings(
            f"the sandbox's interpreter cannot be started: {error}",
            where=executable or "(no interpreter)",
            hint="name another one with --python",
        ) from error
    stopped: list[float] = []

    def stop() -> None:
        if child.poll() is None:
            stopped.append(timeout)
            os.killpg(child.pid, signal.SIGKILL)

    timer = threading.Timer(timeout, stop)  # communicate(timeout=...) would look only every 50 ms
    timer.start()
    try:
        child.communicate(question)
    finally:
        timer.cancel()
        stop()
        child.wait()
    if stopped:
        return f"{_NO_ANSWER} within {timeout:g} s; the interpreter was stopped"
    return f"the interpreter ended with status {child.returncode} before it answered"


def _lines(report: IO[bytes]) -> list[bytes]:
    """The complete lines; the last one may have been cut off."""
    report.seek(0)
    return [line for line in report.read().split(b"\n")[:-1] if line]
