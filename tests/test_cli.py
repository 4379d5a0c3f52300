"""The command line, as somebody types it: help, wrong words, JSON, colours, pipes, completion, patch files that fail.

`run`, `code_of`, `as_nobody` and `contents` are for the other test files too.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from patcher.catalog import collect
from patcher.cli import cli, main
from tests.conftest import TREES

Ran = subprocess.CompletedProcess
Command = Callable[..., "Ran[str]"]
COMMAND = Path(sys.executable).with_name("sglang-patch")
NOBODY = 65534

# Becomes another user with this interpreter and its packages, wherever they are: they are reached through directories
# that were opened before, because that user may not be allowed into the home they lie in.
_AS_NOBODY = f"""
import ctypes, os, sys
def reach(path):
    return f"/proc/self/fd/{{os.open(path, os.O_PATH)}}"
sys.path[:] = [reach(path) for path in sys.path if os.path.isdir(path)]
for module in list(sys.modules.values()):
    if hasattr(module, "__path__"):
        module.__path__ = [reach(path) for path in module.__path__]
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
PR_SET_DUMPABLE = 4  # or /proc/self would be closed to this user
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
"""
_RUN = "import sys\nfrom patcher.cli import main\nsys.exit(main(sys.argv[1:]))\n"


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The environment with some variables set, and those that are None removed."""
    merged = {**os.environ, **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


def run(*arguments: object, env: Mapping[str, str | None] | None = None, **settings: Any) -> Ran[str]:
    """`sglang-patch ARGUMENTS`, as a process of its own; whatever it does, it shows no traceback."""
    return _told([str(COMMAND), *map(str, arguments)], environment(env), settings)


def as_nobody(
    *arguments: object, env: Mapping[str, str | None] | None = None, script: str = _RUN, **settings: Any
) -> Ran[str]:
    """The same as user 65534, if the tests run as root; `script` is other Python for that user to run."""
    become = "" if os.geteuid() else _AS_NOBODY
    return _told([sys.executable, "-c", become + script, *map(str, arguments)], environment(env), settings)


def _told(command: list[str], env: dict[str, str], settings: dict[str, Any]) -> Ran[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, **{**pipes, **settings}, env=env, text=True, timeout=60, check=False)
    for text in (done.stdout or "", done.stderr or ""):
        assert "Traceback" not in text, text
        assert "is a fault of sglang-patch" not in text, text
        assert "Exception ignored" not in text, text
    return done


def code_of(*arguments: object) -> int:
    """The exit code of `sglang-patch ARGUMENTS` in this process, which takes a tenth of the time of `run`."""
    return main([str(argument) for argument in arguments])


def contents(folder: Path, *, ledger: bool = False) -> dict[str, bytes | str]:
    """Every file below a folder with its bytes, every symbolic link with its text; by default without the ledger."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not ledger and ".sglang-patch" in path.relative_to(folder).parts:
            continue
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Command:
    """`sglang-patch ARGUMENTS` in this process, with what it showed."""

    def command(*arguments: object) -> Ran[str]:
        capsys.readouterr()
        code = code_of(*arguments)
        shown = capsys.readouterr()
        assert "is a fault of sglang-patch" not in shown.err, shown.err
        return Ran(arguments, code, shown.out, shown.err)

    return command


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="sglang-patch-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def tree(fixture_tree: Callable[[str], Path]) -> Path:
    """An unpatched tree in the shape of 0.5.9, which both patches fit."""
    return fixture_tree("classic")


@pytest.fixture(scope="session")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with nccl-defaults applied, and kimi-k25-eagle3 applied and reverted. To be read, never written."""
    package = tmp_path_factory.mktemp("patched") / "site-packages" / "sglang"
    shutil.copytree(TREES / "classic" / "sglang", package)
    assert run("--target", package, "apply").returncode == 0
    assert run("--target", package, "revert", "kimi-k25-eagle3").returncode == 0
    return package


# Help


@pytest.mark.parametrize("command", list(cli.commands))
def test_the_help_of_each_command_has_an_example(command: str, typed: Command) -> None:
    done = typed(command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: sglang-patch {command}")
    assert re.search(rf"^ +sglang-patch (\S+ )*{command}\b", done.stdout.partition("Example")[2], re.MULTILINE)


def test_the_help_names_every_command_and_every_exit_code() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in cli.commands:
        assert re.search(rf"^  {command} +\S", done.stdout, re.MULTILINE), command
    for code in (0, 1, 2, 3, 4, 130):
        assert re.search(rf"\b{code}  \S", done.stdout), code
    assert run("-h").stdout == done.stdout


def test_without_arguments_it_shows_the_help() -> None:
    done = run()
    assert done.returncode == 2
    assert "Usage: sglang-patch" in done.stdout + done.stderr


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"sglang-patch, version \d+\.\d+\.\d+\n", done.stdout)


# Wrong command lines: exit code 2, the word that is wrong, and what may have been meant.

WRONG = [
    ("aply", "no command 'aply'; did you mean apply?"),
    ("revrt --all", "did you mean revert"),
    ("xyzzy", "no command 'xyzzy'"),
    ("--tarket /x status", "--target"),
    ("apply --dryrun", "--dry-run"),
    ("status --no-such-option", "--no-such-option"),
    ("status surplus", "surplus"),
    ("show", "ID"),
    ("show nccl-default", "did you mean nccl-defaults?"),
    ("--target", "--target"),
    ("--target /x --python /y status", "two targets"),
    ("status --python /y --target /x", "two targets"),
    ("--lock-timeout soon apply", "soon"),
    ("--lock-timeout -1 apply", "-1"),
    ("revert", "--all"),
    ("revert nccl-defaults --all", "not both"),
    ("apply --set NCCL_PROTO", "'NCCL_PROTO' is no KEY=VALUE"),
    ("apply --set =LL", "'=LL' is no KEY=VALUE"),
    ("apply ncll-defaults", "there is no patch 'ncll-defaults'; did you mean nccl-defaults?"),
    ("apply nccl-defaults nccl", "there is no patch 'nccl'"),
    ("revert kimi-eagle3", "did you mean kimi-k25-eagle3"),
    ("check xyzzy", "there is no patch 'xyzzy'"),
    ("diff nccl", "there is no patch 'nccl'"),
    ("apply --profile pcie-latancy", "did you mean pcie-latency"),
    ("apply kimi-k25-eagle3 --profile pcie-latency", "kimi-k25-eagle3 has no profile 'pcie-latency'"),
    ("apply kimi-k25-eagle3 --set NCCL_PROTO=LL", "takes no parameters"),
    ("apply nccl-defaults --set LD_PRELOAD=x", "LD_PRELOAD"),
    ("apply nccl-defaults --set NCCL_P2P_LEVEL=sys", "SYS"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_a_wrong_command_line(
    words: str, message: str, tree: Path, typed: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_PATCH_TARGET", str(tree))
    before = contents(tree)
    done = typed(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert contents(tree, ledger=True) == before


def test_shared_options_stand_before_or_after_the_command(patched: Path, tmp_path: Path, typed: Command) -> None:
    outputs = [
        typed("--target", patched, "--json", "status"),
        typed("status", "--target", patched, "--json"),
        typed("--json", "status", "--target", patched),
        typed("--target", tmp_path, "--json", "status", "--target", patched),
    ]
    assert [done.returncode for done in outputs] == [0] * 4
    assert len({done.stdout for done in outputs}) == 1


def test_directories_of_patches_before_and_after_the_command_add_up(tmp_path: Path, typed: Command) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(patch_file(f"patch-{name}"))
    done = typed("--patches", tmp_path / "one", "list", "--patches", tmp_path / "two", "--json")
    listed = {one["id"] for one in json.loads(done.stdout)["patches"]}
    assert listed >= {*collect(), "patch-one", "patch-two"}


# Exit codes


def test_exit_codes(tree: Path, fixture_tree: Callable[[str], Path], tmp_path: Path) -> None:
    early = fixture_tree("early")
    assert run("--target", tree, "check").returncode == 1
    assert run("--target", tree, "apply", "--dry-run").returncode == 0
    assert run("--target", tree, "apply").returncode == 0
    assert run("--target", tree, "apply").returncode == 0
    assert run("--target", tree, "check").returncode == 0
    assert run("--target", tree, "status", "--exit-code").returncode == 0
    assert run("--target", early, "apply").returncode == 0, "what is absent is skipped"
    assert run("--target", early, "check").returncode == 0
    assert run("--target", early, "check", "kimi-k25-eagle3").returncode == 1, "asked for by name"
    assert run("--target", early, "apply", "kimi-k25-eagle3").returncode == 3
    assert run("--target", tmp_path / "nowhere", "check").returncode == 4


# JSON

DOCUMENTS = [
    ("status", 0),
    ("status --exit-code", 0),
    ("check", 0),
    ("check kimi-k25-eagle3", 1),
    ("list", 0),
    ("show nccl-defaults", 0),
    ("diff", 0),
    ("log", 0),
    ("repair", 0),
    ("apply nccl-defaults", 0),
    ("apply nccl-defaults --set NCCL_NTHREADS=256 --dry-run", 0),
    ("apply", 0),
    ("revert --all --dry-run", 0),
    ("revert kimi-k25-eagle3", 0),
    ("revert --all", 0),
]


@pytest.mark.parametrize(("words", "code"), DOCUMENTS)
def test_every_command_prints_one_json_document(
    words: str, code: int, patched: Path, tmp_path: Path, typed: Command
) -> None:
    shutil.copytree(patched, tmp_path / "sglang")
    done = typed("--target", tmp_path, "--json", *words.split())
    document = json.loads(done.stdout)
    assert done.returncode == code
    assert document["schema"] == 1
    assert "error" not in document


# In a tree whose Kimi class has nothing to hand calls to; {tmp} holds the folders named below.
FAILURES = [
    ("aply", 2),
    ("status --nope", 2),
    ("status surplus", 2),
    ("show", 2),
    ("show nope", 2),
    ("revert", 2),
    ("apply nope", 2),
    ("apply --set NCCL_PROTO", 2),
    ("apply --profile nope", 2),
    ("--target /x --python /y status", 2),
    ("--lock-timeout soon status", 2),
    ("list --patches {tmp}/nowhere", 2),
    ("list --patches {tmp}/empty", 2),
    ("list --patches {tmp}/broken", 2),
    ("apply kimi-k25-eagle3", 3),
    ("apply", 3),
    ("status --target {tmp}/nowhere", 4),
    ("check --target {tmp}/empty", 4),
    ("status --python {tmp}/nowhere", 4),
    ("status --ledger {tmp}/broken/patch.py", 4),
    ("check nccl-defaults --ledger {tmp}/broken/patch.py", 4),
    ("apply nccl-defaults --ledger {tmp}/broken/patch.py", 4),
    ("log --ledger {tmp}/broken/patch.py", 4),
]


@pytest.mark.parametrize(("words", "code"), FAILURES)
@pytest.mark.parametrize("first", [True, False], ids=["json-first", "json-last"])
def test_every_failure_is_one_json_document(
    words: str, code: int, first: bool, tree: Path, tmp_path: Path, typed: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_PATCH_TARGET", str(tree))
    (tree / "srt/models/kimi_k25.py").write_text("class KimiK25ForConditionalGeneration:\n    pass\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/patch.py").write_text("PATCH = = 1\n")
    arguments = words.format(tmp=tmp_path).split()
    done = typed(*(["--json", *arguments] if first else [*arguments, "--json"]))
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert document["error"]["code"] == done.returncode == code
    assert document["error"]["message"].splitlines()[0] in done.stderr
    assert set(document["error"]) >= {"kind", "code", "message"}


# Colours

TERMINAL = {"TERM": "xterm-256color", "NO_COLOR": None, "FORCE_COLOR": None, "COLORTERM": None}
# 30 to 48 and 90 to 107 are colours; bold and dim are not, and NO_COLOR leaves them (https://no-color.org).
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")


def on_terminal(*arguments: object, env: Mapping[str, str | None]) -> str:
    """What `sglang-patch ARGUMENTS` writes to a terminal, standard error included."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as reader:
        words = [str(COMMAND), *map(str, arguments)]
        started = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(env))
        os.close(theirs)
        chunks = []
        while chunk := _read(reader.fileno()):
            chunks.append(chunk)
        started.wait(timeout=60)
    return b"".join(chunks).decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux says EIO where the other side of a terminal is closed
        return b""


COLOURFUL = ["status", "check", "check kimi-k25-eagle3", "diff", "apply nope", "apply kimi-k25-eagle3 --dry-run"]


@pytest.mark.parametrize("words", COLOURFUL)
def test_colour_on_a_terminal_unless_no_color_is_set(words: str, patched: Path) -> None:
    arguments = ["--target", str(patched), *words.split()]
    assert COLOUR.search(on_terminal(*arguments, env=TERMINAL))
    assert not COLOUR.search(on_terminal(*arguments, env={**TERMINAL, "NO_COLOR": "1"}))


@pytest.mark.parametrize("words", [*COLOURFUL, "log", "list", "show nccl-defaults"])
def test_no_colour_in_a_pipe(words: str, patched: Path) -> None:
    done = run("--target", patched, *words.split(), env=TERMINAL)
    assert "\x1b" not in done.stdout + done.stderr


# Shell completion


def completions(*words: str) -> list[str]:
    """What the shell is offered for the last of the words."""
    env = {
        "_SGLANG_PATCH_COMPLETE": "bash_complete",
        "COMP_WORDS": shlex.join(["sglang-patch", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = run(env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    done = run(env={"_SGLANG_PATCH_COMPLETE": f"{shell}_source"})
    assert done.returncode == 0
    assert "_SGLANG_PATCH_COMPLETE=" in done.stdout


@pytest.mark.parametrize("command", ["apply", "revert", "check", "show", "diff"])
def test_completion_of_patch_ids(command: str) -> None:
    assert completions(command, "") == list(collect())
    assert completions("--target", "/x", command, "kimi") == ["kimi-k25-eagle3"]


def test_completion_of_a_profile() -> None:
    assert completions("apply", "--profile", "pcie") == ["pcie-latency", "pcie-throughput"]


def test_completion_of_commands_and_options() -> None:
    assert completions("rev") == ["revert"]
    assert "--dry-run" in completions("apply", "--")


# Standard streams in odd states


def broken_pipe(*arguments: object) -> Ran[str]:
    """The command with a standard output that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return run(*arguments, stdout=writer)
    finally:
        os.close(writer)


@pytest.mark.parametrize("words", ["--help", "list", "show nccl-defaults", "status", "status --json", "log", "diff"])
def test_a_reader_that_went_away_is_no_failure(words: str, patched: Path) -> None:
    done = broken_pipe("--target", patched, *words.split())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("words", "code"), [("check", 0), ("check kimi-k25-eagle3", 1), ("check --json nope", 2)])
def test_a_reader_that_went_away_does_not_change_a_verdict(words: str, code: int, patched: Path) -> None:
    assert broken_pipe("--target", patched, *words.split()).returncode == code


@pytest.mark.parametrize("options", ["", "--json"])
def test_a_reader_that_went_away_does_not_change_what_is_done(options: str, tree: Path) -> None:
    assert broken_pipe("--target", tree, "apply", *options.split()).returncode == 0
    assert run("--target", tree, "check").returncode == 0


def test_head_takes_the_first_line(patched: Path) -> None:
    line = f"{shlex.quote(str(COMMAND))} --target {shlex.quote(str(patched))} diff | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "--- a/sglang/srt/entrypoints/engine.py\n", "")


def redirected(redirections: str, *arguments: object) -> Ran[str]:
    """The command as a shell starts it with the redirections."""
    return _told(["sh", "-c", f'exec "$0" "$@" {redirections}', str(COMMAND), *map(str, arguments)], environment(), {})


@pytest.mark.parametrize("words", ["status", "status --json", "check", "diff", "log", "list", "--version"])
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_output(closed: str, words: str, patched: Path) -> None:
    assert redirected(closed, "--target", patched, *words.split()).returncode == 0


@pytest.mark.parametrize("closed", ["<&-", "2>&-"])
def test_closed_input_and_closed_errors(closed: str, patched: Path) -> None:
    done = redirected(closed, "--target", patched, "status")
    assert done.returncode == 0
    assert "nccl-defaults" in done.stdout
    assert redirected(closed, "--target", patched, "check", "nope").returncode == 2


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_and_an_operation(closed: str, tree: Path) -> None:
    before = contents(tree)
    assert redirected(closed, "--target", tree, "apply").returncode == 0
    assert run("--target", tree, "check").returncode == 0
    assert redirected(closed, "--target", tree, "apply", "nope").returncode == 2
    assert redirected(closed, "--target", tree, "revert", "--all").returncode == 0
    assert contents(tree) == before


@pytest.mark.parametrize("words", ["status", "status --json", "check", "diff"])
def test_output_to_a_full_disk_is_said(words: str, patched: Path) -> None:
    done = redirected(">/dev/full", "--target", patched, *words.split())
    assert done.returncode == 4
    assert "No space left on device" in done.stderr


ODD_NAMES = ["sgläng ☂", "two\nlines", "$HOME", "%PATH%", "-rf", "[red]x", os.fsdecode(b"\xff\xfe")]


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_a_target_with_an_odd_name(name: str, tmp_path: Path, typed: Command) -> None:
    odd = tmp_path / name
    shutil.copytree(TREES / "classic", odd)
    before = contents(odd)
    for words in ("apply", "check", "log", "diff", "log --json", "apply --json"):
        assert typed(f"--target={odd}", *words.split()).returncode == 0, words
    shown = json.loads(typed(f"--target={odd}", "status", "--json").stdout)
    assert shown["target"]["path"] == str(odd / "sglang")
    assert shown["ledger"]["path"] == str(odd / "sglang/.sglang-patch")
    assert typed(f"--target={odd}", "revert", "--all").returncode == 0
    assert contents(odd) == before
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing beside it"


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_an_odd_name_is_shown_as_it_is(name: str, patched: Path, tmp_path: Path, typed: Command) -> None:
    shutil.copytree(patched, tmp_path / name / "sglang")
    done = typed(f"--target={tmp_path / name}", "status")
    assert done.returncode == 0
    if name.isprintable():
        assert f"{tmp_path / name}/sglang\n" in done.stdout
        assert f"{tmp_path / name}/sglang/.sglang-patch\n" in done.stdout


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("name", ["sgläng ☂", os.fsdecode(b"\xff\xfe")], ids=ascii)
def test_output_that_cannot_be_encoded(name: str, encoding: str, patched: Path, tmp_path: Path) -> None:
    shutil.copytree(patched, tmp_path / name / "sglang")
    env = {"PYTHONIOENCODING": encoding}
    assert run(f"--target={tmp_path / name}", "status", env=env).returncode == 0
    assert run(f"--target={tmp_path / name}", "check", env=env).returncode == 0
    assert run(f"--target={tmp_path / name}-nowhere", "check", env=env).returncode == 4


# Patch files that somebody named


def patch_file(patch_id: str, rewrite: str = "return Rewritten(source)") -> str:
    """The text of a patch file; its `rewrite` is on line 6."""
    return f"""\
from patcher import Edit, Patch, Rewritten


def change(source, params):
    # what it does:
    {rewrite}


PATCH = Patch(id={patch_id!r}, revision=1, summary="s", why="w", edits=(Edit(("version.py",), change),))
"""


BAD_FILES = {
    "syntax error": ("x = 1\nPATCH = = 2\n", ":2"),
    "unbalanced": ("PATCH = (\n", ":1"),
    "not UTF-8": (b"x = '\xff'\n", ""),
    "a NUL byte": (b"x = 1\n\x00\n", ""),
    "exception": ("import os\n\nos.environ['NOT SET HERE']\n", ":3"),
    "exception deeper": ("def f():\n    return 1 / 0\n\n\nf()\n", ":2"),
    "failed import": ("import a_module_that_is_nowhere\n", ":1"),
    "wrong argument": ("from patcher import Patch\n\nPATCH = Patch(id='mine')\n", ":3"),
    "exit": ("import sys\n\nsys.exit(0)\n", ":3"),
    "no patch": ("x = 1\n", ""),
    "empty": ("", ""),
    "something else": ("PATCH = 'nccl-defaults'\n", ""),
    "bad id": (patch_file("Mein Flicken"), ""),
    "id of a built-in": (patch_file("nccl-defaults"), ""),
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("command", ["list", "check"])
def test_a_bad_patch_file_is_named(name: str, command: str, patched: Path, tmp_path: Path, typed: Command) -> None:
    text, line = BAD_FILES[name]
    bad = tmp_path / "bad.py"
    bad.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = typed("--target", patched, "--patches", tmp_path, command)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{bad}{line}" in done.stderr
    assert "None" not in done.stderr


def test_two_files_with_one_id_are_both_named(tmp_path: Path, typed: Command) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(patch_file("mine"))
    done = typed("--patches", tmp_path, "list")
    assert done.returncode == 2
    assert str(tmp_path / "one.py") in done.stderr
    assert str(tmp_path / "two.py") in done.stderr


def test_a_syntax_error_in_what_a_patch_file_imports_is_named_where_it_is(tmp_path: Path, typed: Command) -> None:
    (tmp_path / "_helper.py").write_text("x = 1\ny = 2\nz = 3\nz = = 4\n")
    (tmp_path / "bad.py").write_text("import runpy\nrunpy.run_path(__file__.replace('bad', '_helper'))\n")
    done = typed("--patches", tmp_path, "list")
    assert done.returncode == 2
    assert f"{tmp_path / '_helper.py'}:4" in done.stderr or f"{tmp_path / 'bad.py'}:2" in done.stderr


@pytest.mark.parametrize(("words", "code"), [("status", 0), ("check mine", 1), ("apply mine", 3), ("apply", 3)])
def test_a_patch_that_fails_on_a_file_is_named(
    words: str, code: int, tree: Path, tmp_path: Path, typed: Command
) -> None:
    (tmp_path / "bad.py").write_text(patch_file("mine", "return source.no_such_thing"))
    before = contents(tree)
    done = typed("--target", tree, "--patches", tmp_path, *words.split())
    assert done.returncode == code
    assert f"{tmp_path / 'bad.py'}:6" in done.stdout + done.stderr
    assert "no_such_thing" in done.stdout + done.stderr
    assert contents(tree, ledger=True) == before


def test_a_good_patch_file_works_beside_the_built_in_ones(tree: Path, tmp_path: Path, typed: Command) -> None:
    appends = "return Rewritten(type(source)(source.path, source.data + b'x = 1\\n'))"
    (tmp_path / "mine.py").write_text(patch_file("mine", appends))
    before = contents(tree)
    assert typed("--target", tree, "--patches", tmp_path, "apply", "mine").returncode == 0
    assert (tree / "version.py").read_bytes() == b'__version__ = "0.5.9"\nx = 1\n'
    assert typed("--target", tree, "check").returncode == 0
    assert typed("--target", tree, "revert", "mine").returncode == 0, "without its code"
    assert contents(tree) == before


def test_an_import_path_that_may_not_be_entered_is_no_obstacle(open_folder: Path) -> None:
    shutil.copytree(TREES / "classic", open_folder / "site-packages")
    closed = open_folder / "closed"
    (closed / "inner").mkdir(parents=True)
    closed.chmod(0)
    script = f"import sys; sys.path.append({str(closed / 'inner')!r})\n{_RUN}"
    done = as_nobody("--target", open_folder / "site-packages", "check", script=script)
    closed.chmod(0o755)
    assert done.returncode == 1
    assert "not-applied" in done.stdout
