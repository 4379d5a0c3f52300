"""The record: a bare git repository beside the code, which anybody can read and nothing from outside can steer."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patcher import Target, Workplace, check, log, status
from tests.conftest import TREES
from tests.test_cli import as_nobody, code_of, contents, run

ENGINE, KIMI = "srt/entrypoints/engine.py", "srt/models/kimi_k25.py"
BASE = contents(TREES / "classic" / "sglang")
IDENTITY = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]


@pytest.fixture
def tree(fixture_tree: Callable[[str], Path]) -> Path:
    """The package of an unpatched tree in the shape of 0.5.9."""
    return fixture_tree("classic")


@pytest.fixture(scope="session")
def _applied_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = tmp_path_factory.mktemp("applied") / "site-packages" / "sglang"
    shutil.copytree(TREES / "classic" / "sglang", package)
    assert run("--target", package, "apply").returncode == 0
    return package


@pytest.fixture
def applied(_applied_once: Path, tmp_path: Path) -> Path:
    """The package of such a tree with both patches applied by one command."""
    return Path(shutil.copytree(_applied_once, tmp_path / "site-packages" / "sglang"))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="sglang-patch-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        for path in [Path(folder), *Path(folder).rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)


def git(folder: Path, *arguments: object) -> bytes:
    """What git prints about the ledger of a package, or in any other repository."""
    inside = ["--git-dir", folder / ".sglang-patch"] if (folder / ".sglang-patch").exists() else ["-C", folder]
    words = ["git", *map(str, inside), *IDENTITY, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, check=True).stdout


def repository(at: Path) -> Path:
    """Somebody's repository with one commit."""
    at.mkdir(parents=True, exist_ok=True)
    git(at, "init", "--quiet")
    (at / "README").write_text("somebody's own\n")
    git(at, "add", "--all")
    git(at, "commit", "--quiet", "--message", "mine")
    return at


def stamps(folder: Path) -> dict[str, tuple[int, ...]]:
    """Every path below a folder, with what changes when somebody writes it."""
    return {
        str(path.relative_to(folder)): (
            found.st_mode,
            found.st_ino,
            found.st_size,
            found.st_mtime_ns,
            found.st_ctime_ns,
        )
        for path in [folder, *folder.rglob("*")]
        for found in [path.lstat()]
    }


# What is in it


def test_it_is_a_bare_repository_that_a_checkout_does_not_see(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    package = checkout / "python" / "sglang"
    shutil.copytree(TREES / "classic" / "sglang", package)
    repository(checkout)
    assert code_of("--target", checkout, "apply") == 0
    assert git(package, "rev-parse", "--is-bare-repository") == b"true\n"
    changed = git(checkout, "status", "--porcelain", "--untracked-files=all").decode()
    assert changed == f" M python/sglang/{ENGINE}\n M python/sglang/{KIMI}\n"
    git(checkout, "add", "--all")
    git(checkout, "clean", "-d", "--force")
    assert git(checkout, "diff", "--cached", "--name-only").decode().split() == [
        f"python/sglang/{ENGINE}",
        f"python/sglang/{KIMI}",
    ]
    assert code_of("--target", checkout, "revert", "--all") == 0
    git(checkout, "reset", "--quiet")
    assert git(checkout, "status", "--porcelain") == b""
    assert len(log(Target.find(checkout))) == 2


def test_one_commit_per_operation_and_none_for_nothing(tree: Path) -> None:
    operations = ["apply nccl-defaults", "apply", "apply", "revert nccl-defaults", "check", "apply --dry-run"]
    operations += ["apply nccl-defaults --profile pcie-throughput", "revert --all", "revert --all", "status"]
    for words in operations:
        assert code_of("--target", tree, *words.split()) in (0, 1)
    subjects = git(tree, "log", "--format=%s", "main").decode().splitlines()
    assert subjects == [
        "revert nccl-defaults, kimi-k25-eagle3 (SGLang 0.5.9)",
        "apply nccl-defaults (SGLang 0.5.9)",
        "revert nccl-defaults (SGLang 0.5.9)",
        "apply kimi-k25-eagle3 (SGLang 0.5.9)",
        "apply nccl-defaults (SGLang 0.5.9)",
    ]
    assert [entry.subject for entry in log(Target.find(tree))] == subjects
    assert git(tree, "for-each-ref", "--format=%(refname)") == b"refs/heads/main\n"


def test_the_message_ends_in_trailers_that_git_reads(applied: Path) -> None:
    def trailers(name: str) -> list[str]:
        return git(applied, "log", "-1", f"--format=%(trailers:key={name},valueonly)", "main").decode().split("\n")[:-2]

    assert trailers("Operation") == ["apply"]
    assert trailers("SGLang-Version") == ["0.5.9"]
    assert trailers("Target-Kind") == ["tree"]
    assert trailers("Tool")[0].startswith("sglang-patch ")
    assert trailers("Target")[0].endswith("/site-packages/sglang")
    assert trailers("Patch") == [
        "nccl-defaults revision 1 profile pcie-latency (apply, was not-applied)",
        "kimi-k25-eagle3 revision 1 (apply, was not-applied)",
    ]
    assert log(Target.find(applied))[0].all("Patch") == trailers("Patch")


def test_the_tree_of_a_commit_has_every_byte(applied: Path) -> None:
    for path in (ENGINE, KIMI):
        assert git(applied, "show", f"main:base/{path}") == BASE[path]
        assert git(applied, "show", f"main:patched/{path}") == (applied / path).read_bytes()
    manifest = json.loads(git(applied, "show", "main:manifest.json"))
    assert [one["id"] for one in manifest["applications"]] == ["nccl-defaults", "kimi-k25-eagle3"]
    assert manifest["version"] == "0.5.9"


@pytest.mark.parametrize("tool", ["git apply", "patch -p1"])
def test_each_patch_is_in_it_as_a_diff_that_other_tools_take(tool: str, applied: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(TREES / "classic" / "sglang", tmp_path / "by-hand" / "sglang")
    for name in ("nccl-defaults", "kimi-k25-eagle3"):
        patch = git(applied, "show", f"main:patches/{name}.diff")
        subprocess.run(tool.split(), input=patch, cwd=copy.parent, check=True, capture_output=True)
    assert contents(copy) == contents(applied)


def test_git_log_shows_the_diff_and_not_the_bytes(applied: Path) -> None:
    assert code_of("--target", applied, "revert", "kimi-k25-eagle3") == 0
    shown = git(applied, "log", "--patch", "main").decode()
    assert shown.count("# sglang-patch: nccl-defaults") == 1, "the patch, once"
    assert shown.count("# sglang-patch: kimi-k25-eagle3") == 2, "put in, and taken out"
    assert '+     os.environ["CUDA_MODULE_LOADING"] = "AUTO"' in shown, "with the lines around it"
    for noise in ("base_sha256", "class Engine", "GIT binary patch"):
        assert noise not in shown
    noted = [line for line in shown.splitlines() if line.startswith("Binary files ")]
    commits, files = 2, 2
    assert len(noted) <= commits * (3 * files + 1), "one line for each file that is kept and not shown"


def test_git_finds_nothing_to_complain_about(tree: Path) -> None:
    for words in (
        "apply",
        "revert nccl-defaults",
        "apply nccl-defaults --set NCCL_NTHREADS=256",
        "revert --all",
        "apply",
    ):
        assert code_of("--target", tree, *words.split()) == 0
    words = ["git", "--git-dir", tree / ".sglang-patch", "fsck", "--strict", "--full", "--no-dangling"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Another place for it


def test_a_ledger_in_another_place(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "not" / "yet" / "there"
    assert code_of("--target", tree, "--ledger", elsewhere, "apply") == 0
    assert not (tree / ".sglang-patch").exists()
    assert set(contents(tree, ledger=True)) == set(BASE)
    assert code_of("--target", tree, "--ledger", elsewhere, "check") == 0
    assert code_of("--target", tree, "check") == 1, "nothing in the usual place"
    monkeypatch.chdir(elsewhere.parent)
    assert code_of("--target", tree, "--ledger", "there", "check") == 0
    place = Workplace.of(Target.find(tree), ledger=elsewhere)
    assert check(place).in_place
    assert (status(place).ledger, len(log(place))) == (elsewhere, 1)
    assert code_of("--target", tree, "--ledger", "there", "revert", "--all") == 0
    assert contents(tree, ledger=True) == BASE


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "with files"])
def test_somebodys_repository_is_not_taken_for_a_ledger(bare: bool, tree: Path, tmp_path: Path) -> None:
    theirs = repository(tmp_path / "theirs")
    git(theirs, "branch", "--force", "--move", "main")
    if bare:
        git(tmp_path, "clone", "--quiet", "--bare", theirs, tmp_path / "bare")
    place = tmp_path / "bare" if bare else theirs / ".git"
    before = contents(place)
    for words in ("status", "check", "apply", "repair"):
        assert code_of("--target", tree, "--ledger", place, *words.split()) == 4, words
    assert contents(place) == before
    assert contents(tree, ledger=True) == BASE


def test_a_folder_with_other_things_is_not_taken_for_a_ledger(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "config").write_text("mine\n")
    (tmp_path / "documents" / "thesis.tex").write_text("mine\n")
    before = contents(tmp_path / "documents")
    assert code_of("--target", tree, "--ledger", tmp_path / "documents", "apply") == 4
    assert contents(tmp_path / "documents") == before
    assert contents(tree, ledger=True) == BASE


# Reading: by anybody, without git, without a home, without writing


@pytest.fixture(scope="module")
def read_only() -> Iterator[Path]:
    """A patched checkout that root owns and nobody may write: SGLang in an image, for the service's own user."""
    with tempfile.TemporaryDirectory(prefix="sglang-patch-test-") as folder:
        checkout = Path(folder, "checkout")
        shutil.copytree(TREES / "classic" / "sglang", checkout / "python" / "sglang")
        repository(checkout)
        assert run("--target", checkout, "apply").returncode == 0
        places = [checkout, *checkout.rglob("*")]
        for path in places:
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
        Path(folder).chmod(0o555)
        yield checkout
        for path in [Path(folder), *(path for path in places if path.is_dir())]:
            path.chmod(0o755)


WITHOUT_ANYTHING: dict[str, str | None] = {"PATH": "/nonexistent", "HOME": None, "XDG_CONFIG_HOME": None}


@pytest.mark.parametrize(
    "words", ["check", "check --json", "check nccl-defaults", "status", "status --json", "log", "diff", "list", "apply"]
)
def test_reading_needs_no_git_no_home_and_no_permission_to_write(words: str, read_only: Path) -> None:
    before = stamps(read_only)
    done = as_nobody("--target", read_only, *words.split(), env=WITHOUT_ANYTHING)
    assert (done.returncode, done.stderr) == (0, "")
    assert stamps(read_only) == before


def test_what_would_write_says_that_it_may_not(read_only: Path) -> None:
    before = stamps(read_only)
    for words in ("revert --all", "apply nccl-defaults --set NCCL_NTHREADS=256", "repair"):
        done = as_nobody("--target", read_only, *words.split())
        assert done.returncode == 4
        assert str(read_only) in done.stderr
        assert "as root" in done.stderr
    assert stamps(read_only) == before


def test_writing_without_git_says_that_it_is_missing(tree: Path) -> None:
    done = run("--target", tree, "apply", env={"PATH": "/nonexistent"})
    assert done.returncode == 4
    assert "git" in done.stderr
    assert "install" in done.stderr
    assert contents(tree) == BASE
    assert run("--target", tree, "apply").returncode == 0, "and what it left does not matter"


@pytest.mark.parametrize("umask", [0o077, 0o027])
def test_what_root_writes_under_any_umask_another_user_can_read(umask: int, open_folder: Path) -> None:
    package = open_folder / "sglang"
    shutil.copytree(TREES / "classic" / "sglang", package)
    modes = {path: path.stat().st_mode for path in package.rglob("*")}
    for words, expected in (("apply", 0), ("revert nccl-defaults", 1), ("apply", 0)):
        assert run("--target", package, *words.split(), umask=umask).returncode == 0
        assert as_nobody("--target", package, "check", "nccl-defaults").returncode == expected
    for reading in ("status", "log", "diff"):
        assert as_nobody("--target", package, reading).returncode == 0
    assert {path: path.stat().st_mode for path in modes} == modes
    writable = [path for path in (package / ".sglang-patch").rglob("*") if path.stat().st_mode & 0o022]
    assert writable == [], "and nobody else can write it"


def test_a_private_tree_stays_private(open_folder: Path) -> None:
    package = open_folder / "sglang"
    shutil.copytree(TREES / "classic" / "sglang", package)
    for path in [package, *package.rglob("*")]:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o077)
    assert code_of("--target", package, "apply") == 0
    assert [path for path in [package, *package.rglob("*.py")] if path.stat().st_mode & 0o077] == []
    assert as_nobody("--target", package, "check").returncode == 4


# Nothing from outside steers it


FROM_OUTSIDE = {
    "GIT_DIR": "{git_dir}",
    "GIT_WORK_TREE": "{theirs}",
    "GIT_INDEX_FILE": "{git_dir}/index",
    "GIT_OBJECT_DIRECTORY": "{git_dir}/objects",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES": "{git_dir}/objects",
    "GIT_COMMON_DIR": "{git_dir}",
    "GIT_NAMESPACE": "theirs",
    "GIT_CONFIG": "{git_dir}/config",
    "GIT_CONFIG_GLOBAL": "{theirs}/evil.config",
    "GIT_CONFIG_SYSTEM": "{theirs}/evil.config",
    "GIT_CONFIG_PARAMETERS": "'core.hooksPath={theirs}/hooks' 'core.bare=false'",
    "GIT_TEMPLATE_DIR": "{theirs}/hooks",
    "GIT_DEFAULT_HASH": "sha256",
    "GIT_DEFAULT_REF_FORMAT": "reftable",
    "GIT_TRACE": "{theirs}/trace",
    "GIT_AUTHOR_NAME": "Mallory",
    "GIT_COMMITTER_DATE": "1 +0000",
}
CONFIG = """\
[core]
    hooksPath = {hooks}
    fsmonitor = {hooks}/reference-transaction
    logAllRefUpdates = always
    sharedRepository = 0666
    compression = 0
[init]
    templateDir = {hooks}
    defaultObjectFormat = sha256
    defaultRefFormat = reftable
    defaultBranch = trunk
[extensions]
    objectFormat = sha256
[commit]
    gpgSign = true
[gpg]
    program = {hooks}/reference-transaction
[i18n]
    commitEncoding = UTF-16
[user]
    name = Mallory
    email = mallory@example.com
"""


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """Somebody's repository, with hooks and a configuration that leave a trace when they are used."""
    work_tree = repository(tmp_path / "theirs")
    (work_tree / "hooks").mkdir()
    for hook in ("reference-transaction", "post-update", "pre-commit", "post-commit"):
        (work_tree / "hooks" / hook).write_text(f"#!/bin/sh\necho $0 >>{shlex.quote(str(work_tree / 'ran'))}\n")
        (work_tree / "hooks" / hook).chmod(0o755)
    (work_tree / "evil.config").write_text(CONFIG.format(hooks=work_tree / "hooks"))
    return work_tree


def whole_round(package: Path, command: Callable[..., int]) -> None:
    """Every kind of command on a tree."""
    for words in ("apply", "check", "status", "diff", "log", "revert nccl-defaults", "apply", "revert --all", "apply"):
        assert command("--target", package, *words.split()) == 0, words


def assert_as_ever(package: Path) -> None:
    """What must have come out of it in any environment."""
    assert [entry.all("Operation") for entry in log(Target.find(package))] == [["apply"], ["revert"]] * 2 + [["apply"]]
    assert git(package, "fsck", "--strict", "--no-dangling") == b""
    assert git(package, "log", "--format=%an %ae", "main") == b"sglang-patch sglang-patch@localhost\n" * 5
    assert git(package, "rev-parse", "--show-object-format") == b"sha1\n"
    assert abs(int(git(package, "log", "-1", "--format=%ct", "main")) - package.stat().st_mtime) < 3600
    assert code_of("--target", package, "check") == 0
    assert code_of("--target", package, "revert", "--all") == 0
    assert contents(package) == BASE


@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_an_inherited_variable_of_git_does_nothing(
    name: str, tree: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stamps(theirs)
    with monkeypatch.context() as inherited:
        inherited.setenv(name, FROM_OUTSIDE[name].format(theirs=theirs, git_dir=theirs / ".git"))
        whole_round(tree, code_of)
    assert_as_ever(tree)
    assert stamps(theirs) == before


def test_all_of_the_inherited_variables_at_once(tree: Path, theirs: Path) -> None:
    before = stamps(theirs)
    env = {name: value.format(theirs=theirs, git_dir=theirs / ".git") for name, value in FROM_OUTSIDE.items()}
    env |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.hooksPath", "GIT_CONFIG_VALUE_0": str(theirs / "hooks")}
    whole_round(tree, lambda *words: run(*words, env=env).returncode)
    assert_as_ever(tree)
    assert stamps(theirs) == before


@pytest.mark.parametrize("name", ["GIT_PYTHON_GIT_EXECUTABLE", "GIT_PYTHON_REFRESH"])
def test_the_variables_that_gitpython_reads_do_nothing(name: str, tree: Path, theirs: Path) -> None:
    """It reads them once, when it is imported."""
    before = stamps(theirs)
    value = {"GIT_PYTHON_GIT_EXECUTABLE": str(theirs / "hooks" / "post-commit"), "GIT_PYTHON_REFRESH": "nonsense"}[name]
    for words in ("apply", "log", "revert --all"):
        assert run("--target", tree, *words.split(), env={name: value}).returncode == 0
    assert stamps(theirs) == before


@pytest.mark.parametrize("place", [".gitconfig", ".config/git/config"])
def test_somebodys_global_configuration_does_nothing(
    place: str, tree: Path, theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "home" / place
    config.parent.mkdir(parents=True)
    shutil.copy(theirs / "evil.config", config)
    before = {**stamps(theirs), **stamps(tmp_path / "home")}
    with monkeypatch.context() as inherited:
        inherited.setenv("HOME", str(tmp_path / "home"))
        inherited.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / ".config"))
        whole_round(tree, code_of)
    assert_as_ever(tree)
    assert {**stamps(theirs), **stamps(tmp_path / "home")} == before


def test_the_configuration_of_the_targets_own_repository_does_nothing(theirs: Path, tmp_path: Path) -> None:
    """A checkout from anywhere can bring hooks, filters, a file system monitor, and a remote to fetch from."""
    checkout = tmp_path / "checkout"
    package = checkout / "python" / "sglang"
    shutil.copytree(TREES / "classic" / "sglang", package)
    (checkout / ".gitattributes").write_text("*.py filter=evil diff=evil\n")
    repository(checkout)
    engine = git(checkout, "rev-parse", f"HEAD:python/sglang/{ENGINE}").decode().strip()
    evil = theirs / "hooks" / "reference-transaction"
    settings = {
        "core.fsmonitor": evil,
        "core.hooksPath": evil.parent,
        "core.sshCommand": evil,
        "filter.evil.smudge": evil,
        "filter.evil.clean": evil,
        "diff.evil.textconv": evil,
        "diff.external": evil,
        "core.pager": evil,
        "protocol.ext.allow": "always",
        "remote.origin.url": f"ext::{evil}",
        "remote.origin.promisor": "true",
        "extensions.partialClone": "origin",
        "core.repositoryFormatVersion": "1",
    }
    for name, value in settings.items():
        git(checkout, "config", name, value)
    (checkout / ".git" / "objects" / engine[:2] / engine[2:]).unlink()
    for words in ("status", "apply", "check", "diff", "log", "revert --all"):
        assert run("--target", checkout, *words.split()).returncode == 0
    assert not (theirs / "ran").exists()
    assert contents(package) == BASE


# Damage: said, with an exit code, and repaired


def test_a_deleted_ledger_is_rebuilt_from_the_bytes(applied: Path) -> None:
    patched = contents(applied)
    shutil.rmtree(applied / ".sglang-patch")
    seen = status(Target.find(applied))
    assert [str(one.state) for one in seen.patches] == ["partial", "partial"]
    for words, code in {"check": 1, "apply": 3, "revert nccl-defaults": 3}.items():
        done = run("--target", applied, *words.split())
        assert done.returncode == code
        assert "sglang-patch repair" in done.stdout + done.stderr
    assert contents(applied) == patched
    assert code_of("--target", applied, "repair") == 0
    assert code_of("--target", applied, "check") == 0
    assert code_of("--target", applied, "revert", "--all") == 0
    assert contents(applied) == BASE


def test_revert_all_does_not_call_it_done_where_the_ledger_was_deleted(applied: Path) -> None:
    shutil.rmtree(applied / ".sglang-patch")
    done = run("--target", applied, "revert", "--all")
    assert done.returncode == 3
    assert "sglang-patch repair" in done.stderr


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def head(ledger: Path) -> str:
    return (ledger / "refs/heads/main").read_text().strip()


def object_of(ledger: Path, revision: str) -> Path:
    """The file of a loose object, made writable."""
    words = ["git", "--git-dir", ledger, "rev-parse", revision]
    name = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    path = ledger / "objects" / name[:2] / name[2:]
    path.chmod(0o644)
    return path


# The copy of the manifest is a convenience for readers without git: the commit has it too.
HARMLESS: dict[str, Callable[[Path], object]] = {
    "the copy is empty": lambda ledger: cut(ledger / "manifest.json", 0),
    "the copy is cut in its first line": lambda ledger: cut(ledger / "manifest.json", 20),
    "the copy is cut after its first line": lambda ledger: cut(ledger / "manifest.json", 57),
    "the copy is cut in the middle": lambda ledger: cut(ledger / "manifest.json", 400),
    "the copy is cut near its end": lambda ledger: cut(
        ledger / "manifest.json", (ledger / "manifest.json").stat().st_size - 5
    ),
    "the copy is deleted": lambda ledger: (ledger / "manifest.json").unlink(),
    "the copy is not text": lambda ledger: (ledger / "manifest.json").write_bytes(b"\xff\x00\xfe" * 100),
    "the copy is a folder": lambda ledger: ((ledger / "manifest.json").unlink(), (ledger / "manifest.json").mkdir()),
    "the copy is of another commit": lambda ledger: (ledger / "manifest.json").write_text(
        '{"commit": "%s"}\n{}' % ("1" * 40)
    ),
    "HEAD is missing": lambda ledger: (ledger / "HEAD").unlink(),
    "HEAD is empty": lambda ledger: cut(ledger / "HEAD", 0),
    "config is missing": lambda ledger: (ledger / "config").unlink(),
    ".gitignore is missing": lambda ledger: (ledger / ".gitignore").unlink(),
    "the lock is missing": lambda ledger: (ledger / "lock").unlink(),
    "a lock file of git is left": lambda ledger: (ledger / "refs/heads/main.lock").touch(),
    "the ref is packed": lambda ledger: git(ledger.parent, "pack-refs", "--all"),
    "git gc ran": lambda ledger: git(ledger.parent, "gc", "--quiet", "--aggressive", "--prune=now"),
    "somebody left files": lambda ledger: (ledger / "notes.txt").write_text("mine\n"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_damage_that_loses_nothing_changes_nothing(name: str, applied: Path) -> None:
    HARMLESS[name](applied / ".sglang-patch")
    for words in ("check", "status", "diff"):
        assert code_of("--target", applied, words) == 0, words
    if code_of("--target", applied, "revert", "nccl-defaults"):
        assert code_of("--target", applied, "repair") == 0
        assert code_of("--target", applied, "revert", "nccl-defaults") == 0
    assert code_of("--target", applied, "revert", "--all") == 0
    assert contents(applied) == BASE
    kept = len(log(Target.find(applied))) >= 3 or list((applied / ".sglang-patch").glob(".damaged-*"))
    assert kept, "the history is still there, or was set aside"


DAMAGED: dict[str, Callable[[Path], object]] = {
    "the branch is empty": lambda ledger: cut(ledger / "refs/heads/main", 0),
    "the branch is cut": lambda ledger: cut(ledger / "refs/heads/main", 17),
    "the branch is no text": lambda ledger: (ledger / "refs/heads/main").write_bytes(b"\xff\xfe" * 20),
    "the branch names nothing": lambda ledger: (ledger / "refs/heads/main").write_text("1" * 40 + "\n"),
    "the branch is a folder": lambda ledger: (
        (ledger / "refs/heads/main").unlink(),
        (ledger / "refs/heads/main").mkdir(),
    ),
    "the commit is empty, and no copy": lambda ledger: (
        cut(object_of(ledger, "main"), 0),
        (ledger / "manifest.json").unlink(),
    ),
    "the manifest's object is garbage, and no copy": lambda ledger: (
        object_of(ledger, "main:manifest.json").write_bytes(b"garbage"),
        (ledger / "manifest.json").unlink(),
    ),
    "the objects are gone, and no copy": lambda ledger: (
        shutil.rmtree(ledger / "objects"),
        (ledger / "manifest.json").unlink(),
    ),
    "the journal is garbage": lambda ledger: (ledger / "journal.json").write_bytes(b"\xff{"),
    "the journal is of something else": lambda ledger: (ledger / "journal.json").write_text("[1, 2]\n"),
    "it is a file": lambda ledger: (shutil.rmtree(ledger), ledger.write_text("not a folder\n")),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_said_and_nothing_is_changed(name: str, applied: Path) -> None:
    DAMAGED[name](applied / ".sglang-patch")
    patched = contents(applied)
    for words in ("check", "status", "apply", "revert --all", "revert nccl-defaults"):
        done = run("--target", applied, *words.split(), "--json")
        error = json.loads(done.stdout).get("error")
        assert done.returncode == 4, (words, done.stdout, done.stderr)
        assert error["kind"] == "ledger-damaged"
        assert ".sglang-patch" in error["where"]
        assert error["hint"]
    assert contents(applied) == patched


def test_a_record_of_a_newer_version_is_said_and_kept(applied: Path) -> None:
    ledger = applied / ".sglang-patch"
    record = b'{"schema": 2, "more": []}\n'
    first = json.dumps({"commit": head(ledger), "sha256": hashlib.sha256(record).hexdigest()})
    (ledger / "manifest.json").write_bytes(first.encode() + b"\n" + record)
    before = contents(applied, ledger=True)
    for words in ("check", "status", "apply", "revert --all", "repair"):
        done = run("--target", applied, *words.split(), "--json")
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, error["kind"]) == (4, "ledger-too-new")
        assert "upgrade" in error["hint"]
    assert contents(applied, ledger=True).items() >= before.items()


@pytest.mark.parametrize("name", DAMAGED)
def test_repair_rebuilds_what_the_bytes_prove(name: str, applied: Path) -> None:
    DAMAGED[name](applied / ".sglang-patch")
    patched = contents(applied)
    done = run("--target", applied, "repair")
    assert done.returncode == 0, done.stderr
    assert contents(applied) == patched
    assert code_of("--target", applied, "check") == 0
    assert code_of("--target", applied, "revert", "--all") == 0
    assert contents(applied) == BASE


@pytest.mark.parametrize("revision", ["main", "main^{tree}", "main:manifest.json", f"main:base/{ENGINE}"])
def test_a_corrupted_object_does_not_stop_what_the_copy_knows(revision: str, applied: Path) -> None:
    object_of(applied / ".sglang-patch", revision).write_bytes(b"garbage")
    for words in ("check", "status", "diff", "apply"):
        assert run("--target", applied, *words.split()).returncode == 0
    assert run("--target", applied, "log").returncode in (0, 4)
    if run("--target", applied, "revert", "--all").returncode:
        assert code_of("--target", applied, "repair") == 0
        assert code_of("--target", applied, "revert", "--all") == 0
    assert contents(applied) == BASE


def test_a_ledger_of_another_user_says_who_can_read_it(open_folder: Path, applied: Path) -> None:
    package = Path(shutil.copytree(applied, open_folder / "sglang"))
    (package / ".sglang-patch").chmod(0o700)
    for words in ("check", "status", "apply", "log"):
        done = as_nobody("--target", package, words, "--json")
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, error["kind"]) == (4, "not-permitted")
        assert ".sglang-patch" in error["where"]


def test_a_tree_copied_to_another_host_with_its_ledger(applied: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(applied, tmp_path / "image" / "opt" / "sglang"))
    shutil.rmtree(applied)
    assert code_of("--target", copy, "check") == 0
    assert code_of("--target", copy, "revert", "--all") == 0
    assert contents(copy) == BASE


def test_a_ledger_copied_to_an_unpatched_tree_proves_nothing(applied: Path, tree: Path) -> None:
    shutil.copytree(applied / ".sglang-patch", tree / ".sglang-patch")
    assert [str(one.state) for one in status(Target.find(tree)).patches] == ["lost", "lost"]
    assert code_of("--target", tree, "check") == 1
    assert code_of("--target", tree, "apply") == 0
    assert contents(tree) == contents(applied)
    assert code_of("--target", tree, "revert", "--all") == 0
    assert contents(tree) == BASE


def test_a_ledger_copied_to_another_release(applied: Path, fixture_tree: Callable[[str], Path]) -> None:
    modern = fixture_tree("modern")
    base = contents(modern)
    shutil.copytree(applied / ".sglang-patch", modern / ".sglang-patch")
    assert code_of("--target", modern, "check") == 1
    assert code_of("--target", modern, "apply") == 0
    assert code_of("--target", modern, "check") == 0
    assert code_of("--target", modern, "revert", "--all") == 0
    assert contents(modern) == base


# The branch moves from what was read to what was planned, or not at all


def test_a_branch_that_somebody_moved_meanwhile_is_left_alone(applied: Path, tmp_path: Path) -> None:
    """Somebody's git moves the branch while the new files are put in place."""
    ledger = applied / ".sglang-patch"
    patched = contents(applied)
    words = ["git", "--git-dir", ledger, *IDENTITY, "commit-tree", "-p", "main", "-m", "theirs", "main^{tree}"]
    theirs = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sitecustomize.py").write_text(
        "import os, sys\n\n\ndef hook(event, arguments):\n"
        f"    if event == 'os.rename' and os.fsdecode(arguments[1]) == {str(applied / ENGINE)!r}:\n"
        f"        open({str(ledger / 'refs/heads/main')!r}, 'w').write({theirs!r} + chr(10))\n\n\n"
        "sys.addaudithook(hook)\n"
    )
    done = run("--target", applied, "revert", "--all", env={"PYTHONPATH": str(tmp_path / "bin")})
    assert done.returncode == 4
    assert str(ledger) in done.stderr
    assert head(ledger) == theirs
    assert contents(applied) == patched
    assert not (ledger / "journal.json").exists()
    assert code_of("--target", applied, "revert", "--all") == 0
    assert contents(applied) == BASE
    assert git(applied, "log", "--format=%s", "main").decode().splitlines()[1] == "theirs"
