"""Unified diffs of patched files, in the form that `git apply -p1` and `patch -p1` take beside the `sglang` package."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from patcher.target import PACKAGE


def unified(path: str, old: bytes | None, new: bytes | None) -> str:
    """The difference between two contents of a file, "" if there is none.

    Bytes that are not UTF-8 become lone surrogates, which `encode("utf-8", "surrogateescape")` turns back.
    """
    if old == new:
        return ""
    before = "/dev/null" if old is None else f"a/{PACKAGE}/{path}"
    after = "/dev/null" if new is None else f"b/{PACKAGE}/{path}"
    return "".join(_ended(difflib.unified_diff(_lines(old), _lines(new), before, after)))


def _lines(data: bytes | None) -> list[str]:
    """Lines as git sees them: ended by a line feed, whatever else stands in them."""
    text = (data or b"").decode("utf-8", "surrogateescape")
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _ended(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
