"""The difference that one patch makes to one file, as hunks that can be found again and taken out.

A hunk is whole lines: the text that was there before, the text that is there after. It is found again by its text, so
edits elsewhere in the file do not matter, and an edit inside it is noticed. All of this is pure functions of bytes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from patcher.source import is_closed, scope_at, syntax


@dataclass(frozen=True)
class Hunk:
    """Lines that a patch replaced: `before` became `after`.

    `after` is never empty and unique in the file that the patch made: where the change alone is not, lines around it
    belong to both sides. At the end of a file without a final newline it begins with the newline that the line above it
    got. `line` (from 1) and `scope` (the dotted name of the class or function) are where it was put; `above` and
    `below` are the nearest lines around it that are not empty. `closed` says that what was inserted is whole
    statements: a line that came to belong to them since cannot stay without them.
    """

    before: bytes
    after: bytes
    line: int
    scope: str
    above: bytes = b""
    below: bytes = b""
    closed: bool = False

    @property
    def ends_the_file(self) -> bool:
        """Whether it was put behind a last line that had no newline."""
        return not self.before and self.after.startswith(_NEWLINES) and not self.after.endswith(_NEWLINES)


_NEWLINES = (b"\n", b"\r")


def between(old: bytes, new: bytes) -> tuple[Hunk, ...]:
    """The hunks that turn `old` into `new`."""
    a, b = old.splitlines(keepends=True), new.splitlines(keepends=True)
    tree = syntax(new)
    hunks = []
    last = (0, 0)
    for changed in _changed(a, b):
        i1, i2, j1, j2 = _grown_until_unique(a, b, new, changed, floor=last)
        last = (i2, j2)
        before, after = b"".join(a[i1:i2]), b"".join(b[j1:j2])
        if i2 == len(a) and before and not before.endswith(_NEWLINES) and after.startswith(before):
            before, after = b"", after[len(before) :]
        line = j1 + 1 + next((n for n, text in enumerate(after.splitlines()) if text.strip()), 0)
        above = next((text for text in reversed(b[:j1]) if text.strip()), b"").strip()
        below = next((text for text in b[j2:] if text.strip()), b"").strip()
        closed = not before and is_closed(tree, j1 + 1, j2)
        hunks.append(Hunk(before, after, j1 + 1, scope_at(tree, line), above, below, closed))
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
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(start + i1, start + i2, start + j1, start + j2) for tag, i1, i2, j1, j2 in codes if tag != "equal"]


def _grown_until_unique(
    a: Sequence[bytes], b: Sequence[bytes], new: bytes, span: tuple[int, int, int, int], floor: tuple[int, int]
) -> tuple[int, int, int, int]:
    """The span with as many equal lines around it as it takes to make its new text non-empty and unique."""
    i1, i2, j1, j2 = span
    while len(_places(new, b"".join(b[j1:j2]))) != 1:
        if j1 > floor[1] and i1 > floor[0]:
            i1, j1 = i1 - 1, j1 - 1
        elif j2 < len(b) and i2 < len(a) and a[i2] == b[j2]:
            i2, j2 = i2 + 1, j2 + 1
        else:
            break
    return i1, i2, j1, j2


def _places(data: bytes, text: bytes, *, behind: bool = False) -> list[int]:
    """The offsets at which `text`, whole lines, stands in `data`; with `behind` it begins with the end of a line."""
    places: list[int] = []
    at = data.find(text) if text else -1
    while at >= 0:
        end = at + len(text)
        starts = behind or at == 0 or data[at - 1 : at] in _NEWLINES
        ends = end == len(data) or text.endswith(_NEWLINES) or data[end : end + 1] in _NEWLINES
        if starts and ends:
            places.append(at)
        at = data.find(text, at + 1)
    return places


def find(data: bytes, hunk: Hunk) -> tuple[int, int] | None:
    """Where the hunk's text is in `data`, as offsets: unchanged, once, and still in its class or function; else None.

    Empty lines at the edges of what was inserted may have moved or gone: nobody can tell whose they are.
    """
    at = _the_one_in_scope(data, hunk, hunk.after, behind=hunk.ends_the_file)
    if at is not None:
        return _if_closed(data, hunk, at, at + len(hunk.after))
    lines = hunk.after.splitlines(keepends=True)
    solid = [n for n, line in enumerate(lines) if line.strip()]
    if hunk.before or not solid:
        return None
    core = b"".join(lines[solid[0] : solid[-1] + 1])
    core = core.rstrip(b"\r\n") if hunk.ends_the_file else core
    at = _the_one_in_scope(data, hunk, core)
    if at is None or _if_closed(data, hunk, at, at + len(core)) is None:
        return None
    return _with_gaps(data, at, at + len(core), len(lines) - len(solid), hunk)


def _if_closed(data: bytes, hunk: Hunk, start: int, end: int) -> tuple[int, int] | None:
    """The range, unless lines outside it have come to belong to its statements."""
    tree = syntax(data) if hunk.closed else None
    first = line_of(data, start)
    last = first + len(data[start:end].splitlines()) - 1
    return (start, end) if tree is None or is_closed(tree, first, last) else None


def _the_one_in_scope(data: bytes, hunk: Hunk, text: bytes, *, behind: bool = False) -> int | None:
    places = _places(data, text, behind=behind)
    tree = syntax(data) if places else None
    if tree is None:
        return places[0] if len(places) == 1 else None
    skipped = len(text) - len(text.lstrip())
    inside = [at for at in places if scope_at(tree, line_of(data, at + skipped)) == hunk.scope]
    return inside[0] if len(inside) == 1 else None


_EMPTY_BEFORE = re.compile(rb"(?:^|(?<=[\r\n]))[ \t\f]*(?:\r\n|\n|\r)$")
_EMPTY_AFTER = re.compile(rb"[ \t\f]*(?:\r\n|\n|\r)")


def _with_gaps(data: bytes, start: int, end: int, count: int, hunk: Hunk) -> tuple[int, int]:
    """The range with at most `count` empty lines around it, and at the file's end the newline of the line above."""
    inner = [line for line in hunk.after.strip().splitlines() if not line.strip()]
    count -= len(inner)
    while count > 0 and (found := _EMPTY_BEFORE.search(data, max(0, start - 200), start)):
        start, count = found.start(), count - 1
    while count > 0 and (found := _EMPTY_AFTER.match(data, end)):
        end, count = found.end(), count - 1
    if hunk.ends_the_file and end == len(data):
        start -= 2 if data[:start].endswith(b"\r\n") else 1 if start else 0
    return start, end


def take_out(data: bytes, hunks: Sequence[Hunk]) -> bytes | None:
    """`data` with each hunk's text put back to what was there before; None where one cannot be found."""
    for hunk in reversed(hunks):
        found = find(data, hunk)
        if found is None:
            return None
        data = data[: found[0]] + hunk.before + data[found[1] :]
    return data


def take_out_found(data: bytes, hunks: Sequence[Hunk]) -> bytes:
    """`data` without those of the hunks that can be found."""
    for hunk in reversed(hunks):
        without = take_out(data, [hunk])
        data = data if without is None else without
    return data


def in_its_place(data: bytes, hunk: Hunk) -> tuple[int, bytes] | None:
    """The first line (from 1, and its text) that stands where a hunk's text was.

    None where nothing does, but what was there before it.
    """
    lines = [line.strip() for line in data.splitlines()]
    starts = [n for n, line in enumerate(lines) if line == hunk.above] if hunk.above else [-1]
    ends = [n for n, line in enumerate(lines) if line == hunk.below] if hunk.below else [len(lines)]
    pairs = [(start, end) for start in starts for end in ends if start < end]
    if not pairs:
        return None
    start, end = min(pairs, key=lambda pair: (pair[1] - pair[0], abs(pair[0] - hunk.line)))
    before = {line.strip() for line in hunk.before.splitlines()}
    return next(((n + 1, lines[n]) for n in range(start + 1, end) if lines[n] and lines[n] not in before), None)


def line_of(data: bytes, offset: int) -> int:
    """The line number (from 1) of an offset."""
    return len(data[:offset].splitlines()) + (1 if offset == 0 or data[offset - 1 : offset] in _NEWLINES else 0)


def placed(data: bytes, hunks: Sequence[Hunk]) -> tuple[Hunk, ...]:
    """The hunks with the lines at which they stand in `data`."""
    found = [(hunk, find(data, hunk)) for hunk in hunks]
    return tuple(replace(hunk, line=line_of(data, at[0])) if at else hunk for hunk, at in found)
