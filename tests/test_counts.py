"""What a command costs, counted: modules imported, processes started, files read and parsed. No clock is asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libcst
import pytest

from patcher import Target, apply, status
from tests.conftest import TREES
from tests.test_cli import code_of, environment, run

# Runs the command, then shows what it imported, started and opened.
_WATCHED = """
import json, sys
started, opened = [], []
def hook(event, arguments):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system"):
        started.append(event)
    if event == "open" and isinstance(arguments[0], str):
        opened.append(arguments[0])
sys.addaudithook(hook)
from patcher.cli import main
code = main(sys.argv[1:])
shown = {"code": code, "modules": sorted(sys.modules), "started": started, "opened": opened}
print(json.dumps(shown), file=sys.stderr)
"""

# Each takes longer to import than a whole check may take, or is of no use to it.
HEAVY = {
    "libcst": "parses Python",
    "git": "GitPython",
    "gitdb": "the objects of git",
    "rich": "tables and colours",
    "pygments": "colours of diffs",
    "filelock": "the lock of whoever writes",
    "packaging": "versions",
    "asyncio": "never",
    "multiprocessing": "never",
    "unittest": "never",
    "email": "metadata of distributions",
}


class Cost:
    """What one command took."""

    def __init__(self, *arguments: object) -> None:
        words = [sys.executable, "-c", _WATCHED, *map(str, arguments)]
        done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=True)
        shown = json.loads(done.stderr.splitlines()[-1])
        self.code: int = shown["code"]
        self.modules: list[str] = shown["modules"]
        self.started: list[str] = shown["started"]
        self.opened: list[str] = shown["opened"]

    def imported(self, names: dict[str, str]) -> set[str]:
        return {name.partition(".")[0] for name in self.modules} & set(names)


@pytest.fixture
def tree(fixture_tree: Callable[[str], Path]) -> Path:
    """The package of an unpatched tree in the shape of 0.5.9."""
    return fixture_tree("classic")


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A patched checkout, read and never written here."""
    checkout = tmp_path_factory.mktemp("applied")
    package = Path(shutil.copytree(TREES / "classic" / "sglang", checkout / "python" / "sglang"))
    for words in ("init --quiet", "add --all", "-c user.name=S -c user.email=s@example.com commit --quiet -m all"):
        subprocess.run(["git", "-C", checkout, *words.split()], check=True)
    assert run("--target", package, "apply").returncode == 0
    return package


# A check runs before every start of a server


@pytest.mark.parametrize("words", ["check", "check nccl-defaults", "check --json"])
def test_a_check_of_an_applied_tree_imports_nothing_heavy(words: str, applied: Path) -> None:
    cost = Cost("--target", applied, *words.split())
    assert cost.code == 0
    assert cost.imported(HEAVY) == set()


@pytest.mark.parametrize("words", ["check", "check nccl-defaults", "diff", "status"])
def test_reading_an_applied_tree_starts_no_process(words: str, applied: Path, tmp_path: Path) -> None:
    plain = Path(shutil.copytree(applied, tmp_path / "sglang"))
    assert Cost("--target", plain, *words.split()).started == []
    assert words == "status" or Cost("--target", applied, *words.split()).started == []


def test_a_check_reads_each_file_once_and_no_other(applied: Path) -> None:
    cost = Cost("--target", applied, "check")
    read = Counter(path for path in cost.opened if path.startswith(str(applied)) and path.endswith(".py"))
    names = {Path(path).relative_to(applied).as_posix() for path in read}
    assert names <= {"srt/entrypoints/engine.py", "srt/models/kimi_k25.py", "version.py", "_version.py"}
    assert set(read.values()) == {1}


def test_help_and_version_import_nothing_heavy_either() -> None:
    for option in ("--help", "--version"):
        assert Cost(option).imported(HEAVY) == set()


# An apply


def calls_of_git(folder: Path, *arguments: object) -> list[str]:
    """The git commands that a command runs, in order."""
    folder.mkdir(exist_ok=True)
    record = folder / "record"
    record.write_text("")
    (folder / "git").write_text(f'#!/bin/sh\necho "$*" >>{record}\nexec {shutil.which("git")} "$@"\n')
    (folder / "git").chmod(0o755)
    path = os.pathsep.join(
        [str(folder), *(part for part in os.environ["PATH"].split(os.pathsep) if part != str(folder))]
    )
    assert run(*arguments, env={"PATH": path}).returncode == 0
    return record.read_text().splitlines()


def test_an_apply_starts_git_a_few_times_however_much_it_changes(tree: Path, tmp_path: Path) -> None:
    both = Path(shutil.copytree(tree, tmp_path / "both" / "sglang"))
    of_one = calls_of_git(tmp_path / "bin", "--target", tree, "apply", "nccl-defaults")
    of_two = calls_of_git(tmp_path / "bin", "--target", both, "apply")
    assert len(of_one) == len(of_two) <= 7
    assert len(calls_of_git(tmp_path / "bin", "--target", tree, "apply")) <= 5, "the ledger is there"
    assert len(calls_of_git(tmp_path / "bin", "--target", both, "revert", "--all")) <= 5


def test_what_has_nothing_to_do_starts_no_git(tree: Path, tmp_path: Path) -> None:
    assert code_of("--target", tree, "apply") == 0
    for words in ("apply", "apply --dry-run", "check", "status", "diff", "apply nccl-defaults"):
        assert calls_of_git(tmp_path / "bin", "--target", tree, *words.split()) == [], words


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """How often LibCST parsed each text."""
    counted: Counter[bytes] = Counter()
    parse = libcst.parse_module

    def counting(source: str | bytes, *arguments: Any, **settings: Any) -> libcst.Module:
        counted[source if isinstance(source, bytes) else source.encode()] += 1
        return parse(source, *arguments, **settings)

    monkeypatch.setattr(libcst, "parse_module", counting)
    return counted


def test_an_apply_parses_each_file_once(wheel_tree: Callable[..., Path], parsed: Counter[bytes]) -> None:
    package = wheel_tree("0.5.9")
    files = [(package / name).read_bytes() for name in ("srt/entrypoints/engine.py", "srt/models/kimi_k25.py")]
    apply(Target.find(package))
    assert [parsed[text] for text in files] == [1, 1]


def test_a_status_parses_each_file_once_and_an_applied_one_never(tree: Path, parsed: Counter[bytes]) -> None:
    files = [(tree / name).read_bytes() for name in ("srt/entrypoints/engine.py", "srt/models/kimi_k25.py")]
    status(Target.find(tree))
    assert [parsed[text] for text in files] == [1, 1]
    assert code_of("--target", tree, "apply") == 0
    parsed.clear()
    status(Target.find(tree))
    assert code_of("--target", tree, "apply") == 0
    assert parsed == {}
