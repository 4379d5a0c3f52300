"""`sglang-patch` and `python -m patcher`: streams that cannot fail the command, and Ctrl-C at any moment."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


class _Forgiving(io.TextIOWrapper):
    """A stream whose reader may leave (`| head -1`), and that can print any path in any locale."""

    def write(self, text: str) -> int:
        """Write, or do nothing once nobody reads."""
        try:
            return super().write(text)
        except BrokenPipeError:
            return self._left(len(text))

    def flush(self) -> None:
        """Flush, or do nothing once nobody reads."""
        try:
            super().flush()
        except BrokenPipeError:
            self._left(0)

    def _left(self, written: int) -> int:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        return written


def _prepared(stream: TextIO | None, number: int) -> TextIO:
    """A standard stream, also where the process was started with it closed."""
    if stream is None:
        descriptor = os.open(os.devnull, os.O_WRONLY)
        if descriptor != number:
            os.dup2(descriptor, number)
        return open(number, "w", encoding="utf-8", closefd=False)
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    return _Forgiving(stream.buffer, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering)


def run() -> int:
    """Run the command line; returns the exit code."""
    try:
        sys.stdout, sys.stderr = _prepared(sys.stdout, 1), _prepared(sys.stderr, 2)
        from patcher.cli import main

        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("sglang-patch: interrupted; nothing is half-done\n")
        return 130
    except OSError as error:
        sys.stderr.write(f"sglang-patch: cannot write the output: {error.strerror}\n")
        return 4
    return code


if __name__ == "__main__":
    sys.exit(run())
