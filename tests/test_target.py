"""Which SGLang is meant, and what kind of tree it is. SGLang itself is never imported."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patcher import Target, status
from patcher.errors import TargetNotFound
from tests.conftest import TREES
from tests.test_cli import NOBODY, as_nobody, code_of, contents, run

ENGINE, KIMI = "srt/entrypoints/engine.py", "srt/models/kimi_k25.py"
PYTHON_DIRECTORY = f"python{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def tree(fixture_tree: Callable[[str], Path]) -> Path:
    """The package of an unpatched tree in the shape of 0.5.9."""
    return fixture_tree("classic")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="sglang-patch-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def classic(into: Path) -> Path:
    """A copy of the unpatched tree as `into`/sglang."""
    return Path(shutil.copytree(TREES / "classic" / "sglang", into / "sglang"))


def virtual_environment(at: Path) -> Path:
    """A real one; returns its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", at], check=True)
    return at / "lib" / PYTHON_DIRECTORY / "site-packages"


def with_metadata(package: Path, version: str) -> Path:
    """Lay a .dist-info beside a package as pip does, with a RECORD of its files; returns the package."""
    metadata = package.parent / f"sglang-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    rows = []
    for path in sorted(path for path in package.rglob("*") if path.is_file()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        rows.append((path.relative_to(package.parent).as_posix(), f"sha256={digest}", str(path.stat().st_size)))
    with (metadata / "RECORD").open("w", newline="") as stream:
        csv.writer(stream).writerows([*rows, (f"{metadata.name}/RECORD", "", "")])
    return package


def git(work_tree: Path, *arguments: object) -> str:
    """What git prints in a work tree."""
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com", "-c", "safe.directory=*"]
    words = ["git", "-C", str(work_tree), *identity, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def committed(work_tree: Path) -> Path:
    """Make a folder a git repository with everything in it committed."""
    git(work_tree, "init", "--quiet")
    git(work_tree, "add", "--all")
    git(work_tree, "commit", "--quiet", "--allow-empty", "--message", "all of it")
    return work_tree


# A path


def test_a_path_may_be_the_package_or_its_parent(tree: Path) -> None:
    assert Target.find(tree).path == tree
    assert Target.find(tree.parent).path == tree
    assert Target.find(str(tree)).path == tree


def test_a_path_may_be_a_checkout_or_its_python_directory(tmp_path: Path) -> None:
    package = classic(tmp_path / "checkout" / "python")
    assert Target.find(tmp_path / "checkout").path == package
    assert Target.find(tmp_path / "checkout" / "python").path == package


def test_a_path_may_be_a_virtual_environment(tmp_path: Path) -> None:
    package = classic(virtual_environment(tmp_path / "venv"))
    assert Target.find(tmp_path / "venv").path == package
    assert Target.find(tmp_path / "venv").kind == "tree"
    assert Target.find(with_metadata(package, "0.5.9").parent).kind == "wheel"


def test_a_path_may_be_relative_or_begin_with_a_tilde(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree.parent)
    monkeypatch.setenv("HOME", str(tree.parent.parent))
    for path in ("sglang", ".", "./sglang/", "../site-packages", "~/site-packages", "~/site-packages/sglang"):
        assert Target.find(path).path == tree, path
    monkeypatch.chdir(tree)
    assert Target.find(".").path == tree
    assert Target.find("..").path == tree


def test_a_path_may_be_a_symbolic_link(tree: Path, tmp_path: Path) -> None:
    """The record lies with the tree itself, so every name of it shows the same."""
    before = contents(tree)
    links = {"to-package": tree, "to-parent": tree.parent, "to-link": tmp_path / "to-package"}
    for name, to in links.items():
        (tmp_path / name).symlink_to(to)
    (tmp_path / "of-links").mkdir()
    (tmp_path / "of-links" / "sglang").symlink_to(tree)
    assert code_of("--target", tmp_path / "to-package", "apply") == 0
    for name in (*links, "of-links"):
        assert Target.find(tmp_path / name).path == tree
        assert code_of("--target", tmp_path / name, "check") == 0
    assert code_of("--target", tmp_path / "of-links", "revert", "--all") == 0
    assert contents(tree) == before


# An editable install: a real `pip install -e` of a project with the package under python/.

PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "sglang"
version = "0.5.9"
"""

# The two ways in which build backends make an editable install: a path in a .pth file, and an import hook for one name.
BACKEND = '''\
import base64, hashlib, os, zipfile

HERE = os.path.join(os.getcwd(), "python")
FINDER = """
import importlib.util, sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name == "sglang":
            folder = {folder!r}
            return importlib.util.spec_from_file_location(
                name, folder + "/__init__.py", submodule_search_locations=[folder])

sys.meta_path.append(Finder)
""".format(folder=os.path.join(HERE, "sglang"))
STYLES = {
    "pth": {"__editable__.sglang-0.5.9.pth": HERE},
    "finder": {"__editable___sglang_finder.py": FINDER, "__editable__.sglang.pth": "import __editable___sglang_finder"},
}

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    files = dict(STYLES[os.environ["EDITABLE_STYLE"]])
    metadata = "sglang-0.5.9.dist-info/"
    files[metadata + "METADATA"] = "Metadata-Version: 2.1\\nName: sglang\\nVersion: 0.5.9\\n"
    files[metadata + "WHEEL"] = "Wheel-Version: 1.0\\nGenerator: hand\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files[metadata + "RECORD"] = "".join(name + ",,\\n" for name in [*files, metadata + "RECORD"])
    with zipfile.ZipFile(os.path.join(wheel_directory, "sglang-0.5.9-py3-none-any.whl"), "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return "sglang-0.5.9-py3-none-any.whl"
'''


@pytest.fixture(scope="module", params=["pth", "finder"])
def editable(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkout that is installed in a virtual environment with `pip install -e`: (checkout, environment)."""
    folder = tmp_path_factory.mktemp(f"editable-{request.param}")
    checkout, environment = folder / "checkout", folder / "venv"
    classic(checkout / "python")
    (checkout / "pyproject.toml").write_text(PROJECT)
    (checkout / "backend.py").write_text(BACKEND)
    committed(checkout)
    virtual_environment(environment)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", environment]
    subprocess.run(
        [*pip, "install", "--no-index", "--no-deps", "--no-build-isolation", "-e", checkout],
        env={**os.environ, "EDITABLE_STYLE": request.param, "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
    )
    return checkout, environment


def test_an_editable_install_is_the_checkout(editable: tuple[Path, Path]) -> None:
    checkout, environment = editable
    package = checkout / "python" / "sglang"
    for found in (Target.find(environment), Target.find(python=environment / "bin" / "python")):
        assert (found.path, found.kind, found.version) == (package, "git", "0.5.9")
    before = contents(package)
    assert code_of("--target", environment, "apply") == 0
    assert git(checkout, "status", "--porcelain") == f" M python/sglang/{ENGINE}\n M python/sglang/{KIMI}\n"
    assert run("--python", environment / "bin" / "python", "check").returncode == 0
    assert code_of("--target", checkout, "revert", "--all") == 0
    assert git(checkout, "status", "--porcelain") == ""
    assert contents(package) == before


# An interpreter


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with SGLang in its site-packages; returns the environment."""
    environment = tmp_path_factory.mktemp("installed") / "venv"
    classic(virtual_environment(environment))
    return environment


def test_the_sglang_of_an_interpreter(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = installed / "lib" / PYTHON_DIRECTORY / "site-packages" / "sglang"
    assert Target.find(python=installed / "bin" / "python").path == package
    monkeypatch.setenv("PATH", f"{installed}/bin:{os.environ['PATH']}")
    assert Target.find(python="python").path == package
    monkeypatch.chdir(installed)
    assert Target.find(python="bin/python").path == package


def test_where_the_command_is_run_does_not_change_what_an_interpreter_would_import(
    installed: Path, tmp_path: Path
) -> None:
    classic(tmp_path)
    done = run("--python", installed / "bin" / "python", "status", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["target"]["path"].startswith(str(installed))


def test_an_interpreter_with_a_safe_path(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONSAFEPATH leaves the working directory out of sys.path, so its first entry is a real one."""
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", str(tree.parent))
    assert Target.find(python=sys.executable).path == tree


def test_an_interpreter_that_prints_when_it_starts(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('welcome to this cluster')\n")
    done = run("--python", installed / "bin" / "python", "status", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["no-such-file", "a-folder", "not-executable", "fails", "prints-nothing", "other"])
def test_something_that_is_no_interpreter_with_sglang(name: str, tmp_path: Path) -> None:
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "not-executable").write_text("#!/bin/sh\n")
    for script, body in {"fails": "echo it is broken >&2; exit 3", "prints-nothing": "true", "other": "echo x"}.items():
        (tmp_path / script).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / script).chmod(0o755)
    done = run("--python", tmp_path / name, "status")
    assert (done.returncode, done.stdout) == (4, "")
    assert str(tmp_path / name) in done.stderr
    assert "hint: " in done.stderr
    assert name != "fails" or "it is broken" in done.stderr


def test_an_interpreter_without_sglang(tmp_path: Path) -> None:
    virtual_environment(tmp_path / "venv")
    for arguments in (["--python", tmp_path / "venv/bin/python"], ["--target", tmp_path / "venv"]):
        done = run(*arguments, "check")
        assert done.returncode == 4
        assert str(tmp_path / "venv") in done.stderr
        assert "no SGLang" in done.stderr


# Which of several


def test_order_of_precedence(installed: Path, tmp_path: Path) -> None:
    named, in_variable, own = (classic(tmp_path / name) for name in ("named", "variable", "own"))
    of_python = installed / "lib" / PYTHON_DIRECTORY / "site-packages" / "sglang"
    variable, importable = {"SGLANG_PATCH_TARGET": str(in_variable)}, {"PYTHONPATH": str(own.parent)}

    def found(*options: object, env: dict[str, str]) -> Path:
        return Path(json.loads(run(*options, "status", "--json", env=env).stdout)["target"]["path"])

    assert found("--target", named, env=variable | importable) == named
    assert found("--python", installed / "bin" / "python", env=variable) == of_python
    assert found(env=variable | importable) == in_variable
    assert found(env=importable) == own


def test_an_empty_variable_is_not_set(tree: Path) -> None:
    env = {"SGLANG_PATCH_TARGET": "", "PYTHONPATH": str(tree.parent)}
    assert run("status", env=env).returncode == 0


def test_an_empty_target_is_a_mistake_and_not_the_working_directory(tree: Path) -> None:
    """`--target "$VENV"` with the variable unset must not patch whatever lies here."""
    for option in ("--target", "--python"):
        done = run(option, "", "apply", cwd=tree.parent)
        assert done.returncode == 2
    assert not (tree / ".sglang-patch").exists()


def test_no_target_at_all(tmp_path: Path) -> None:
    done = run("status", cwd=tmp_path)
    assert done.returncode == 4
    for way in ("--target", "--python", "SGLANG_PATCH_TARGET"):
        assert way in done.stderr


def test_a_variable_that_names_nothing(tmp_path: Path) -> None:
    done = run("status", env={"SGLANG_PATCH_TARGET": str(tmp_path / "nowhere")})
    assert done.returncode == 4
    assert str(tmp_path / "nowhere") in done.stderr
    assert "SGLANG_PATCH_TARGET" in done.stderr, "the user did not type --target"


def test_both_target_and_python_is_a_wrong_command_line(installed: Path, tree: Path) -> None:
    done = run("--target", tree, "--python", installed / "bin" / "python", "apply")
    assert done.returncode == 2
    assert not (tree / ".sglang-patch").exists()


def test_two_sglangs_in_one_environment_are_both_named(tmp_path: Path) -> None:
    packages = [classic(tmp_path / f"lib/python3.{minor}/site-packages") for minor in (10, 11)]
    done = run("--target", tmp_path, "apply", "--json")
    assert done.returncode == 4
    error = json.loads(done.stdout)["error"]
    assert all(str(package) in error["found"] for package in packages)
    assert Target.find(packages[1]).path == packages[1]


def test_lib64_is_lib_again(tmp_path: Path) -> None:
    package = classic(tmp_path / "lib" / "python3.11" / "site-packages")
    (tmp_path / "lib64").symlink_to("lib")
    assert Target.find(tmp_path).path == package


# Nothing there


WITHOUT_SGLANG = {
    "an empty folder": "empty",
    "a file": "file",
    "below a file": "file/sglang",
    "no srt": "no-srt",
    "no __init__.py": "no-init",
    "a named pipe": "pipe",
    "a dangling link": "dangling",
    "a link to itself": "loop",
    "nothing": "nowhere",
    "a name that is too long": "x" * 300,
    "a path that is too long": "x/" * 3000,
    "the home of nobody": "~nobody-has-this-name/sglang",
}


@pytest.mark.parametrize("name", WITHOUT_SGLANG)
def test_nothing_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "no-srt/sglang", "no-init/sglang/srt", "pipe"):
        Path(folder).mkdir(parents=True)
    for file in ("file", "no-srt/sglang/__init__.py"):
        Path(file).touch()
    os.mkfifo("pipe/sglang")
    Path("dangling").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    before = contents(tmp_path)
    with pytest.raises(TargetNotFound) as caught:
        Target.find(WITHOUT_SGLANG[name])
    assert Path(WITHOUT_SGLANG[name]).as_posix() in str(caught.value)
    assert caught.value.hint
    assert isinstance(caught.value, FileNotFoundError)
    assert contents(tmp_path) == before


def test_nothing_there_on_the_command_line(tmp_path: Path) -> None:
    done = run("--target", tmp_path, "apply", "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"], error["kind"]) == (4, 4, "target-not-found")
    assert error["where"] == str(tmp_path)
    assert "an empty directory" in error["found"]


CLOSED = {
    "the folder that was named": ("site-packages", 0o000),
    "one that may be entered, not listed, and holds nothing": ("empty", 0o711),
    "the folder above": (".", 0o700),
    "the package": ("site-packages/sglang", 0o000),
    "srt": ("site-packages/sglang/srt", 0o000),
    "the file to patch": (f"site-packages/sglang/{ENGINE}", 0o000),
    "the file with the version": ("site-packages/sglang/version.py", 0o000),
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_place_that_may_not_be_read(name: str, open_folder: Path) -> None:
    place = open_folder / "place"
    classic(place / "site-packages")
    (place / "empty").mkdir()
    closed, mode = CLOSED[name]
    (place / closed).chmod(mode)
    target = place / "empty" if closed == "empty" else place / "site-packages"
    try:
        done = as_nobody("--target", target, "status", "--json")
    finally:
        (place / closed).chmod(0o755)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (4, 4)
    assert error["kind"] in ("not-permitted", "target-not-found")
    assert str(place) in error["where"]
    assert error["hint"]


def test_a_folder_where_a_file_should_be(tree: Path) -> None:
    (tree / ENGINE).unlink()
    (tree / ENGINE).mkdir()
    done = run("--target", tree, "apply")
    assert done.returncode == 4
    assert f"{tree / ENGINE}: cannot read it: Is a directory" in done.stderr
    assert not (tree / ".sglang-patch").exists()


# Never imported


def test_sglang_is_never_imported(tmp_path: Path) -> None:
    """Its package leaves a trace and fails when somebody imports it, as it does without a GPU driver."""
    package = classic(virtual_environment(tmp_path / "venv"))
    trap = f"open({str(tmp_path / 'imported')!r}, 'w').close()\nraise ImportError('libcuda.so.1')\n"
    for init in ("__init__.py", "srt/__init__.py", "srt/entrypoints/__init__.py"):
        (package / init).write_text(trap)
    for words in ("status", "apply", "check", "diff", "log", "revert --all"):
        assert run("--python", tmp_path / "venv" / "bin" / "python", *words.split()).returncode == 0, words
    assert run("apply", env={"PYTHONPATH": str(package.parent)}).returncode == 0
    assert code_of("--target", tmp_path / "venv", "status") == 0
    assert not (tmp_path / "imported").exists()


# Kinds


def test_kinds(tree: Path, tmp_path: Path) -> None:
    assert Target.find(tree).kind == "tree"
    assert Target.find(with_metadata(tree, "0.5.9")).kind == "wheel"
    checkout = tmp_path / "checkout"
    package = classic(checkout / "python")
    assert Target.find(checkout).kind == "tree"
    committed(checkout)
    assert Target.find(checkout).kind == "git"
    shutil.rmtree(checkout / ".git")
    assert Target.find(package).kind == "tree"


def test_the_metadata_of_another_package_beside_it_does_not_count(tree: Path) -> None:
    """`pip install -e` and `pip uninstall` leave folders whose RECORD does not list this very package."""
    stale = tree.parent / "sglang-0.4.0.dist-info"
    stale.mkdir()
    (stale / "RECORD").write_text("__editable__.sglang-0.4.0.pth,,\n")
    assert (Target.find(tree).kind, Target.find(tree).metadata_version) == ("tree", None)
    (tree.parent / "sglang-0.3.0.dist-info").mkdir()
    assert (Target.find(with_metadata(tree, "0.5.9")).kind, Target.find(tree).metadata_version) == ("wheel", "0.5.9")


def test_a_real_wheel(wheel_tree: Callable[..., Path]) -> None:
    target = Target.find(wheel_tree("0.5.9"))
    assert (target.kind, target.version, target.metadata_version) == ("wheel", "0.5.9", "0.5.9")


def test_a_second_work_tree_of_a_repository(tmp_path: Path) -> None:
    classic(tmp_path / "first" / "python")
    committed(tmp_path / "first")
    git(tmp_path / "first", "worktree", "add", "--quiet", tmp_path / "second")
    target = Target.find(tmp_path / "second")
    assert (target.kind, target.work_tree) == ("git", tmp_path / "second")
    assert code_of("--target", tmp_path / "second", "apply") == 0
    assert git(tmp_path / "first", "status", "--porcelain") == ""
    assert code_of("--target", tmp_path / "first", "check") == 1


@pytest.mark.parametrize("path", [os.environ["PATH"], "/nonexistent"], ids=["with git", "without git"])
def test_a_checkout_of_another_owner(path: str, open_folder: Path) -> None:
    """git itself refuses here: "dubious ownership"."""
    package = classic(open_folder / "checkout" / "python")
    committed(open_folder / "checkout")
    before = contents(package)
    done = as_nobody("--target", open_folder / "checkout", "status", "--json", env={"PATH": path})
    assert json.loads(done.stdout)["target"]["kind"] == "git"
    if os.geteuid() == 0:
        for entry in [open_folder / "checkout", *(open_folder / "checkout").rglob("*")]:
            os.chown(entry, NOBODY, NOBODY)
    assert code_of("--target", open_folder / "checkout", "apply") == 0
    assert code_of("--target", open_folder / "checkout", "revert", "--all") == 0
    assert contents(package) == before
    assert {path.stat().st_uid for path in package.rglob("*.py")} == {package.stat().st_uid}


def in_every_kind_of_place(folder: Path) -> dict[str, Path]:
    """The same tree in site-packages, in a checkout, alone, and inside somebody else's repository in three ways."""
    foreign = {"tracked": folder / "tracked", "ignored": folder / "ignored", "untracked": folder / "untracked"}
    packages = {
        "wheel": with_metadata(classic(virtual_environment(folder / "venv")), "0.5.9"),
        "checkout": classic(folder / "checkout" / "python"),
        "tree": classic(folder / "plain"),
        **{name: classic(work_tree / "vendor") for name, work_tree in foreign.items()},
    }
    (foreign["ignored"] / ".gitignore").write_text("vendor/\n")
    git(folder, "init", "--quiet", foreign["untracked"])
    for name in ("checkout", "tracked", "ignored"):
        committed(folder / name)
    (foreign["untracked"] / "README").write_text("somebody's own\n")
    git(foreign["untracked"], "add", "README")
    git(foreign["untracked"], "commit", "--quiet", "--message", "mine")
    return packages


def test_the_same_result_in_every_kind_of_place(tmp_path: Path) -> None:
    packages = in_every_kind_of_place(tmp_path)
    base = contents(TREES / "classic" / "sglang")
    kinds = {name: Target.find(package).kind for name, package in packages.items()}
    assert kinds == {
        "wheel": "wheel",
        "checkout": "git",
        "tree": "tree",
        "tracked": "git",
        "ignored": "tree",
        "untracked": "tree",
    }
    states, digests, patched = set(), set(), []
    for package in packages.values():
        assert code_of("--target", package, "apply") == 0
        seen = status(Target.find(package))
        states.add(tuple((one.id, str(one.state)) for one in seen.patches))
        digests.add(seen.digest)
        patched.append(contents(package))
    assert states == {(("nccl-defaults", "applied"), ("kimi-k25-eagle3", "applied"))}
    assert len(digests) == 1
    assert all(one == patched[0] for one in patched)
    assert {name for name in base if patched[0][name] != base[name]} == {ENGINE, KIMI}
    for name, untouched in {"ignored": "", "untracked": "?? vendor/\n"}.items():
        assert git(tmp_path / name, "status", "--porcelain") == untouched
    for package in packages.values():
        assert code_of("--target", package, "revert", "--all") == 0
        assert contents(package) == base
    for name in ("checkout", "tracked", "ignored"):
        assert git(tmp_path / name, "status", "--porcelain") == ""


# Versions that lie


def test_the_tree_decides_where_the_metadata_says_another_version(tree: Path) -> None:
    """An image shipped 0.5.13 labelled 0.5.14; here the tree is 0.5.9 and its label has the Kimi methods."""
    with_metadata(tree, "0.5.14")
    target = Target.find(tree)
    assert (target.version, target.metadata_version, target.kind) == ("0.5.9", "0.5.14", "wheel")
    assert code_of("--target", tree, "apply") == 0
    shown = run("--target", tree, "status").stdout
    assert "0.5.9" in shown
    assert "0.5.14" in shown
    document = json.loads(run("--target", tree, "status", "--json").stdout)
    assert document["target"]["version"] == "0.5.9"
    assert document["target"]["metadata_version"] == "0.5.14"
    assert [one["state"] for one in document["patches"]] == ["applied", "applied"]


def test_a_version_that_the_tree_states_in_either_file_without_running_it(tree: Path) -> None:
    (tree / "version.py").unlink()
    assert Target.find(tree).version is None
    (tree / "_version.py").write_text("TYPE_CHECKING = False\n__version__ = version = '0.5.23'\nraise SystemExit\n")
    assert Target.find(tree).version == "0.5.23"
    (tree / "_version.py").write_text("this is ( no Python\n")
    assert Target.find(tree).version is None
    assert Target.find(with_metadata(tree, "0.5.22")).version == "0.5.22"


def test_a_tree_of_unknown_version_is_patched_and_called_so(tree: Path) -> None:
    (tree / "version.py").unlink()
    before = contents(tree)
    for words in ("status", "apply", "check", "log", "status", "revert --all", "log"):
        done = run("--target", tree, *words.split())
        assert done.returncode == 0
        assert "None" not in done.stdout + done.stderr, words
    assert contents(tree) == before


def test_what_is_not_there_is_said_once(tmp_path: Path) -> None:
    done = run("--target", tmp_path / "nowhere", "status", "--json")
    error = json.loads(done.stdout)["error"]
    assert error["message"] == "there is nothing at this path"
    assert done.stderr.count("hint: ") == 1


def test_a_hint_after_a_failure_names_the_target_too(tree: Path) -> None:
    assert run("--target", tree, "apply").returncode == 0
    (tree / ".sglang-patch" / "refs/heads/main").write_text("")
    done = run("--target", tree, "status")
    assert done.returncode == 4
    assert f"sglang-patch repair --target {tree}" in done.stderr
