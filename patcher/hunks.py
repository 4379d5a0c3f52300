"""The difference that one patch makes to one file, as hunks that can be found again and taken out.

A hunk is whole lines: the text that was there before, the text that is there after. It is found again by its text, so
edits elsewhere in the file do not matter, and an edit inside it is noticed. All of this is pure functions of bytes.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from patcher.source import scope_at, syntax


@dataclass(frozen=True)
class Hunk:
    """Lines that a patch replaced: `before` became `after`.

    `after` is never empty and unique in the file that the patch made: where the change alone is not, lines around it
    belong to both sides. `line` (from 1) and `scope` (the dotted name of the class or function) are where it was put.
    """

    before: bytes
    after: bytes
    line: int
    scope: str


def between(old: bytes, new: bytes) -> tuple[Hunk, ...]:
    """The hunks that turn `old` into `new`."""
    a, b = old.splitlines(keepends=True), new.splitlines(keepends=True)
    tree = syntax(new)
    hunks = []
    last = (0, 0)
    for i1, i2, j1, j2 in _changed(a, b):
        i1, i2, j1, j2 = _grown_until_unique(a, b, new, (i1, i2, j1, j2), floor=last)
        last = (i2, j2)
        line = j1 + 1 + next((n for n, text in enumerate(b[j1:j2]) if text.strip()), 0)
        hunks.append(Hunk(b"".join(a[i1:i2]), b"".join(b[j1:j2]), j1 + 1, scope_at(tree, line)))
    return tuple(hunks)


def _changed(a: Sequence[bytes], b: Sequence[bytes]) -> list[tuple[int, int, int, int]]:
    """The changed ranges (i1, i2, j1, j2) of lines; what both have at the start and the end is skipped first."""
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    old, new = a[start : len(a) - end], b[start : len(b) - end]
    if not old and not new:
        return []
    if not old or not new:
        return [(start, start + len(old), start, start + len(new))]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [
        (start + i1, start + i2, start + j1, start + j2)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    ]


def _grown_until_unique(
    a: Sequence[bytes], b: Sequence[bytes], new: bytes, span: tuple[int, int, int, int], floor: tuple[int, int]
) -> tuple[int, int, int, int]:
    """The span with as many equal lines around it as it takes to make its new text non-empty and unique."""
    i1, i2, j1, j2 = span
    while len(_places(new, b"".join(b[j1:j2]))) != 1:
        before, after = j1 > floor[1] and i1 > floor[0], j2 < len(b) and i2 < len(a) and a[i2] == b[j2]
        if before:
            i1, j1 = i1 - 1, j1 - 1
        elif after:
            i2, j2 = i2 + 1, j2 + 1
        else:
            break
    return i1, i2, j1, j2


def _places(data: bytes, text: bytes) -> list[int]:
    """The offsets at which `text`, whole lines, stands in `data`."""
    places: list[int] = []
    at = data.find(text) if text else -1
    while at >= 0:
        end = at + len(text)
        starts = at == 0 or data[at - 1 : at] in (b"\n", b"\r")
        ends = end == len(data) or text.endswith((b"\n", b"\r")) or data[end : end + 1] in (b"\n", b"\r")
        if starts and ends:
            places.append(at)
        at = data.find(text, at + 1)
    return places


def find(data: bytes, hunk: Hunk) -> int | None:
    """The offset of the hunk's text in `data`: unchanged, once, and still in its class or function; else None."""
    places = _places(data, hunk.after)
    if not places:
        return None
    tree = syntax(data)
    if tree is None:
        return places[0] if len(places) == 1 else None
    skipped = len(hunk.after) - len(hunk.after.lstrip())
    inside = [at for at in places if scope_at(tree, line_of(data, at + skipped)) == hunk.scope]
    return inside[0] if len(inside) == 1 else None


def take_out(data: bytes, hunks: Sequence[Hunk]) -> bytes | None:
    """`data` with each hunk's text put back to what was there before; None where one cannot be found."""
    for hunk in reversed(hunks):
        at = find(data, hunk)
        if at is None:
            return None
        data = data[:at] + hunk.before + data[at + len(hunk.after) :]
    return data


def take_out_found(data: bytes, hunks: Sequence[Hunk]) -> bytes:
    """`data` without those of the hunks that can be found."""
    for hunk in reversed(hunks):
        without = take_out(data, [hunk])
        data = data if without is None else without
    return data


def line_of(data: bytes, offset: int) -> int:
    """The line number (from 1) of an offset."""
    return len(data[:offset].splitlines()) + (1 if offset == 0 or data[offset - 1 : offset] in (b"\n", b"\r") else 0)


def placed(data: bytes, hunks: Sequence[Hunk]) -> tuple[Hunk, ...]:
    """The hunks with the lines at which they stand in `data`."""
    placed_hunks = []
    for hunk in hunks:
        at = find(data, hunk)
        placed_hunks.append(hunk if at is None else replace(hunk, line=line_of(data, at)))
    return tuple(placed_hunks)
