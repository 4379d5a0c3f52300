"""What every test may use: copies of trees to patch, and an environment that nobody lives in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import releases

TREES = releases.REPO / "fixtures" / "trees"


@pytest.fixture(scope="session", autouse=True)
def nobody_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty home and no inherited settings, so that no test reads or edits those of whoever runs it."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("GIT_", "NCCL_", "SGLANG_"))]:
            if name != "SGLANG_PATCH_CACHE":
                patch.delenv(name)
        if "PIP_CONFIG_FILE" not in os.environ and (pip_config := _pip_config()):
            # Fetching a release needs the index that this user's pip is set up for.
            patch.setenv("PIP_CONFIG_FILE", str(pip_config))
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
        yield home
    left = [name for name in (".gitconfig", ".config/git", ".git-credentials") if (home / name).exists()]
    assert not left, f"a test wrote git configuration into the home directory: {left}"


@pytest.fixture
def fixture_tree(tmp_path: Path) -> Callable[[str], Path]:
    """Copies fixtures/trees/<name> as a plain tree; returns its `sglang` directory."""

    def copy(name: str) -> Path:
        place = _fresh(tmp_path, name)
        shutil.copytree(TREES / name, place, ignore=shutil.ignore_patterns("__pycache__"))
        return place / "sglang"

    return copy


@pytest.fixture
def wheel_tree(tmp_path: Path, _unpacked_once: Callable[[str, bool], Path]) -> Callable[..., Path]:
    """Copies a real release as pip installs it, without bytecode and scripts; returns its `sglang` directory.

    By default only what the patches look at, about 60 files: metadata with its complete RECORD, the package's own top
    level, srt/server.py, srt/entrypoints/**/*.py and srt/models/kimi_k25.py. `whole=True` is every file, up to 6,400.
    """

    def copy(version: str, *, whole: bool = False) -> Path:
        place = _fresh(tmp_path, version)
        shutil.copytree(_unpacked_once(version, whole), place)
        return place / "sglang"

    return copy


@pytest.fixture(scope="session")
def _unpacked_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    """One unpacked release a session, to copy from and never to write to."""
    done: dict[tuple[str, bool], Path] = {}

    def unpack(version: str, whole: bool) -> Path:
        if (version, whole) not in done:
            place = tmp_path_factory.mktemp(f"{version}-{'whole' if whole else 'slim'}")
            releases.unpacked(version, place, only=None if whole else _slim)
            done[version, whole] = place
        return done[version, whole]

    return unpack


def _slim(name: str) -> bool:
    """Whether a slim tree has the file `name`, a path in the wheel."""
    top_level = name.startswith("sglang/") and name.count("/") == 1
    entrypoint = name.startswith("sglang/srt/entrypoints/") and name.endswith(".py")
    return top_level or entrypoint or name in {"sglang/srt/server.py", "sglang/srt/models/kimi_k25.py"}


def _fresh(folder: Path, name: str) -> Path:
    """A name in `folder` that is not taken: a test may ask for the same tree twice."""
    return next(path for number in range(1000) if not (path := folder / f"{name}-{number}" / "site-packages").exists())


def _pip_config() -> Path | None:
    """The configuration file that pip reads in this user's home, if there is one."""
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    candidates = (config_home / "pip" / "pip.conf", Path.home() / ".pip" / "pip.conf")
    return next((path for path in candidates if path.is_file()), None)
