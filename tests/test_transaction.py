"""One command changes all of its files and their record, or nothing: through odd files, refusals, crashes and races."""

from __future__ import annotations

import errno
import itertools
import json
import os
import py_compile
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from patcher import Target, check, log, status
from tests.conftest import TREES
from tests.test_cli import COMMAND, NOBODY, Ran, as_nobody, code_of, contents, environment, run

ENGINE, KIMI = "srt/entrypoints/engine.py", "srt/models/kimi_k25.py"
BASE = contents(TREES / "classic" / "sglang")
LONG_AGO = 1_600_000_000_123_456_789


@pytest.fixture
def tree(fixture_tree: Callable[[str], Path]) -> Path:
    """The package of an unpatched tree in the shape of 0.5.9, whose files are from 2020."""
    package = fixture_tree("classic")
    for path in package.rglob("*.py"):
        os.utime(path, ns=(LONG_AGO, LONG_AGO))
    return package


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="sglang-patch-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        for path in [Path(folder), *Path(folder).rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)


def give(uid: int, *paths: Path) -> None:
    """Give files to another user, if the tests run as root."""
    for path in paths if os.geteuid() == 0 else ():
        os.chown(path, uid, uid, follow_symlinks=False)


def names_of_leftovers(package: Path) -> list[str]:
    """What an operation leaves only while it runs."""
    left = [path for path in package.rglob("*") if path.name.endswith(".sglang-patch-new")]
    left += (package / ".sglang-patch").glob("journal.json")
    return [str(path.relative_to(package)) for path in left]


AT_THE_BRANCH = """
import os, signal, sys, time

armed = passed = False

def hook(event, arguments):
    global armed, passed
    moving = event == "os.rename" and os.fsdecode(arguments[1]).endswith("refs/heads/main")
    if not passed and ((moving and not {after}) or (armed and event != "os.rename")):
        passed = True
        {does}
    armed = armed or (moving and {after})

sys.addaudithook(hook)
"""


def at_the_branch(does: str, folder: Path, *, after: bool = False) -> dict[str, str]:
    """A Python that does something just before, or after, the ledger's branch moves: the middle of an operation."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(AT_THE_BRANCH.format(does=does, after=after))
    return {"PYTHONPATH": str(folder)}


def started(*arguments: object, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([COMMAND, *map(str, arguments)], env=environment(env), text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def ended(process: subprocess.Popen[str]) -> Ran[str]:
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return Ran(process.args, process.returncode, out, err)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)


# Files as they are found


@pytest.mark.parametrize("absolute", [True, False], ids=["absolute", "relative"])
def test_a_symbolic_link_becomes_a_file_and_a_link_again(absolute: bool, tree: Path, tmp_path: Path) -> None:
    """As in an environment that links to a cache: the cache keeps its bytes."""
    cached = tmp_path / "cache" / "engine.py"
    cached.parent.mkdir()
    shutil.copy2(tree / ENGINE, cached)
    cached.chmod(0o640)
    (tree / ENGINE).unlink()
    link = str(cached) if absolute else os.path.relpath(cached, (tree / ENGINE).parent)
    (tree / ENGINE).symlink_to(link)
    assert code_of("--target", tree, "apply") == 0
    assert not (tree / ENGINE).is_symlink()
    assert stat.S_IMODE((tree / ENGINE).stat().st_mode) == 0o640
    assert cached.read_bytes() == BASE[ENGINE]
    assert code_of("--target", tree, "apply", "nccl-defaults", "--profile", "pcie-throughput") == 0
    assert code_of("--target", tree, "revert", "--all") == 0
    assert str((tree / ENGINE).readlink()) == link
    assert contents(tree) == {**BASE, ENGINE: link}


def test_a_link_whose_file_changed_meanwhile_comes_back_as_the_bytes_that_were_patched(
    tree: Path, tmp_path: Path
) -> None:
    (tree / ENGINE).rename(tmp_path / "engine.py")
    (tree / ENGINE).symlink_to(tmp_path / "engine.py")
    assert code_of("--target", tree, "apply") == 0
    (tmp_path / "engine.py").write_text("something else\n")
    assert code_of("--target", tree, "revert", "--all") == 0
    assert (tree / ENGINE).read_bytes() == BASE[ENGINE]
    assert (tmp_path / "engine.py").read_text() == "something else\n"


def test_a_linked_directory_stays_one(tree: Path, tmp_path: Path) -> None:
    (tree / "srt/models").rename(tmp_path / "models")
    (tree / "srt/models").symlink_to(tmp_path / "models")
    assert code_of("--target", tree, "apply") == 0
    assert (tree / "srt/models").is_symlink()
    assert b"sglang-patch" in (tmp_path / "models/kimi_k25.py").read_bytes()
    assert code_of("--target", tree, "revert", "--all") == 0
    assert (tree / KIMI).read_bytes() == BASE[KIMI]


def test_the_other_name_of_a_hard_link_keeps_its_bytes(tree: Path, tmp_path: Path) -> None:
    """uv links site-packages to its cache: writing through the link would change every environment."""
    (tmp_path / "cache.py").hardlink_to(tree / ENGINE)
    before = (tmp_path / "cache.py").stat()
    for words in ("apply", "apply nccl-defaults --profile pcie-throughput", "revert --all"):
        assert code_of("--target", tree, *words.split()) == 0
        after = (tmp_path / "cache.py").stat()
        assert (tmp_path / "cache.py").read_bytes() == BASE[ENGINE]
        assert (after.st_ino, after.st_mtime_ns, after.st_mode) == (before.st_ino, before.st_mtime_ns, before.st_mode)
    assert contents(tree) == BASE


@pytest.mark.parametrize("mode", [0o444, 0o600, 0o664, 0o755, 0o400])
def test_mode_owner_and_attributes_are_kept(mode: int, tree: Path) -> None:
    give(NOBODY, tree / ENGINE)
    os.setxattr(tree / ENGINE, "user.origin", b"an image")
    (tree / ENGINE).chmod(mode)
    before = (tree / ENGINE).stat()
    for words in ("apply", "revert --all"):
        assert code_of("--target", tree, *words.split()) == 0
        after = (tree / ENGINE).stat()
        assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
        assert os.getxattr(tree / ENGINE, "user.origin") == b"an image"


def test_a_revert_gives_back_the_time_of_a_file_and_an_apply_takes_another_second(tree: Path) -> None:
    assert code_of("--target", tree, "apply") == 0
    for path in (ENGINE, KIMI):
        assert abs((tree / path).stat().st_mtime - time.time()) < 60
    assert code_of("--target", tree, "revert", "nccl-defaults") == 0
    assert (tree / ENGINE).stat().st_mtime_ns == LONG_AGO
    assert code_of("--target", tree, "revert", "kimi-k25-eagle3") == 0
    assert {path.stat().st_mtime_ns for path in tree.rglob("*.py")} == {LONG_AGO}


def test_a_real_file_gets_its_time_back_too(wheel_tree: Callable[..., Path]) -> None:
    package = wheel_tree("0.5.9")
    os.utime(package / ENGINE, ns=(LONG_AGO, LONG_AGO))
    before = contents(package)
    assert code_of("--target", package, "apply") == 0
    assert code_of("--target", package, "revert", "--all") == 0
    assert (package / ENGINE).stat().st_mtime_ns == LONG_AGO
    assert contents(package) == before


def test_a_file_from_the_future_still_gets_another_second(tree: Path) -> None:
    soon = time.time_ns() + 3600 * 10**9
    os.utime(tree / ENGINE, ns=(soon, soon))
    assert code_of("--target", tree, "apply") == 0
    assert (tree / ENGINE).stat().st_mtime_ns // 10**9 != soon // 10**9
    assert code_of("--target", tree, "revert", "--all") == 0
    assert (tree / ENGINE).stat().st_mtime_ns == soon


# Places that may not be written: said, and nothing changed


def nobodys_tree(folder: Path) -> Path:
    """An unpatched tree that user 65534 owns."""
    package = folder / "site-packages" / "sglang"
    shutil.copytree(TREES / "classic" / "sglang", package)
    for path in [package, *package.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        give(NOBODY, path)
    return package


def close_directory(package: Path, name: str) -> Path:
    (package / name).chmod(0o555)
    give(0, package / name)
    return package / name


def own_file(package: Path, name: str) -> Path:
    """A file that stays readable, in a directory that its user may write, and that root owns."""
    give(0, package / name)
    if os.geteuid():  # without root there is no other owner: a directory that may not be written stands for it
        (package / name).parent.chmod(0o555)
    return package / name


def close_bytecode(package: Path, name: str) -> Path:
    """Bytecode that root has compiled beside a source that its user may write."""
    compiled = Path(py_compile.compile(str(package / name), doraise=True) or "")
    compiled.parent.chmod(0o555)
    give(0, compiled.parent, compiled)
    return compiled


IN_THE_WAY: dict[str, tuple[Callable[[Path, str], Path], str]] = {
    "the first directory": (close_directory, "srt/entrypoints"),
    "the second directory": (close_directory, "srt/models"),
    "the directory of the ledger": (close_directory, "."),
    "the first file has another owner": (own_file, ENGINE),
    "the second file has another owner": (own_file, KIMI),
    "the first file's bytecode": (close_bytecode, ENGINE),
    "the second file's bytecode": (close_bytecode, KIMI),
}


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_what_cannot_be_written_is_named_and_everything_is_as_before(name: str, open_folder: Path) -> None:
    package = nobodys_tree(open_folder)
    obstruct, place = IN_THE_WAY[name]
    blocked = obstruct(package, place)
    before = times(package)
    done = as_nobody("--target", package, "apply", "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"], error["kind"]) == (4, 4, "not-permitted")
    assert str(blocked if blocked.is_dir() else blocked.parent).rstrip("/.") in error["where"]
    assert error["hint"]
    assert times(package) == before
    assert names_of_leftovers(package) == []
    assert not check(Target.find(package)).in_place
    assert run("--target", package, "apply").returncode == 0, "root can"


def times(package: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Every file but the ledger's, with mode, owner, time and bytes."""
    return {
        name: (found.st_mode, found.st_uid, found.st_mtime_ns, (package / name).read_bytes())
        for name in contents(package)
        for found in [(package / name).stat()]
    }


def test_a_revert_that_cannot_write_one_file_changes_none(open_folder: Path) -> None:
    package = nobodys_tree(open_folder)
    assert as_nobody("--target", package, "apply").returncode == 0
    blocked = close_bytecode(package, KIMI)
    before = times(package)
    done = as_nobody("--target", package, "revert", "--all")
    assert done.returncode == 4
    assert str(blocked.parent) in done.stderr
    assert times(package) == before
    assert check(Target.find(package)).in_place


# Bytecode


VALUE = "srt/value.py"
CHANGES_VALUE = """\
from patcher import Edit, Patch, Rewritten


def change(source, params):
    return Rewritten(type(source)(source.path, source.data.replace(b"'old'", b"'new'")))


PATCH = Patch(id="value", revision=1, summary="s", why="w", edits=(Edit(("srt/value.py",), change),))
"""


@pytest.fixture
def importable(tree: Path, tmp_path: Path) -> Path:
    """A package with a module that can be imported; a patch in ./patches replaces its one value by one as long."""
    (tree / VALUE).write_text("value = 'old'\n")
    os.utime(tree / VALUE, ns=(LONG_AGO, LONG_AGO))
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "value.py").write_text(CHANGES_VALUE)
    return tree


def value_seen_by(package: Path, *flags: str, prefix: Path | None = None) -> str:
    """What a fresh interpreter gets from the module."""
    words = [sys.executable, *flags, "-c", "import sglang.srt.value as v; print(v.value)"]
    env = environment({"PYTHONPATH": str(package.parent), "PYTHONPYCACHEPREFIX": str(prefix) if prefix else None})
    return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.strip()


MODES = list(py_compile.PycInvalidationMode)


@pytest.mark.parametrize("optimize", [0, 1, 2], ids=["plain", "opt-1", "opt-2"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name.lower())
def test_a_fresh_interpreter_runs_the_code_that_is_there(
    mode: py_compile.PycInvalidationMode, optimize: int, importable: Path, tmp_path: Path
) -> None:
    source, flags = str(importable / VALUE), ["-" + "O" * optimize] if optimize else []
    compiled = Path(py_compile.compile(source, doraise=True, optimize=optimize, invalidation_mode=mode) or "")
    assert value_seen_by(importable, *flags) == "old"
    assert code_of("--target", importable, "--patches", tmp_path / "patches", "apply", "value") == 0
    assert compiled.exists(), "who shipped it compiled has it compiled"
    assert value_seen_by(importable, *flags) == "new"
    assert code_of("--target", importable, "revert", "value") == 0
    assert compiled.exists()
    assert value_seen_by(importable, *flags) == "old"
    assert value_seen_by(importable, "-B") == "old"


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name.lower())
def test_bytecode_below_a_prefix(
    mode: py_compile.PycInvalidationMode, importable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "bytecode"
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(prefix))
    words = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", mode.name.lower().replace("_", "-")]
    subprocess.run([*words, str(importable)], check=True)
    assert value_seen_by(importable, prefix=prefix) == "old"
    assert run("--target", importable, "--patches", tmp_path / "patches", "apply", "value").returncode == 0
    assert value_seen_by(importable, prefix=prefix) == "new"
    assert run("--target", importable, "revert", "value").returncode == 0
    assert value_seen_by(importable, prefix=prefix) == "old"


def test_bytecode_of_another_interpreter_and_an_old_layout_goes(importable: Path, tmp_path: Path) -> None:
    """They cannot be compiled here, and an unchecked one would be trusted there for ever."""
    cache = importable / "srt/__pycache__"
    cache.mkdir()
    others = [cache / "value.cpython-39.pyc", cache / "value.pypy310.opt-1.pyc", importable / "srt/value.pyc"]
    neighbours = [cache / "values.cpython-311.pyc", cache / "value.py.txt", cache / "other.cpython-39.pyc"]
    for path in [*others, *neighbours]:
        path.write_bytes(b"\x00" * 16)
    assert code_of("--target", importable, "--patches", tmp_path / "patches", "apply", "value") == 0
    assert [path for path in others if path.exists()] == []
    assert [path for path in neighbours if not path.exists()] == []


def test_bytecode_that_was_written_between_apply_and_revert(importable: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert code_of("--target", importable, "--patches", tmp_path / "patches", "apply", "value") == 0
        assert value_seen_by(importable) == "new"
        assert code_of("--target", importable, "revert", "value") == 0
        assert value_seen_by(importable) == "old"


def test_compiled_bytecode_can_be_read_by_the_user_who_runs_it(open_folder: Path, tmp_path: Path) -> None:
    """Root patches with a careful umask; the server's user may not write, and reads what was compiled."""
    package = open_folder / "sglang"
    shutil.copytree(TREES / "classic" / "sglang", package)
    compiled = Path(py_compile.compile(str(package / ENGINE), doraise=True) or "")
    mode = compiled.stat().st_mode
    assert run("--target", package, "apply", umask=0o077).returncode == 0
    assert compiled.stat().st_mode == mode


# Crashes and failing calls: at every call that changes something on disk

# Runs a command again and again, each time on a fresh copy of a folder and in a fork of one process that has everything
# imported. Before its n-th such call it is killed, or that call fails with an error; until n is more than there are.
# Of the calls that write objects, which nothing refers to yet, every 40th is taken.
FAULTS = """
import errno, os, shutil, signal, sys
from patcher.cli import main

template, folder, fault, *words = sys.argv[1:]
CHANGING = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
            "os.chown", "os.utime", "os.setxattr", "subprocess.Popen"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
left = objects = 0

def count(what, place):
    global left, objects
    if "/objects/" in place:
        objects += 1
        if objects % 40:
            return
    left -= 1
    if left:
        return
    os.write(hit, f"{what} {place}".encode())
    if fault == "KILL":
        os.kill(os.getpid(), signal.SIGKILL)
    number = getattr(errno, fault)
    raise OSError(number, os.strerror(number), place)

def hook(event, arguments):
    opens = event == "open" and isinstance(arguments[0], str) and (arguments[2] or 0) & WRITING
    if (event in CHANGING or opens) and arguments[0] != os.devnull:
        place = arguments[0]
        count(event, os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else os.fsdecode(place))

def fsync(descriptor, fsync=os.fsync):
    count("os.fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
    fsync(descriptor)

def run(n):
    global hit, left
    package = shutil.copytree(template, f"{folder}/{n}", symlinks=True) + "/sglang"
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with open(f"{folder}/{n}.code", "w") as file:
            file.write(str(code))
        return
    hit = os.open(f"{folder}/{n}.hit", os.O_WRONLY | os.O_CREAT)
    said = os.open(f"{folder}/{n}.said", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.fsync, left = fsync, n
    sys.addaudithook(hook)
    code = main(["--target", package, *words])
    left = 0
    sys.stdout.flush()
    os._exit(code)

main(["--target", shutil.copytree(template, f"{folder}/unharmed", symlinks=True) + "/sglang", *words])
n = 1
while run(n) or os.path.getsize(f"{folder}/{n}.hit"):
    n += 1
"""


@dataclass(frozen=True)
class Hit:
    """A command that was hit at one call: the call, the package that it left, its exit code, what it said."""

    call: str
    package: Path
    code: int
    said: str


def hits(template: Path, folder: Path, fault: str, words: str) -> list[Hit]:
    """One for each call at which a command on a copy of `template` can be hit, in order; see also `unharmed`."""
    folder.mkdir()
    script = [sys.executable, "-c", FAULTS, str(template), str(folder), fault, *words.split()]
    subprocess.run(script, check=True, capture_output=True, timeout=300)
    found = []
    for number in range(1, len(list(folder.glob("*.hit")))):
        call, said, code = ((folder / f"{number}.{kind}").read_text() for kind in ("hit", "said", "code"))
        package = folder / str(number) / "sglang"
        found.append(Hit(call.replace(f"{package}/", ""), package, int(code), said.replace(f"{package}/", "")))
    return found


# What each operation starts from: nothing applied, both applied, or both with the older parameters.
OPERATIONS = {
    "apply": "",
    "revert --all": "apply",
    "apply nccl-defaults --profile pcie-throughput": "apply",
}


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """A folder with an unpatched package, one of whose files to patch is a symbolic link, both with bytecode."""
    folder = tmp_path / "template"
    shutil.copytree(TREES / "classic", folder)
    (folder / "sglang" / KIMI).rename(folder / "kimi_k25.py")
    (folder / "sglang" / KIMI).symlink_to("../../../kimi_k25.py")
    for path in (ENGINE, KIMI):
        os.utime(folder / "sglang" / path, ns=(LONG_AGO, LONG_AGO))
        py_compile.compile(str(folder / "sglang" / path), doraise=True)
    return folder


def sources(package: Path) -> dict[str, bytes | str]:
    """Every file of a package but the ledger and bytecode, which is compiled anew where it is missing."""
    return {name: data for name, data in contents(package).items() if not name.endswith(".pyc")}


def prepared(template: Path, words: str) -> Path:
    """The folder with what an operation starts from."""
    assert not OPERATIONS[words] or code_of("--target", template, *OPERATIONS[words].split()) == 0
    return template


@pytest.mark.parametrize("words", OPERATIONS)
def test_killed_at_any_moment(words: str, template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed = hits(prepared(template, words), tmp_path / "killed", "KILL", words)
    assert {hit.code for hit in killed} == {-signal.SIGKILL}
    assert len(killed) > 40
    old, new = sources(template / "sglang"), sources(tmp_path / "killed" / "unharmed" / "sglang")
    wrong = []
    for number, hit in enumerate(killed):
        interrupted = (hit.package / ".sglang-patch" / "journal.json").exists()
        if code_of("--target", hit.package, "check") not in ([4] if interrupted else [0, 1]):
            wrong.append(f"{hit.call}: check does not say it")
        finishing, ends = (words, [new]) if number % 2 else ("repair", [old, new])
        capsys.readouterr()
        if code_of("--target", hit.package, *finishing.split()):
            wrong.append(f"{hit.call}: {finishing}: {capsys.readouterr().err}")
        elif interrupted and "interrupted operation" not in capsys.readouterr().out:
            wrong.append(f"{hit.call}: {finishing} does not say that it repaired")
        if sources(hit.package) not in ends:
            wrong.append(f"{hit.call}: {finishing} leaves neither state")
        wrong += [f"{hit.call}: {finishing} leaves {name}" for name in names_of_leftovers(hit.package)]
        states = {str(one.state) for one in status(Target.find(hit.package)).patches}
        if not states <= {"applied", "not-applied"}:
            wrong.append(f"{hit.call}: {finishing} leaves {states}")
    assert not wrong, "\n".join([f"{len(killed)} points:", *wrong])


MIDDLE = {"before the branch moved": False, "after the branch moved": True}
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def interrupted(target: Path, moment: str, folder: Path) -> Path:
    """Kill an apply when all of its files are renamed; returns the package."""
    done = run("--target", target, "apply", env=at_the_branch(KILL, folder, after=MIDDLE[moment]))
    assert done.returncode == -signal.SIGKILL
    return Target.find(target).path


READING = ["check", "status", "diff", "check --json", "apply --dry-run", "revert --all --dry-run"]


@pytest.mark.parametrize("moment", MIDDLE)
@pytest.mark.parametrize("words", READING)
def test_reading_says_that_an_operation_was_interrupted(
    words: str, moment: str, template: Path, tmp_path: Path
) -> None:
    package = interrupted(template, moment, tmp_path / "bin")
    before = contents(package, ledger=True)
    done = run("--target", package, *words.split())
    assert done.returncode == 4
    assert "interrupted" in done.stderr
    assert "sglang-patch repair" in done.stderr
    assert contents(package, ledger=True) == before


@pytest.mark.parametrize("moment", MIDDLE)
def test_killed_while_it_repairs(moment: str, template: Path, tmp_path: Path) -> None:
    old = sources(template / "sglang")
    package = interrupted(template, moment, tmp_path / "bin")
    killed = hits(package.parent, tmp_path / "killed", "KILL", "repair")
    expected = old if "before" in moment else sources(package)
    assert sources(tmp_path / "killed" / "unharmed" / "sglang") == expected
    wrong = []
    for hit in killed:
        if code_of("--target", hit.package, "repair"):
            wrong.append(f"{hit.call}: a second repair fails")
        if sources(hit.package) != expected:
            wrong.append(f"{hit.call}: another state")
        wrong += [f"{hit.call}: {name} is left" for name in names_of_leftovers(hit.package)]
    assert not wrong, "\n".join([f"{len(killed)} points:", *wrong])


def test_an_interrupted_file_that_somebody_edited_since_is_not_overwritten(template: Path, tmp_path: Path) -> None:
    package = interrupted(template, "before the branch moved", tmp_path / "bin")
    engine = package / ENGINE
    engine.write_bytes(engine.read_bytes() + b"# mine\n")
    edited = contents(package)
    for words in ("check", "apply", "revert --all", "repair"):
        done = run("--target", package, *words.split())
        assert done.returncode == 4
    assert str(engine) in done.stderr
    assert "git --git-dir" in done.stderr, "where the bytes before it are"
    assert contents(package) == edited


@pytest.mark.parametrize(("words", "fault"), list(zip(OPERATIONS, ["ENOSPC", "EIO", "EACCES"], strict=True)))
def test_any_call_may_fail(words: str, fault: str, template: Path, tmp_path: Path) -> None:
    """The disk is full or broken, or somebody took a permission away: exit 4 and the old state, or 0 and the new."""
    failed = hits(prepared(template, words), tmp_path / "failed", fault, words)
    assert len(failed) > 40
    unharmed = tmp_path / "failed" / "unharmed" / "sglang"
    old, new = times(template / "sglang"), sources(unharmed)
    verdicts = {4: code_of("--target", template, "check"), 0: code_of("--target", unharmed, "check")}
    wrong = []
    for hit in failed:
        if hit.code not in (0, 4) or "is a fault of sglang-patch" in hit.said or "Traceback" in hit.said:
            wrong.append(f"{hit.call}: exit code {hit.code}: {hit.said}")
        if hit.code == 4 and os.strerror(getattr(errno, fault)) not in hit.said:
            wrong.append(f"{hit.call}: does not say why: {hit.said}")
        if hit.code == 0 and sources(hit.package) != new:
            wrong.append(f"{hit.call}: exit code 0, and another state")
        now = times(hit.package)
        differ = [name for name in sources(hit.package) if hit.code == 4 and now[name] != old.get(name)]
        wrong += [f"{hit.call}: exit code 4, and {name} is not as before" for name in differ]
        left = names_of_leftovers(hit.package)
        wrong += [f"{hit.call}: {name} is left" for name in left if hit.call != f"os.remove {name}"]
        if not left and code_of("--target", hit.package, "check") != verdicts.get(hit.code):
            wrong.append(f"{hit.call}: exit code {hit.code}, and the record says something else")
    assert not wrong, "\n".join([f"{len(failed)} points:", *wrong])


# A disk that is really full

FULL_DISK = """
set -e
mkdir -p "$1"
mount -t tmpfs -o size=200k tmpfs "$1"
cp -r "$2" "$1/site-packages"
dd if=/dev/zero of="$1/ballast" bs=1k 2>/dev/null || true
shift 2
"$@" >&2 || echo $?
"""


def test_a_full_disk(tmp_path: Path) -> None:
    """A small tmpfs in mounts of its own; where nothing may be mounted, a limit on the size of every file instead."""
    disk = tmp_path / "disk"
    command = [COMMAND, "--target", disk / "site-packages", "apply"]
    before = contents(TREES / "classic")
    mounts = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else []), "sh", "-c"]
    if subprocess.run([*mounts, "mount -t tmpfs tmpfs /mnt"], capture_output=True, check=False).returncode == 0:
        keep = f"{FULL_DISK}\ncp -r {shlex.quote(str(disk))}/site-packages {shlex.quote(str(tmp_path))}/after\n"
        words = [*mounts, keep, "sh", str(disk), str(TREES / "classic"), *map(str, command)]
    else:
        shutil.copytree(TREES / "classic", disk / "site-packages")
        (tmp_path / "after").symlink_to(disk / "site-packages")
        words = ["prlimit", "--fsize=2000", "sh", "-c", '"$@" >&2 || echo $?', "sh", *map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "4", done.stderr
    assert re.search("No space left on device|File too large", done.stderr)
    assert contents(tmp_path / "after") == before
    assert names_of_leftovers(tmp_path / "after" / "sglang") == []


# Interrupted by somebody at the keyboard, or by a supervisor


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_signal_in_the_middle_waits_for_the_end_of_the_operation(name: str, tree: Path, tmp_path: Path) -> None:
    done = run(
        "--target", tree, "apply", env=at_the_branch(f"os.kill(os.getpid(), signal.SIG{name})", tmp_path / "bin")
    )
    assert done.returncode == 130
    assert "interrupted" in done.stderr
    assert names_of_leftovers(tree) == []
    assert check(Target.find(tree)).in_place or contents(tree) == BASE
    assert code_of("--target", tree, "revert", "--all") == 0
    assert contents(tree) == BASE


def test_ctrl_c_reaches_the_whole_group_and_leaves_nothing_half_done(tree: Path, tmp_path: Path) -> None:
    """A terminal sends the signal to every process in the foreground."""
    env = at_the_branch("os.killpg(0, signal.SIGINT)", tmp_path / "bin")
    done = run("--target", tree, "apply", "--json", env=env, start_new_session=True)
    assert done.returncode == 130
    assert json.loads(done.stdout)["error"]["kind"] == "interrupted"
    assert names_of_leftovers(tree) == []
    assert check(Target.find(tree)).in_place or contents(tree) == BASE


@pytest.fixture
def holder(tree: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """An apply that stands still in the middle, with the lock, until the file `go` is there."""
    go, here = tmp_path / "go", tmp_path / "here"
    does = f"open({str(here)!r}, 'w').close()\n        while not os.path.exists({str(go)!r}): time.sleep(0.02)"
    env = at_the_branch(does, tmp_path / "bin")
    process = started("--target", tree, "apply", env=env)
    wait_for(here)
    yield process
    go.touch()
    if process.poll() is None:
        process.communicate(timeout=60)


def test_a_held_lock_is_said_with_its_holder(holder: subprocess.Popen[str], tree: Path, tmp_path: Path) -> None:
    for words in ("apply nccl-defaults", "revert --all", "repair"):
        done = run("--target", tree, "--lock-timeout", "0.1", "--json", *words.split())
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, error["kind"]) == (4, "lock-held")
        assert str(holder.pid) in error["found"]
        assert "0.1 s" in error["message"]
        assert "--lock-timeout" in error["hint"]
    (tmp_path / "go").touch()
    assert ended(holder).returncode == 0
    assert check(Target.find(tree)).in_place


def test_reading_waits_for_an_operation_or_says_that_it_does_not_finish(
    holder: subprocess.Popen[str], tree: Path, tmp_path: Path
) -> None:
    for words in ("check", "status", "diff"):
        done = run("--target", tree, "--lock-timeout", "0.1", words)
        assert done.returncode == 4
        assert "did not finish in 0.1 s" in done.stderr
        assert "hint: " in done.stderr
    waiting = started("--target", tree, "check")
    time.sleep(1)
    assert waiting.poll() is None
    (tmp_path / "go").touch()
    assert ended(waiting).returncode == 0
    assert ended(holder).returncode == 0


def test_a_signal_while_it_waits_for_the_lock(holder: subprocess.Popen[str], tree: Path, tmp_path: Path) -> None:
    waiting = [started("--target", tree, *words.split()) for words in ("apply nccl-defaults", "revert --all", "check")]
    time.sleep(2)
    for process in waiting:
        process.send_signal(signal.SIGINT)
    assert [ended(process).returncode for process in waiting] == [130] * 3
    (tmp_path / "go").touch()
    assert ended(holder).returncode == 0
    assert check(Target.find(tree)).in_place


def test_a_lock_whose_holder_died_is_free(holder: subprocess.Popen[str], tree: Path, tmp_path: Path) -> None:
    holder.kill()
    (tmp_path / "go").touch()
    holder.communicate(timeout=60)
    assert run("--target", tree, "--lock-timeout", "10", "apply").returncode == 0
    assert check(Target.find(tree)).in_place


@pytest.mark.parametrize("moment", ["patcher.api", "patcher.plan"])
def test_a_signal_while_it_starts(moment: str, tree: Path, tmp_path: Path) -> None:
    """Python runs a sitecustomize before anything else: this one presses Ctrl-C at the import of a module."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        f"sys.addaudithook(lambda event, args: event == 'import' and args[0] == {moment!r}\n"
        "                 and os.kill(os.getpid(), signal.SIGINT))\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = run("--target", tree, "apply", env={"PYTHONPATH": path})
    assert done.returncode == 130
    assert contents(tree, ledger=True) == BASE


# Many at once


def test_twelve_at_once(tree: Path) -> None:
    """One does it, eleven wait and find it done."""
    processes = [started("--target", tree, "apply", "--json") for _ in range(12)]
    done = [ended(process) for process in processes]
    assert [one.returncode for one in done] == [0] * 12, [one.stderr for one in done]
    documents = [json.loads(one.stdout) for one in done]
    assert sorted(document["changed"] for document in documents) == [False] * 11 + [True]
    assert len({document["digest"] for document in documents}) == 1
    assert len(log(Target.find(tree))) == 1
    assert check(Target.find(tree)).in_place
    assert code_of("--target", tree, "revert", "--all") == 0
    assert contents(tree) == BASE


def test_many_different_commands_at_once(tree: Path) -> None:
    commands = ["apply nccl-defaults", "apply kimi-k25-eagle3", "revert nccl-defaults", "status", "check", "diff"] * 3
    done = [ended(process) for process in [started("--target", tree, *words.split()) for words in commands]]
    assert {one.returncode for one in done} <= {0, 1}, [one.stderr for one in done]
    assert code_of("--target", tree, "revert", "--all") == 0
    assert contents(tree) == BASE
    subjects = [entry.subject for entry in reversed(log(Target.find(tree)))]
    assert all(first != second for first, second in itertools.pairwise(subjects)), "no operation was recorded twice"
