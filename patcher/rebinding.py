"""Find code that puts something else in the place of a patched function at run time: then the patched source is dead.

RL frameworks do this so that SGLang sets no signal handlers in their actors (sglang issue 6723): verl and SkyRL assign
to `sglang.srt.entrypoints.engine._set_envs_and_config`, RLinf hands that dotted name to a patcher of its own, and from
0.5.11 SGLang's plugins can replace a function by its dotted name. Files are read, never imported.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from patcher.source import syntax
from patcher.target import PACKAGE, Target

# What a function that puts one thing in the place of another is called: setattr, patch.object, add_patch, register...
_REPLACES = re.compile(r"setattr|delattr|patch|hook|regist|replac|overrid|wrap|mock|stub|swap", re.IGNORECASE)
_TEST = re.compile(r"(^|/)(tests?/|testing/|conftest\.py$|test_\w*\.py$|\w*_test\.py$)")
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}
_EDITABLE = re.compile(r"^MAPPING\b[^=]*= *(\{.*\})", re.MULTILINE)


@dataclass(frozen=True)
class Rebinding:
    """Code that rebinds a patched name: `line` (from 1) of `path`, in the top-level `package`.

    `what` says how, in a few words; where it is only suspected, it begins with "may". `evidence` is the line itself.
    """

    package: str
    path: Path
    line: int
    what: str
    evidence: str


def rebinders(site_packages: Iterable[Path], names: Mapping[str, str | tuple[str, ...]]) -> list[Rebinding]:
    """The installed code that rebinds one of these names at run time, in the order of the directories.

    `names` are the patched attributes of each module, or of each class by its dotted name. SGLang itself is passed
    over, but for its tests. Packages that are installed as editable are followed to where they are. What cannot be read
    is passed over.
    """
    patched = _Patched(names)
    places = [place for root in site_packages for place in (_Place(root), *_editable(root))]
    found: list[Rebinding] = []
    for package, path, relative in (file for place in dict.fromkeys(places) for file in place.files()):
        test = bool(_TEST.search(relative))
        text = patched.text(path) if package != PACKAGE or test else None
        if text is not None:
            found += [_noted(one, package, path, text, test) for one in _Reading(patched, text).found()]
    return list(dict.fromkeys(found))


def rebound_in_tree(target: Target, file: str, function: str) -> list[Rebinding]:
    """The other modules of an SGLang tree, without its tests, that rebind a function of `file` or hide it by their own.

    A module that imports the function and then defines the name again calls its own; the patched one is not reached.
    """
    module = f"{PACKAGE}.{file.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
    patched = _Patched({module: function})
    found: list[Rebinding] = []
    for package, path, relative in _Place(target.path, PACKAGE).files():
        text = None if relative == file or _TEST.search(relative) else patched.text(path)
        if text is not None:
            reading = _Reading(patched, text, f"{PACKAGE}/{relative}")
            found += [
                _noted(one, package, path, text, False) for one in (*reading.found(), *reading.hidden(module, function))
            ]
    return list(dict.fromkeys(found))


_Found = tuple[ast.AST, str]


@dataclass(frozen=True)
class _Place:
    """A directory with packages in it, or with `package` the directory of one package."""

    root: Path
    package: str = ""

    def files(self) -> Iterator[tuple[str, Path, str]]:
        """Its Python files: the package, the path, and the path below this place."""
        for directory, folders, names in os.walk(self.root):
            folders[:] = sorted(one for one in folders if one not in _SKIPPED and not one.startswith("."))
            inner = os.path.relpath(directory, self.root)
            for name in sorted(names):
                if name.endswith(".py"):
                    relative = name if inner == "." else f"{inner}/{name}".replace(os.sep, "/")
                    yield (
                        self.package or relative.partition("/")[0].removesuffix(".py"),
                        Path(directory, name),
                        relative,
                    )


def _editable(site: Path) -> Iterator[_Place]:
    """Where the packages are that are installed here as editable: named by .pth files, or by setuptools' finders."""
    for path in sorted(site.glob("*.pth")):
        for line in _lines(path):
            place = Path(line.strip())
            if (
                place.is_absolute()
                and place != Path(place.anchor)
                and place.is_dir()
                and not site.is_relative_to(place)
            ):
                yield _Place(place)
    for path in sorted(site.glob("__editable__*_finder.py")):
        for mapping in _EDITABLE.findall("\n".join(_lines(path))):
            try:
                packages = ast.literal_eval(mapping)
            except (ValueError, SyntaxError):
                continue
            yield from (_Place(Path(place), package) for package, place in packages.items() if Path(place).is_dir())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


class _Patched:
    """The names that are patched, by the dotted name of what they are attributes of."""

    def __init__(self, names: Mapping[str, str | tuple[str, ...]]) -> None:
        self.names = {owner: {one} if isinstance(one, str) else set(one) for owner, one in names.items()}
        self.attributes = {name for names in self.names.values() for name in names}
        self._words = [name.encode() for name in self.attributes]

    def text(self, path: Path) -> bytes | None:
        """The bytes of a file that contains one of the names, None for any other."""
        try:
            text = path.read_bytes()
        except OSError:
            return None
        return text if any(word in text for word in self._words) else None

    def owners(self, attribute: str) -> list[str]:
        """The modules and classes of which this is a patched attribute."""
        return [owner for owner, names in self.names.items() if attribute in names]

    def dotted(self, text: object) -> str | None:
        """The patched name that a text spells in full, as `module.name` or `module:name`."""
        owner, _, name = text.replace(":", ".").rpartition(".") if isinstance(text, str) else ("", "", "")
        return f"{owner}.{name}" if name in self.names.get(owner, ()) else None


class _Reading:
    """One file: what its names stand for, and what it does to the patched ones."""

    def __init__(self, patched: _Patched, text: bytes, relative: str = "") -> None:
        self.patched = patched
        self.text = text
        self.tree = syntax(text)
        self.nodes = list(ast.walk(self.tree)) if self.tree else []
        self.package = relative.split("/")[:-1]
        self.known: dict[str, set[str]] = {}
        for node in self.nodes:
            self._import(node)
        for _ in range(2):
            for node in self.nodes:
                if isinstance(node, ast.Assign | ast.NamedExpr) and (meant := self.meant(node.value)):
                    for to in node.targets if isinstance(node, ast.Assign) else (node.target,):
                        if isinstance(to, ast.Name):
                            self.known.setdefault(to.id, set()).update(meant)

    def _import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for one in node.names:
                meant = one.name if one.asname else one.name.partition(".")[0]
                self.known.setdefault(one.asname or meant, set()).add(meant)
        elif isinstance(node, ast.ImportFrom):
            base = self.package[: len(self.package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            for one in node.names:
                self.known.setdefault(one.asname or one.name, set()).add(f"{module}.{one.name}")

    def meant(self, node: ast.expr) -> set[str]:
        """The dotted names that an expression may stand for, wherever in the file it is."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id, set())
        if isinstance(node, ast.Attribute):
            return {f"{one}.{node.attr}" for one in self.meant(node.value)}
        named = ""
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func)
            if called == "sys.modules.get" or called.rpartition(".")[2] in ("import_module", "__import__"):
                named = _text(node.args[0])
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sys.modules":
            named = _text(node.slice)
        return {named} if named else set()

    def found(self) -> Iterator[_Found]:
        """The nodes that rebind a patched name, and how."""
        if self.tree is None:
            yield ast.Pass(lineno=1), "may rebind a patched name: the file does not parse"
        for node in self.nodes:
            if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                yield from self._assigned(node)
            elif isinstance(node, ast.Call) and _REPLACES.search(ast.unparse(node.func)):
                yield from self._replaced(node)

    def _assigned(self, node: ast.Attribute | ast.Subscript) -> Iterator[_Found]:
        owner, name = (node.value, node.attr) if isinstance(node, ast.Attribute) else _entry(node)
        meant = self.meant(owner)
        for patched in self.patched.owners(name):
            if patched in meant:
                yield node, f"assigns to {patched}.{name}"
            elif not meant and self._is_likely(owner, patched):
                yield node, f"may assign to {patched}.{name}, if {ast.unparse(owner)} is that"

    def _is_likely(self, owner: ast.expr, patched: str) -> bool:
        """Whether something that cannot be told apart may be a patched module: one that the file names in full."""
        own = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
        imported = any(patched in meant for meant in self.known.values())
        return not own and (imported or patched.encode() in self.text)

    def _replaced(self, node: ast.Call) -> Iterator[_Found]:
        """A call of something that replaces: with the patched name in full, or with its owner and the name after it."""
        how, values = f"{ast.unparse(node.func)}()", [*node.args, *(word.value for word in node.keywords)]
        ends = {ast.unparse(one).rpartition(".")[2] for one in values if isinstance(one, ast.Attribute)}
        if ends & {"BEFORE", "AFTER"}:
            return  # hooks of SGLang's plugins: the patched function runs all the same
        hooks = how.rpartition(".")[2] in ("register()", "plugin_hook()") and "REPLACE" not in ends
        replaces = "may replace" if hooks or "AROUND" in ends else "replaces"
        for value in values:
            if name := self.patched.dotted(_text(value)):
                yield node, f"{replaces} {name} by {how}"
        for owner, value in pairwise(values):
            for patched in self._owners(owner):
                if _text(value) in self.patched.names[patched]:
                    yield node, f"replaces {patched}.{_text(value)} by {how}"
                elif not isinstance(value, ast.Constant) and (name := self._spelt(patched)):
                    yield node, f"may replace {patched}.{name} by {how}"
        for patched in self._owners(values[0]) if values else ():
            for word in node.keywords:
                if word.arg in self.patched.names[patched]:
                    yield node, f"replaces {patched}.{word.arg} by {how}"

    def _owners(self, node: ast.expr) -> list[str]:
        """The modules and classes with patched names that an expression stands for or spells."""
        return sorted({*self.meant(node), _text(node)} & self.patched.names.keys())

    def _spelt(self, owner: str) -> str:
        """A patched name of an owner that the file has as a text of its own."""
        texts = {node.value for node in self.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        return min(texts & self.patched.names[owner], default="")

    def hidden(self, module: str, function: str) -> Iterator[_Found]:
        """The definitions that take the place of what this file imported from a module under the same name."""
        names = {name for name, meant in self.known.items() if f"{module}.{function}" in meant}
        for node in self.tree.body if self.tree else ():
            targets = node.targets if isinstance(node, ast.Assign) else []
            bound = {one.id for one in targets if isinstance(one, ast.Name)}
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bound = {node.name}
            for name in sorted(bound & names):
                yield node, f"defines {name} in the place of the {module}.{function} that it imports"


def _entry(node: ast.Subscript) -> tuple[ast.expr, str]:
    """The `x` and `name` of `x.__dict__["name"]` or `vars(x)["name"]`; other entries have no name."""
    held = node.value
    if isinstance(held, ast.Attribute) and held.attr == "__dict__":
        return held.value, _text(node.slice)
    if isinstance(held, ast.Call) and ast.unparse(held.func) == "vars" and held.args:
        return held.args[0], _text(node.slice)
    return held, ""


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _noted(found: _Found, package: str, path: Path, text: bytes, test: bool) -> Rebinding:
    node, what = found
    line: int = getattr(node, "lineno", 1)
    lines = text.splitlines()
    evidence = lines[line - 1].decode("utf-8", "replace").strip() if line <= len(lines) else ""
    return Rebinding(package, path, line, f"{what} (in a test)" if test else what, evidence[:160])
