"""A method to be added to a class, as data: a patch file can declare it without loading LibCST."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """A method to add: its name, its parameters as (name, annotation, default), what it returns, its docstring.

    Annotations are written with typing's names (`Optional[List[int]]`) and are given in the file's own style.
    """

    name: str
    parameters: tuple[tuple[str, str, str | None], ...] = ()
    returns: str = "None"
    doc: str = ""
