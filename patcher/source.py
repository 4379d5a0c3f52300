"""One Python file as bytes and as a LibCST module, whichever is asked for."""

from __future__ import annotations

import ast
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import libcst as cst


class Unparsable(ValueError):
    """LibCST cannot read this file, or not without changing it."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


class Source:
    """A file of the target, read-only: its path relative to the package, its bytes, its syntax tree.

    It is made from bytes or from a module; the other side is computed when asked for, once. A chain of transforms
    therefore parses a file once.
    """

    def __init__(
        self,
        path: str,
        data: bytes | None = None,
        module: cst.Module | None = None,
        feeds: tuple[bytes, bytes] | None = None,
    ) -> None:
        if (data is None) == (module is None):
            raise TypeError("a Source is made from data or from a module")
        self.path = path
        # The bytes with the form feeds that LibCST drops, and the bytes that it gives back, line for line the same.
        self._feeds = feeds
        if data is not None:
            self.data = data
        if module is not None:
            self.module = module

    def with_module(self, module: cst.Module) -> Source:
        """The same file with other contents."""
        return Source(self.path, module=module, feeds=self._feeds)

    @cached_property
    def data(self) -> bytes:
        """The file's bytes, encoded as the file says, with its byte order mark if it has one."""
        return self.module.bytes if self._feeds is None else _with_feeds(*self._feeds, self.module.bytes)

    @cached_property
    def module(self) -> cst.Module:
        """The file's syntax tree.

        Raises Unparsable where LibCST cannot read the file, or would not give back the very bytes that it read.
        """
        import libcst as cst

        try:
            module = cst.parse_module(self.data)
            written = module.bytes
        except RecursionError as error:
            raise Unparsable(too_deep(self.data)) from error
        except cst.ParserSyntaxError as error:
            raise Unparsable(_why_unparsable(self.data, error.message), _line(self.data, error.raw_line)) from error
        except (UnicodeDecodeError, LookupError, SyntaxError, ValueError) as error:
            raise Unparsable(_why_unparsable(self.data, str(error) or type(error).__name__)) from error
        if written != self.data:
            if _without_feeds(written) != _without_feeds(self.data):
                guess = " (a lone carriage return?)" if b"\r" in self.data else ""
                raise Unparsable(f"its line endings, blanks or encoding would not survive a rewrite{guess}")
            self._feeds = self.data, written
        return module


def _without_feeds(data: bytes) -> list[bytes]:
    return data.replace(b"\x0c", b"").splitlines(keepends=True)


def _with_feeds(original: bytes, plain: bytes, new: bytes) -> bytes:
    """`new`, which was made from `plain`, with the lines that stayed as they are in `original`."""
    import difflib

    a, b, lines = (text.splitlines(keepends=True) for text in (plain, new, original))
    codes = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return b"".join(b"".join(lines[i1:i2] if tag == "equal" else b[j1:j2]) for tag, i1, i2, j1, j2 in codes)


def _line(data: bytes, line: int) -> int | None:
    """The line of the fault: Python's own word where it finds one too, as LibCST's can be the first of a statement."""
    try:
        ast.parse(data)
    except SyntaxError as error:
        return error.lineno
    except (ValueError, RecursionError, MemoryError):
        return None
    return line if line > 0 else None


def too_deep(data: bytes) -> str:
    """One sentence on a file that is nested more deeply than LibCST can follow."""
    return _why_unparsable(data, "it is nested too deeply")


def _why_unparsable(data: bytes, message: str) -> str:
    """One sentence; where Python itself can parse the file, it names the LibCST that cannot."""
    if parses(data):
        from importlib.metadata import version

        return f"LibCST {version('libcst')} cannot parse it, although Python can ({message}); a newer LibCST may"
    return f"it is not valid Python ({message})"


def parses(data: bytes) -> bool:
    """Whether the running Python can parse these bytes."""
    return syntax(data) is not None


def syntax(data: bytes) -> ast.Module | None:
    """The standard library's syntax tree of these bytes, or None if they do not parse."""
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def scope_at(tree: ast.Module | None, line: int) -> str:
    """The dotted name of the innermost class or function around a line (from 1), "" at module level."""
    names: list[str] = []
    body: list[ast.stmt] = tree.body if tree else []
    while True:
        inner = next((node for node in _definitions(body) if node.lineno <= line <= (node.end_lineno or 0)), None)
        if inner is None:
            return ".".join(names)
        names.append(inner.name)
        body = inner.body


def is_closed(tree: ast.Module | None, first: int, last: int) -> bool:
    """Whether lines (from 1, both included) hold whole statements, decorators and else-branches with them."""
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.stmt) and first <= node.lineno <= last:
            start = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            if start < first or (node.end_lineno or 0) > last:
                return False
    return True


def _definitions(body: list[ast.stmt]) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    found: list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef] = []
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node)
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            pending.extend(ast.iter_child_nodes(node))
    return found
