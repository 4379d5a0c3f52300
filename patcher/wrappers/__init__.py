"""Which wrapper classes of an SGLang tree can be given the three EAGLE-3 methods by delegation, proved from its source.

A wrapper is a class of `srt/models` that holds a causal language model. It fits if what it holds is of known classes
that have the methods and return the captured states, and its forward returns what theirs returned.
"""

from __future__ import annotations

import ast
import difflib
import gc
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from patcher.target import Target
from patcher.wrappers.classes import MODEL_NAME
from patcher.wrappers.inner import METHODS
from patcher.wrappers.judging import Verdict, Wrapper, holds_language_model, judge
from patcher.wrappers.modules import ClassRef, Module
from patcher.wrappers.tree import Reader, Tree

__all__ = ["METHODS", "NoWrapper", "Verdict", "Wrapper", "Wrappers", "find", "survey"]

MODELS = "srt/models"
SUFFIX = "ForConditionalGeneration"

_CLASS = re.compile(rb"^\s*class +(\w+)\s*(?:\(([^)]*)\))?", re.MULTILINE)
_MADE = re.compile(MODEL_NAME.pattern.removeprefix(r"\b\w*").encode() + rb"\(")
_MODULE = re.compile(
    rb"^\s*import +sglang\.srt\.models|^\s*from +(?:sglang\.srt(?:\.models)?|\.) +import", re.MULTILINE
)
_IMPORTED = re.compile(rb"^\s*from +(?:sglang\.srt\.models|\.)[\w.]* +import +(\([^)]*\)|[^\n]*)", re.MULTILINE)
_WORD = re.compile(rb"\w+")


@dataclass(frozen=True)
class NoWrapper:
    """No single wrapper is meant: `reason` is one sentence, `names` what may have been meant, as they can be given."""

    model: str
    reason: str
    names: tuple[str, ...] = ()


def survey(target: Target) -> list[Wrapper]:
    """Every wrapper class of a target, judged, by file and line."""
    return Wrappers(target.read, model_files(target)).survey()


def find(target: Target, model: str) -> Wrapper | NoWrapper:
    """One wrapper of a target: by its file's stem (`kimi_vl`), its class name, or `stem.ClassName`."""
    return Wrappers(target.read, model_files(target)).find(model)


def model_files(target: Target) -> list[str]:
    """The files below srt/models, sorted, relative to the package."""
    return sorted(path.relative_to(target.path).as_posix() for path in (target.path / MODELS).rglob("*.py"))


class Wrappers:
    """The wrapper classes among `files`, which `read` gives by path; each file is read and parsed at most once."""

    def __init__(self, read: Reader, files: Iterable[str]) -> None:
        self.files = sorted(files)
        self._tree = Tree(read)

    def survey(self) -> list[Wrapper]:
        """Every wrapper class, judged, by file and line."""
        with _collector_paused():
            found = [cls for path in self.files if self._can_define(path) for cls in self._candidates(path)]
            judged = [judge(self._tree, cls) for cls in dict.fromkeys(found)]
        return sorted(judged, key=lambda one: (one.file, one.line))

    def find(self, model: str) -> Wrapper | NoWrapper:
        """The wrapper that is meant by a file stem, a class name or `stem.ClassName`.

        A file without a wrapper is judged by the one class that it offers, to say why that one does not fit.
        """
        stem, _, name = model.rpartition("/")[2].removesuffix(".py").partition(".")
        paths = [path for path in self.files if _stem(path) == stem]
        paths = [path for path in paths if path == f"{MODELS}/{stem}.py"] or paths
        if name or not paths:
            found = self._called(name or stem, paths or self.files)
        else:
            found = [cls for path in paths for cls in self._candidates(path) or self._offered(path)]
        if len(found) == 1:
            return judge(self._tree, found[0])
        return self._several(model, found) if found else self._none(model, name, paths)

    def _called(self, name: str, paths: list[str]) -> list[ClassRef]:
        """The classes of a name in some files; where several have it, the wrappers among them."""
        holding = [path for path in paths if name.encode() in (self._tree.text(path) or b"")]
        found = [cls for path in holding for cls in self._classes(path) if cls.name == name]
        wrappers = [cls for cls in found if cls in self._candidates(cls.module.path)] if len(found) > 1 else []
        return wrappers or found

    def _several(self, model: str, found: list[ClassRef]) -> NoWrapper:
        distinct = len({cls.name for cls in found}) == len(found)
        names = tuple(cls.name if distinct else f"{_stem(cls.module.path)}.{cls.name}" for cls in found)
        where = ", ".join(cls.where for cls in found)
        return NoWrapper(model, f"{model} can mean {len(found)} classes ({where}): name one of them", names)

    def _none(self, model: str, name: str, paths: list[str]) -> NoWrapper:
        if broken := [path for path in paths if self._tree.module(path) is None]:
            return NoWrapper(model, f"{broken[0]} is not Python that can be parsed")
        if paths and name:
            offered = tuple(cls.name for path in paths for cls in self._candidates(path))
            return NoWrapper(model, f"{paths[0]} has no class {name}", offered)
        if paths:
            return NoWrapper(model, f"{paths[0]} offers no model class")
        known: dict[str, str] = {}
        for path in filter(self._can_define, self.files):
            classes = _CLASS.findall(self._tree.text(path) or b"")
            names = MODEL_NAME.findall(" ".join(name.decode("utf-8", "replace") for name, _ in classes))
            known |= {one.lower(): one for one in [_stem(path), *names]}
        near = difflib.get_close_matches(model.lower().replace("-", "_"), list(known), n=3, cutoff=0.6)
        return NoWrapper(model, f"this SGLang has no model file or class {model}", tuple(known[one] for one in near))

    def _classes(self, path: str) -> list[ClassRef]:
        module = self._tree.module(path)
        return module.classes() if module else []

    def _offered(self, path: str) -> list[ClassRef]:
        """The classes that a file offers as models, wherever they are defined."""
        module = self._tree.module(path)
        return [cls for name in module.entry_names() for cls in self._meant(module, name)] if module else []

    def _meant(self, module: Module, name: str) -> Iterator[ClassRef]:
        meanings = self._tree.meaning(ast.Name(name, ast.Load()), module)
        return (one for one in meanings if isinstance(one, ClassRef))

    def _candidates(self, path: str) -> list[ClassRef]:
        """The wrapper classes of a file: by their name, or offered as a model and holding a language model."""
        named = [cls for cls in self._classes(path) if cls.name.endswith(SUFFIX)]
        offered = [cls for cls in self._offered(path) if cls not in named and not cls.name.endswith(SUFFIX)]
        return [*named, *(cls for cls in offered if holds_language_model(self._tree, cls))]

    def _can_define(self, path: str) -> bool:
        """Whether a look at the text says that a file may define a wrapper, so that it is worth parsing.

        It may if a class has the name of one, or if it offers models and makes a language model, imports one from
        another file of srt/models, or has a base from there.
        """
        text = self._tree.text(path) or b""
        classes = _CLASS.findall(text)
        names = [name.decode("utf-8", "replace") for name, _ in classes]
        if any(name.endswith(SUFFIX) for name in names):
            return True
        if b"EntryClass" not in text:
            return False
        if len(_MADE.findall(text)) > sum(bool(MODEL_NAME.fullmatch(name)) for name in names) or _MODULE.search(text):
            return True
        imported = {word for listed in _IMPORTED.findall(text) for word in _WORD.findall(listed)}
        bases = {word for _, listed in classes for word in _WORD.findall(listed)}
        return bool(imported & bases) or any(MODEL_NAME.fullmatch(name.decode("utf-8", "replace")) for name in imported)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keeps Python from walking the growing syntax trees for garbage, which takes longer than parsing them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".py")
