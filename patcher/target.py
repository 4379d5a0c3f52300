"""Find and describe one SGLang source tree, without importing it.

Importing SGLang takes seconds and needs a GPU driver, so everything here is read from files.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from patcher.errors import NotPermitted, PatcherError, Surroundings, TargetNotFound, UsageError

PACKAGE = "sglang"
LEDGER = ".sglang-patch"
TARGET_VARIABLE = "SGLANG_PATCH_TARGET"

# What an interpreter is asked. Its start-up may print too, so each answer is on a line with a mark; the working
# directory, which `-c` puts first as an empty entry, is not where an installed program would look.
_MARK = "\x1fsglang-patch "
_ASK = f"import sys; sys.path[:] = [p for p in sys.path if p]; tell = lambda t: print(chr(10) + {_MARK!r} + str(t)); "
_FIND = f"{_ASK}import importlib.util as u; s = u.find_spec('sglang'); tell((s and s.origin) or '')"
_SITE = f"{_ASK}import sysconfig; tell(sysconfig.get_path('purelib')); tell(sysconfig.get_path('platlib'))"


@dataclass(frozen=True)
class Target:
    """One SGLang source tree: `path` is the directory of the `sglang` package, with symbolic links resolved.

    `interpreter` is the Python that it was found through, if it was.
    """

    path: Path
    interpreter: str | None = field(default=None, compare=False, repr=False)

    @classmethod
    def find(
        cls,
        path: str | Path | None = None,
        *,
        python: str | Path | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Target:
        """The target that is meant: by path, by interpreter, by SGLANG_PATCH_TARGET, or this interpreter's own.

        A path may be the package, its parent (site-packages, `python/`), a checkout's root or a virtual environment.
        Raises TargetNotFound, saying where it looked.
        """
        if path is None and python is None and environ.get(TARGET_VARIABLE):
            try:
                return cls.find(environ[TARGET_VARIABLE])
            except (TargetNotFound, NotPermitted) as error:
                error.hint = f"it was named by {TARGET_VARIABLE}: check that variable, or name another with --target"
                raise
        if "" in (path, python):
            raise UsageError("an empty name is no target", hint="is a variable unset in the command that you typed?")
        if path is not None:
            return cls(_package_at(Path(path)), _interpreter_in(Path(path)))
        if python is not None:
            return cls(_package_of(str(python)), str(python))
        return cls(_package_here(), sys.executable)

    def site_packages(self) -> list[Path]:
        """Where the packages are that are installed beside this SGLang: those of its interpreter, or its own parent."""
        if self.interpreter is None:
            return [self.path.parent] if self.dist_info else []
        return list(dict.fromkeys(Path(line) for line in _ask(self.interpreter, _SITE) if Path(line).is_dir()))

    def read(self, relative: str) -> bytes | None:
        """The bytes of a file of the package, or None where there is none.

        Raises NotPermitted where it exists and may not be read.
        """
        path = self.path / relative
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise NotPermitted(
                f"cannot read it: {error.strerror}",
                where=str(path),
                hint="run sglang-patch as a user that can read SGLang's source",
            ) from error

    def modified(self, relative: str) -> int:
        """A file's modification time in nanoseconds since the epoch, 0 where there is none."""
        try:
            return (self.path / relative).stat().st_mtime_ns
        except OSError:
            return 0

    def link(self, relative: str) -> str | None:
        """What a file that is a symbolic link points to, or None."""
        path = self.path / relative
        return os.readlink(path) if path.is_symlink() else None  # noqa: PTH115 (its exact text)

    def containing(self, text: bytes, below: str = "srt") -> Iterator[str]:
        """The Python files below a directory of the package that contain a text, sorted, relative to the package."""
        for directory, folders, files in os.walk(self.path / below):
            folders.sort()
            for name in sorted(files):
                relative = (Path(directory) / name).relative_to(self.path).as_posix()
                if name.endswith(".py") and text in (self.read(relative) or b""):
                    yield relative

    @cached_property
    def version(self) -> str | None:
        """The version that the tree itself states, or else its metadata; None where neither does."""
        return self.tree_version or self.metadata_version

    @cached_property
    def tree_version(self) -> str | None:
        """The version written in `_version.py` or `version.py`, read without running them."""
        for name in ("_version.py", "version.py"):
            try:
                tree = ast.parse(self.read(name) or b"")
            except (SyntaxError, ValueError):
                continue
            for node in tree.body:
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                    if "__version__" in names and isinstance(node.value.value, str):
                        return node.value.value
        return None

    @cached_property
    def metadata_version(self) -> str | None:
        """The version in the name of the `.dist-info` directory beside the package; it can differ from the tree's."""
        return self.dist_info.name[len(PACKAGE) + 1 : -len(".dist-info")] if self.dist_info else None

    @cached_property
    def dist_info(self) -> Path | None:
        """The `.dist-info` directory whose RECORD lists this very package, if there is one."""
        records = sorted(self.path.parent.glob(f"{PACKAGE}-*.dist-info/RECORD"))
        readable = (record for record in records if os.access(record, os.R_OK))
        listed = f"{PACKAGE}/__init__.py,"
        return next((record.parent for record in readable if listed in record.read_text("utf-8", "replace")), None)

    @cached_property
    def kind(self) -> str:
        """`wheel` (a RECORD lists its files), `git` (a work tree tracks them) or `tree` (plain files)."""
        if self.dist_info:
            return "wheel"
        return "git" if self.work_tree else "tree"

    @cached_property
    def work_tree(self) -> Path | None:
        """The root of the git work tree that tracks this package, or None."""
        from patcher.git import tracks

        return next((root for root in self.path.parents if (root / ".git").exists() and tracks(root, self.path)), None)

    def describe(self) -> dict[str, object]:
        """The `target` object of the JSON documents."""
        described: dict[str, object] = {"path": str(self.path), "version": self.version, "kind": self.kind}
        if self.metadata_version and self.metadata_version != self.version:
            described["metadata_version"] = self.metadata_version
        return described


def _interpreter_in(path: Path) -> str | None:
    """The interpreter of a virtual environment, or None for any other path."""
    python = path.expanduser() / "bin" / "python"
    return str(python) if os.access(python, os.X_OK) else None


def _is_package(path: Path) -> bool:
    return (path / "__init__.py").is_file() and (path / "srt").is_dir()


def _package_at(path: Path) -> Path:
    """The `sglang` package that a path means."""
    places = [path, path / PACKAGE, path / "python" / PACKAGE]
    try:
        path = path.expanduser()
        places = [path, path / PACKAGE, path / "python" / PACKAGE]
        if not path.exists():
            raise TargetNotFound(
                "there is nothing at this path", where=str(path), hint="check the spelling of --target"
            )
        found = [place for place in places if _is_package(place)][:1] or [
            place
            for lib in ("lib", "lib64")
            for place in sorted(path.glob(f"{lib}/python*/site-packages/{PACKAGE}"))
            if _is_package(place)
        ]
    except PatcherError:
        raise
    except PermissionError as error:
        raise _closed(path) from error
    except (OSError, RuntimeError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise TargetNotFound(f"this cannot be a path: {said}", where=str(path), hint="check --target") from error
    distinct = sorted({place.resolve() for place in found})
    if len(distinct) > 1:
        raise TargetNotFound(
            "more than one SGLang is installed here",
            where=str(path),
            found=", ".join(map(str, distinct)),
            hint="give one of them to --target",
        )
    if distinct:
        return distinct[0]
    interpreter = path / "bin" / "python"
    if interpreter.exists():
        return _package_of(str(interpreter))
    raise TargetNotFound(
        "no SGLang source tree here",
        where=str(path),
        expected=f"{PACKAGE}/ with __init__.py and srt/, its parent, a checkout or a virtual environment",
        found=_what_is_at(path),
        hint="sglang-patch --target /path/to/site-packages status, or --python /path/to/venv/bin/python",
    )


def _what_is_at(path: Path) -> str:
    if not path.is_dir():
        return "a file, not a directory"
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except PermissionError as error:
        raise _closed(path) from error
    return (
        f"a directory with {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}" if names else "an empty directory"
    )


def _package_of(python: str) -> Path:
    """The `sglang` package that another interpreter would import; it is asked, and does not import it."""
    origin = next(iter(_ask(python, _FIND)), "")
    if not origin or not _is_package(Path(origin).parent):
        raise TargetNotFound(
            "this interpreter has no SGLang installed", where=python, hint=f"{python} -m pip install {PACKAGE}"
        )
    return Path(origin).parent.resolve()


def _closed(path: Path) -> NotPermitted:
    return NotPermitted("cannot look into it: permission denied", where=str(path), hint="run as a user that may")


def _ask(python: str, question: str) -> list[str]:
    """An interpreter's answers; raises Surroundings where it cannot be run."""
    try:
        asked = subprocess.run([python, "-c", question], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Surroundings(
            f"cannot run this interpreter: {error}", where=python, hint="give --python the path of a Python executable"
        ) from error
    if asked.returncode:
        raise Surroundings(
            "this interpreter failed when it was asked for SGLang",
            where=python,
            found=(asked.stderr.strip().splitlines() or ["no message"])[-1],
            hint="give --python the path of a Python executable",
        )
    return [line[len(_MARK) :] for line in asked.stdout.splitlines() if line.startswith(_MARK)]


def _package_here() -> Path:
    """The `sglang` package that the running interpreter would import."""
    from importlib.util import find_spec

    spec = find_spec(PACKAGE)
    if spec is not None and spec.origin and _is_package(Path(spec.origin).parent):
        return Path(spec.origin).parent.resolve()
    raise TargetNotFound(
        "SGLang is not installed for the interpreter that runs sglang-patch",
        where=sys.executable,
        hint="name it: --target /path/to/site-packages, --python /path/to/venv/bin/python, or "
        f"{TARGET_VARIABLE}=/path in the environment",
    )
