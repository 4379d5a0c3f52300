"""The picture of releases by patch, coloured by state: an SVG that reads on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

_COLOURS = {
    "applied": "#2da44e",
    "upstream": "#54aeff",
    "absent": "#d0d7de",
    "not-applied": "#eac54f",
    "partial": "#fb8f44",
    "conflict": "#cf222e",
}
_CELL, _LEFT, _TOP, _ROW = 9, 170, 14, 26
_HEAD = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" font-family="sans-serif" font-size="12">'
_STYLE = "<style>text{fill:#24292f}@media(prefers-color-scheme:dark){text{fill:#e6edf3}}</style>"


def picture(states: Mapping[str, Mapping[str, str]]) -> str:
    """An SVG with a row a patch and a column a release; `states` is release, then patch, then state."""
    names = list(dict.fromkeys(name for row in states.values() for name in row))
    bottom = _TOP + len(names) * _ROW
    parts = [_HEAD.format(_LEFT + len(states) * _CELL + 20, bottom + 62), _STYLE]
    for n, name in enumerate(names):
        parts.append(_text(_LEFT - 10, _TOP + n * _ROW + 13, name, anchor="end"))
        parts += [
            _square(x, n, version, name, row[name]) for x, (version, row) in enumerate(states.items()) if name in row
        ]
    parts += [_text(_LEFT + column * _CELL, bottom + 16, label) for column, label in _labels(list(states))]
    used = [state for state in _COLOURS if any(state in row.values() for row in states.values())]
    for n, state in enumerate(used):
        x, y = _LEFT + n * 100, bottom + 34
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{_COLOURS[state]}"/>')
        parts.append(_text(x + 18, y + 11, state))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _labels(versions: list[str]) -> Iterator[tuple[int, str]]:
    """A column for the first release of each minor version and for every fifth release after it that has room."""
    last = -10
    minor = ""
    for column, version in enumerate(versions):
        first = version.rpartition(".")[0] != minor and ".post" not in version
        minor = version.rpartition(".")[0] if first else minor
        if column - last >= (5 if first else 8) and version.count(".") == 2:
            last = column
            yield column, version


def _text(x: int, y: int, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _square(column: int, row: int, version: str, name: str, state: str) -> str:
    x, y, title = _LEFT + column * _CELL, _TOP + row * _ROW, escape(f"{version}, {name}: {state}")
    return f'<rect x="{x}" y="{y}" width="8" height="18" fill="{_COLOURS[state]}"><title>{title}</title></rect>'
