"""Every state of a patch, reached as people reach it, and what `status` and `check` then say."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from patcher.cli import main
from tests import releases

ENGINE, KIMI = "srt/entrypoints/engine.py", "srt/models/kimi_k25.py"
NCCL, EAGLE = "nccl-defaults", "kimi-k25-eagle3"
FIRST_LINE = {NCCL: "    # sglang-patch: nccl-defaults\n", EAGLE: "    # sglang-patch: kimi-k25-eagle3\n"}
FILE = {NCCL: ENGINE, EAGLE: KIMI}

Document = dict[str, Any]
Tree = Callable[..., Path]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Document:
        return dict(json.loads(self.out))


class Prompt:
    """Types commands for one target, and looks at one patch in every way that there is."""

    def __init__(self, package: Path, capsys: pytest.CaptureFixture[str], patches: Path | None = None) -> None:
        self.package = package
        self._capsys = capsys
        self._options = ["--target", str(package), *(["--patches", str(patches)] if patches else [])]

    def __call__(self, *arguments: str) -> Done:
        self._capsys.readouterr()
        code = main([*self._options, *arguments])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in out + err
        assert "fault of sglang-patch" not in out + err
        return Done(code, out, err)

    def type_hint(self, hint: str) -> Done:
        """Types what a hint says; an explanation may follow as a comment."""
        words = shlex.split(hint, comments=True)
        assert words[0] == "sglang-patch", hint
        return self(*words[1:])

    def look(self, patch_id: str) -> Document:
        """The patch as `status --json` shows it, after `status`, `check` and `check --json` were found to agree."""
        before = snapshot(self.package)
        done = self("status", "--json")
        assert (done.code, done.err) == (0, "")
        (one,) = (one for one in done.document["patches"] if one["id"] == patch_id)
        in_place = one["state"] in ("applied", "upstream")

        checked = self("check", patch_id, "--json")
        assert checked.code == (0 if in_place else 1)
        assert checked.document["in_place"] is in_place
        assert checked.document["patches"] == [{**one, "in_place": in_place}]

        told = self("check", patch_id)
        assert told.code == checked.code
        assert one["state"] in told.out
        if not in_place:
            assert (one["reason"] or "") in told.out
            assert (one["where"] or "") in told.out
            assert [word for word in (one["hint"] or "").split() if word.strip(",") not in told.out] == []
        if one["reason"]:
            assert one["reason"] in self("status").out
        assert snapshot(self.package) == before
        self._true(one)
        return one

    def states(self) -> dict[str, str]:
        """The state of every patch, and nothing but."""
        return {one["id"]: one["state"] for one in self("status", "--json").document["patches"]}

    def _true(self, one: Document) -> None:
        """What holds for any state: the place exists, the files have the hashes, a command in a hint exists."""
        if one["where"]:
            path, _, line = one["where"].partition(":")
            if (self.package / path).exists():
                assert 1 <= int(line or 1) <= len((self.package / path).read_text().splitlines())
        for file in one["files"]:
            assert file["sha256"] == hashlib.sha256((self.package / file["path"]).read_bytes()).hexdigest()
        if one["hint"] and one["hint"].startswith("sglang-patch "):
            assert self(one["hint"].split()[1], "--help").code == 0

    def line(self, one: Document) -> str:
        """The line that `where` points at."""
        path, _, number = one["where"].partition(":")
        return (self.package / path).read_text().splitlines()[int(number) - 1].strip()


def snapshot(package: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of the package, the ledger included: when it was changed, what it holds."""
    return {
        path.relative_to(package).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in package.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def prompt(capsys: pytest.CaptureFixture[str]) -> Callable[..., Prompt]:
    def at(package: Path, patches: Path | None = None) -> Prompt:
        return Prompt(package, capsys, patches)

    return at


At = Callable[..., Prompt]


def edit(path: Path, old: str, new: str) -> None:
    """Replace a text that is there once."""
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    path.write_text(text.replace(old, new))


def block(package: Path, patch_id: str) -> str:
    """The lines of a patch, from its comment to the last of its code."""
    lines = (package / FILE[patch_id]).read_text().splitlines(keepends=True)
    start = lines.index(FIRST_LINE[patch_id])
    last = 'os.environ.setdefault("NCCL_P2P_LEVEL"' if patch_id == NCCL else "inner.set_embed_and_head(embed, head)"
    end = max(n for n, line in enumerate(lines) if last in line)
    return "".join(lines[start : end + 1])


# applied, not-applied, upstream, absent


@pytest.mark.parametrize("patch_id", [NCCL, EAGLE])
def test_not_applied_then_applied(patch_id: str, fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    one = type_.look(patch_id)
    assert (one["state"], one["reason"], one["files"]) == ("not-applied", None, [])
    assert one["hint"] == f"sglang-patch apply {patch_id}"

    assert type_.type_hint(one["hint"]).code == 0
    one = type_.look(patch_id)
    assert (one["state"], one["revision"], one["reason"], one["hint"]) == ("applied", 1, None, None)
    assert [file["path"] for file in one["files"]] == [FILE[patch_id]]
    assert one["params"].get("NCCL_ALGO") == ("Ring" if patch_id == NCCL else None)


def test_the_document_of_status(wheel_tree: Tree, prompt: At) -> None:
    type_ = prompt(wheel_tree("0.5.9"))
    before = type_("status", "--json").document
    type_("apply", NCCL)
    document = type_("status", "--json").document
    assert {"schema", "target", "patches", "digest", "ledger"} <= document.keys()
    assert document["schema"] == 1
    assert document["target"] == {"path": str(type_.package), "version": "0.5.9", "kind": "wheel"}
    assert re.fullmatch("sha256:[0-9a-f]{64}", document["digest"])
    assert document["digest"] != before["digest"]
    assert document["ledger"]["path"] == str(type_.package / ".sglang-patch")
    assert (before["ledger"]["head"], len(document["ledger"]["head"])) == (None, 40)


def test_the_digest_is_of_what_is_applied_and_of_nothing_else(fixture_tree: Tree, prompt: At) -> None:
    """Equal for the same patches on two hosts; another one for other parameters, bytes or another SGLang."""

    def digest(*commands: Sequence[str], version: str = "0.5.9", text: str = "") -> str:
        type_ = prompt(fixture_tree("classic"))
        (type_.package / "version.py").write_text(f'__version__ = "{version}"\n')
        with (type_.package / ENGINE).open("a") as engine:
            engine.write(text)
        assert [type_(*command).code for command in commands] == [0] * len(commands)
        return str(type_("status", "--json").document["digest"])

    usual = digest(["apply"])
    assert usual == digest(["apply", EAGLE], ["apply", NCCL])
    assert usual == digest(["apply", NCCL, "--profile", "pcie-throughput"], ["revert", "--all"], ["apply"])
    assert usual == digest(["apply"], ["revert", NCCL], ["apply", NCCL, "--profile", "pcie-latency"])
    others = [
        digest(),
        digest(["apply", NCCL]),
        digest(["apply", EAGLE]),
        digest(["apply"], ["apply", NCCL, "--profile", "pcie-throughput"]),
        digest(["apply"], ["apply", NCCL, "--set", "NCCL_NTHREADS=256"]),
        digest(["apply"], version="0.5.8"),
        digest(["apply"], text="# ours\n"),
    ]
    assert len({usual, *others}) == 1 + len(others)


def test_upstream(wheel_tree: Tree, prompt: At) -> None:
    type_ = prompt(wheel_tree("0.5.10"))
    one = type_.look(EAGLE)
    assert one["state"] == "upstream"
    assert "set_embed_and_head" in one["reason"]
    assert type_.line(one).startswith("def set_eagle3_layers_to_capture(")
    assert one["where"].split(":")[1] in one["reason"]
    untouched = snapshot(type_.package)
    assert type_("apply", EAGLE).code == 0
    assert snapshot(type_.package) == untouched


@pytest.mark.parametrize(
    ("patch_id", "gone", "says"),
    [
        (EAGLE, None, KIMI),
        (EAGLE, (KIMI, "class KimiK25ForConditionalGeneration", "class Other"), "KimiK25ForConditional"),
        (NCCL, (ENGINE, "def _set_envs_and_config(", "def _other("), "_set_envs_and_config"),
    ],
)
def test_absent(
    patch_id: str, gone: tuple[str, str, str] | None, says: str, wheel_tree: Tree, fixture_tree: Tree, prompt: At
) -> None:
    """By name a refusal, in a bare command nothing to speak of."""
    type_ = prompt(fixture_tree("classic") if gone else wheel_tree("0.4.4"))
    if gone:
        edit(type_.package / gone[0], *gone[1:])
    one = type_.look(patch_id)
    assert one["state"] == "absent"
    assert says in one["reason"]

    untouched = snapshot(type_.package)
    refused = type_("apply", patch_id, "--json")
    assert (refused.code, refused.document["error"]["code"]) == (3, 3)
    assert one["reason"] in refused.err
    assert snapshot(type_.package) == untouched

    other = NCCL if patch_id == EAGLE else EAGLE
    assert type_("apply").code == 0
    assert type_.look(other)["state"] == "applied"
    assert type_.look(patch_id)["state"] == "absent"
    assert type_("check").code == 0


def test_nothing_to_revert_is_nothing_to_write(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    untouched = snapshot(type_.package)
    assert type_("revert", "--all").code == 0
    assert type_("revert", NCCL).code == 0
    assert snapshot(type_.package) == untouched


# outdated

PATCH_FILE = """
from patcher import Edit, Patch, Profile, Rewritten
from patcher.source import Source


def rewrite(source, params):
    note = "# sglang-patch: site-note\\nSITE = " + ascii(params.get("SITE", "{text}")) + "\\n"
    return Rewritten(Source(source.path, source.data.replace(b"import zmq\\n", b"import zmq\\n" + note.encode())))


PATCH = Patch(
    id="site-note",
    revision={revision},
    summary="A note",
    why="To see what becomes of it",
    edits=(Edit(paths=("srt/entrypoints/engine.py",), rewrite=rewrite),),
    profiles={{{profiles}}},
    default_profile={default!r},
    check_parameter=lambda name, value: None,
)
"""


@pytest.fixture
def patch_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a patch file into a directory of its own; returns the directory."""
    directory = tmp_path / "local-patches"
    directory.mkdir()

    def write(*, revision: int = 1, text: str = "none", profiles: str = "", default: str | None = None) -> Path:
        written = PATCH_FILE.format(revision=revision, text=text, profiles=profiles, default=default)
        (directory / "site_note.py").write_text(written)
        return directory

    return write


def test_outdated_by_a_new_revision(patch_file: Callable[..., Path], fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"), patch_file(revision=1, text="old"))
    assert type_("apply", "site-note").code == 0
    patch_file(revision=2, text="new")
    one = type_.look("site-note")
    assert (one["state"], one["revision"]) == ("outdated", 1)
    assert one["reason"] == "revision 1 is applied, 2 is current"

    assert type_.type_hint(one["hint"]).code == 0
    assert type_.look("site-note")["state"] == "applied"
    text = (type_.package / ENGINE).read_text()
    assert ("SITE = 'old'" in text, "SITE = 'new'" in text) == (False, True)
    assert type_("check").code == 0


def test_outdated_by_other_parameters(patch_file: Callable[..., Path], fixture_tree: Tree, prompt: At) -> None:
    """The profile is what it is called, not what it once held."""
    profile = '"small": Profile("", {{"SITE": "{}"}})'.format
    type_ = prompt(fixture_tree("classic"), patch_file(profiles=profile("one"), default="small"))
    assert type_("apply", "site-note").code == 0
    patch_file(profiles=profile("two"), default="small")
    one = type_.look("site-note")
    assert (one["state"], one["params"]) == ("outdated", {"SITE": "one"})
    assert "SITE=one, wanted two" in one["reason"]

    assert type_.type_hint(one["hint"]).code == 0
    one = type_.look("site-note")
    assert (one["state"], one["params"]) == ("applied", {"SITE": "two"})


def test_outdated_by_a_profile_that_is_gone(patch_file: Callable[..., Path], fixture_tree: Tree, prompt: At) -> None:
    package = fixture_tree("classic")
    base = (package / ENGINE).read_bytes()
    small, large = '"small": Profile("", {"SITE": "one"})', '"large": Profile("", {"SITE": "two"})'
    type_ = prompt(package, patch_file(profiles=f"{small}, {large}", default="small"))
    assert type_("apply", "site-note").code == 0
    patch_file(profiles=large, default="large")
    one = type_.look("site-note")
    assert one["state"] == "outdated"
    assert "no profile 'small'" in one["reason"]

    assert type_("apply", "site-note", "--profile", "large").code == 0
    assert type_.look("site-note")["state"] == "applied"
    assert type_("revert", "--all").code == 0
    assert (package / ENGINE).read_bytes() == base


def test_chosen_parameters_stay_until_others_are_chosen(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    assert type_("apply", NCCL, "--profile", "pcie-throughput", "--set", "NCCL_NTHREADS=256").code == 0
    applied = snapshot(type_.package)
    assert type_("apply").code == 0
    assert (type_.package / ENGINE).read_bytes() == applied[ENGINE][1]
    assert type_("apply", NCCL, "--profile", "pcie-latency").code == 0
    one = type_.look(NCCL)
    assert (one["state"], one["params"]["NCCL_PROTO"], one["params"]["NCCL_NTHREADS"]) == ("applied", "LL", "512")


def test_what_check_says_to_type_means_the_same_patch_and_the_same_ledger(
    patch_file: Callable[..., Path], fixture_tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--target",
        str(fixture_tree("classic")),
        "--patches",
        str(patch_file()),
        "--ledger",
        str(tmp_path / "l"),
    ]
    assert main([*options, "check", "site-note"]) == 1
    typed = shlex.split(capsys.readouterr().out.partition("; type: ")[2])
    assert typed[0] == "sglang-patch"
    assert main(typed[1:]) == 0
    assert main([*options, "check", "site-note"]) == 0


# drifted


ALGO = '            os.environ["NCCL_ALGO"] = "Ring"\n'
CHANNELS = '            os.environ.setdefault("NCCL_MAX_NCHANNELS", "16")\n'
THREADS = '        os.environ.setdefault("NCCL_NTHREADS", "512")\n'


@pytest.mark.parametrize(
    ("patch_id", "old", "new", "found"),
    [
        (NCCL, CHANNELS, CHANNELS.replace("16", "8"), CHANNELS.replace("16", "8").strip()),
        (NCCL, THREADS, "", 'if "NCCL_P2P_DISABLE" not in os.environ:'),
        (NCCL, ALGO, ALGO + "            # ours\n", "# ours"),
        (NCCL, "    # SGLANG_PATCH_NCCL_DEFAULTS=0 turns them off.\n", "\n", "(an empty line)"),
        (EAGLE, "return inner.get_embed_and_head()", "return inner.head()", "return inner.head()"),
        (EAGLE, "# EAGLE-3 calls these on the wrapper; the", "# The", "# The language model has them."),
    ],
)
def test_drifted_by_an_edit(patch_id: str, old: str, new: str, found: str, fixture_tree: Tree, prompt: At) -> None:
    """Neither `apply` nor `revert` writes over it; when the edit is undone, everything is as before."""
    type_ = prompt(fixture_tree("classic"))
    path = type_.package / FILE[patch_id]
    type_("apply")
    applied = path.read_bytes()
    edit(path, old, new)
    one = type_.look(patch_id)
    assert (one["state"], one["reason"]) == ("drifted", "the patched lines were edited since")
    assert one["found"] == found
    assert type_.line(one) == ("" if found == "(an empty line)" else found)
    number = int(one["where"].split(":")[1])
    assert one["expected"] == applied.decode().splitlines()[number - 1].strip()
    assert type_("check").code == 1
    assert type_("status", "--exit-code").code == 1

    edited = snapshot(type_.package)
    commands = [("apply",), ("apply", patch_id), ("revert", patch_id), ("revert", "--all")]
    for refused in [type_(*command) for command in commands]:
        assert refused.code == 3
        assert f"{path}:{number}" in refused.err
        assert f"expected: {one['expected']}" in refused.err
        assert f"found: {found}" in refused.err
        assert snapshot(type_.package) == edited

    path.write_bytes(applied)
    assert type_.look(patch_id)["state"] == "applied"


def test_diff_shows_the_edit(fixture_tree: Tree, prompt: At) -> None:
    """It is what the hint of an edited patch says to type."""
    type_ = prompt(fixture_tree("classic"))
    type_("apply")
    edit(type_.package / ENGINE, CHANNELS, CHANNELS.replace("16", "8"))
    hint = type_.look(NCCL)["hint"]
    shown = type_.type_hint(hint.partition(",")[0]).out
    assert f"-{CHANNELS}+{CHANNELS.replace('16', '8')}" in shown
    assert KIMI not in shown


@pytest.mark.parametrize("patch_id", [NCCL, EAGLE])
def test_drifted_by_removal(patch_id: str, fixture_tree: Tree, prompt: At) -> None:
    """With other edits in the file it is no reinstallation; `apply` puts the lines back."""
    type_ = prompt(fixture_tree("classic"))
    path = type_.package / FILE[patch_id]
    type_("apply")
    path.write_text("# ours\n" + path.read_text().replace(block(type_.package, patch_id) + "\n", ""))
    one = type_.look(patch_id)
    assert (one["state"], one["found"]) == ("drifted", None)
    assert "taken out" in one["reason"]
    assert one["expected"] == FIRST_LINE[patch_id].strip()
    assert one["where"] == FILE[patch_id]

    assert type_.type_hint(one["hint"]).code == 0
    assert type_.look(patch_id)["state"] == "applied"
    assert type_("revert", "--all").code == 0
    assert path.read_text().startswith("# ours\n")
    assert "sglang-patch" not in path.read_text()


def test_drifted_by_removal_where_a_line_of_it_stands_elsewhere_too(fixture_tree: Tree, prompt: At) -> None:
    """A common line of the user's own is no rest of the patch."""
    type_ = prompt(fixture_tree("classic"))
    path = type_.package / KIMI
    edit(
        path,
        "class KimiK25ForConditionalGeneration(nn.Module):\n",
        "def ours(inner):\n    if inner:\n        if inner is None:\n            raise AttributeError(\n"
        "                1\n            )\n\n\nclass KimiK25ForConditionalGeneration(nn.Module):\n",
    )
    type_("apply")
    path.write_text("# ours\n" + path.read_text().replace(block(type_.package, EAGLE) + "\n", ""))
    one = type_.look(EAGLE)
    assert (one["state"], one["found"]) == ("drifted", None)
    assert type_("apply", EAGLE).code == 0
    assert type_.look(EAGLE)["state"] == "applied"


def test_drifted_by_moving_it_out_of_the_function(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    path = type_.package / ENGINE
    type_("apply")
    moved = block(type_.package, NCCL)
    text = path.read_text().replace(moved + "\n", "")
    path.write_text(text + "\n\ndef ours():\n" + moved + "\n")
    one = type_.look(NCCL)
    assert one["state"] == "drifted"
    assert one["expected"] == "once, in _set_envs_and_config"
    assert type_.line(one) == FIRST_LINE[NCCL].strip()
    assert (type_("apply", NCCL).code, type_("revert", NCCL).code) == (3, 3)


def test_drifted_by_renaming_the_function(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    type_("apply")
    edit(type_.package / ENGINE, "def _set_envs_and_config(", "def _ours(")
    one = type_.look(NCCL)
    assert (one["state"], one["expected"]) == ("drifted", "once, in _set_envs_and_config")
    assert type_("revert", NCCL).code == 3


def test_drifted_by_doubling_it(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    type_("apply")
    text = block(type_.package, NCCL) + "\n"
    edit(type_.package / ENGINE, text, text * 2)
    one = type_.look(NCCL)
    assert one["state"] == "drifted"
    assert one["expected"] == "once, in _set_envs_and_config"
    assert one["found"] == "elsewhere, or more than once"
    assert (type_("apply", NCCL).code, type_("revert", NCCL).code) == (3, 3)


def test_a_copy_in_another_function_is_no_drift(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    path = type_.package / ENGINE
    base = path.read_text()
    type_("apply")
    copy = "\n\ndef ours():\n" + block(type_.package, NCCL) + "\n"
    path.write_text(path.read_text() + copy)
    assert type_.look(NCCL)["state"] == "applied"
    assert type_("revert", NCCL).code == 0
    assert path.read_text() == base + copy


def test_drifted_by_deleting_the_file(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    type_("apply")
    (type_.package / KIMI).unlink()
    one = type_.look(EAGLE)
    assert (one["state"], one["where"]) == ("drifted", KIMI)
    assert "not there any more" in one["reason"]
    assert type_("apply", EAGLE).code == 3
    assert type_("revert", EAGLE).code == 0
    assert not (type_.package / KIMI).exists()


# lost


@pytest.mark.parametrize(("patch_id", "local"), [(EAGLE, ""), (NCCL, "# ours\n")])
def test_lost_by_a_reinstallation(patch_id: str, local: str, wheel_tree: Tree, prompt: At) -> None:
    """The file is what SGLang shipped again, whatever else was in it before the patch."""
    type_ = prompt(wheel_tree("0.5.9"))
    path = type_.package / FILE[patch_id]
    shipped = path.read_bytes()
    path.write_bytes(local.encode() + shipped)
    type_("apply")
    path.write_bytes(shipped)
    one = type_.look(patch_id)
    assert (one["state"], one["where"], one["found"]) == ("lost", FILE[patch_id], None)
    assert "reinstalled" in one["reason"]
    assert type_("check").code == 1

    assert type_.type_hint(one["hint"]).code == 0
    assert type_.look(patch_id)["state"] == "applied"
    assert type_("revert", "--all").code == 0
    assert path.read_bytes() == shipped


def test_lost_can_be_forgotten(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    shipped = {path: (type_.package / path).read_bytes() for path in (ENGINE, KIMI)}
    type_("apply")
    for path, data in shipped.items():
        (type_.package / path).write_bytes(data)
    assert type_("revert", "--all").code == 0
    assert {path: (type_.package / path).read_bytes() for path in shipped} == shipped
    assert type_.look(NCCL)["state"] == "not-applied"


def pip(venv: Path, *arguments: str | Path) -> None:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--no-index"]
    command = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", *quiet, *arguments]
    subprocess.run(command, check=True)


def test_lost_by_pip_itself(tmp_path: Path, prompt: At) -> None:
    """The ledger outlives what pip does: forced reinstallation, then an upgrade that brings one of the patches."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip(venv, releases.wheel("0.5.9"))
    type_ = prompt(next(venv.glob("lib/python*/site-packages/sglang")))
    shipped = (type_.package / KIMI).read_bytes()
    assert type_("apply").code == 0
    applied = (type_.package / KIMI).read_bytes()

    pip(venv, "--force-reinstall", releases.wheel("0.5.9"))
    assert (type_.package / KIMI).read_bytes() == shipped
    assert type_.states() == {NCCL: "lost", EAGLE: "lost"}
    assert type_("apply").code == 0
    assert (type_.package / KIMI).read_bytes() == applied
    assert type_("check").code == 0

    pip(venv, releases.wheel("0.5.10"))
    new = (type_.package / ENGINE).read_bytes()
    nccl, eagle = type_("status", "--json").document["patches"]
    assert (nccl["state"], nccl["reason"]) == ("lost", "SGLang 0.5.9 was patched, and this is 0.5.10")
    assert eagle["state"] == "upstream"
    assert "its record can go" in eagle["reason"]
    assert type_("check").code == 1
    assert type_("apply").code == 0
    assert type_.states() == {NCCL: "applied", EAGLE: "upstream"}
    assert type_("check").code == 0
    assert type_("revert", "--all").code == 0
    assert (type_.package / ENGINE).read_bytes() == new


def test_pip_into_a_directory_takes_the_ledger_along(tmp_path: Path, prompt: At) -> None:
    """`--target --upgrade` replaces the whole package: nothing is recorded any more, and nothing is claimed."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--no-index"]
    install += ["--disable-pip-version-check", "--upgrade", "--target", str(tmp_path / "site")]
    subprocess.run([*install, releases.wheel("0.4.4")], check=True, capture_output=True)
    type_ = prompt(tmp_path / "site" / "sglang")
    assert type_("apply").code == 0
    subprocess.run([*install, releases.wheel("0.4.4")], check=True, capture_output=True)
    assert type_.states()[NCCL] == "not-applied"
    assert type_("check").code == 1
    assert type_("apply").code == 0
    assert type_("check").code == 0


def test_an_upgrade_and_a_downgrade_in_place(wheel_tree: Tree, prompt: At) -> None:
    """A patch that is recorded and that the other release has no place for is no obstacle to a bare `apply`."""
    type_ = prompt(wheel_tree("0.5.9"))
    assert type_("apply").code == 0
    shutil.copytree(type_.package / ".sglang-patch", type_.package.parent / "kept")
    shutil.rmtree(type_.package)
    shutil.rmtree(next(type_.package.parent.glob("*.dist-info")))
    shutil.copytree(wheel_tree("0.4.4").parent, type_.package.parent, dirs_exist_ok=True)
    shutil.move(type_.package.parent / "kept", type_.package / ".sglang-patch")

    assert type_.look(NCCL)["reason"] == "SGLang 0.5.9 was patched, and this is 0.4.4"
    assert type_.look(EAGLE)["state"] in ("lost", "absent")
    done = type_("apply")
    assert (done.code, done.err) == (0, "")
    assert type_.look(NCCL)["state"] == "applied"
    assert type_("check").code == 0


def test_lost_stays_lost_when_another_patch_is_put_back(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    base = {path: (type_.package / path).read_text() for path in (ENGINE, KIMI)}
    type_("apply")
    for path, text in base.items():
        (type_.package / path).write_text("# a new release\n" + text)
    (type_.package / "version.py").write_text('__version__ = "0.5.9.post1"\n')
    assert type_.states() == {NCCL: "lost", EAGLE: "lost"}
    assert type_("apply", EAGLE).code == 0
    one = type_.look(NCCL)
    assert (one["state"], one["reason"]) == ("lost", "SGLang 0.5.9 was patched, and this is 0.5.9.post1")
    assert type_("apply").code == 0
    assert type_("check").code == 0


def git(checkout: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@localhost"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=checkout, check=True, capture_output=True, text=True
    ).stdout


def test_lost_by_git_checkout(fixture_tree: Tree, prompt: At) -> None:
    checkout = fixture_tree("classic").parent
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "as it was")
    type_ = prompt(checkout / "sglang")
    assert type_("apply").code == 0
    applied = (type_.package / ENGINE).read_bytes()
    assert git(checkout, "status", "--porcelain") == f" M sglang/{ENGINE}\n M sglang/{KIMI}\n"

    git(checkout, "checkout", "--quiet", "--", ".")
    one = type_.look(NCCL)
    assert (one["state"], one["where"]) == ("lost", ENGINE)
    assert type_.look(EAGLE)["state"] == "lost"
    assert type_("status", "--json").document["target"]["kind"] == "git"
    assert type_("apply").code == 0
    assert (type_.package / ENGINE).read_bytes() == applied
    assert type_("revert", "--all").code == 0
    assert git(checkout, "status", "--porcelain") == ""


# partial: cases 16 and 17

EAGLE_BY_HAND = """
    def set_eagle3_layers_to_capture(self, layer_ids: Optional[List[int]] = None):
        self.language_model.set_eagle3_layers_to_capture(layer_ids)
"""
THE_REST_BY_HAND = """
    def get_embed_and_head(self):
        return self.language_model.get_embed_and_head()

    def set_embed_and_head(self, embed, head):
        self.language_model.set_embed_and_head(embed, head)
"""
SIX = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}
AUTO = '    os.environ["CUDA_MODULE_LOADING"] = "AUTO"\n'
END_OF_KIMI = "\n\nEntryClass = [KimiK25ForConditionalGeneration]"


def test_partial_by_one_method_of_three(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    edit(type_.package / KIMI, END_OF_KIMI, EAGLE_BY_HAND + END_OF_KIMI)
    one = type_.look(EAGLE)
    assert one["state"] == "partial"
    assert type_.line(one).startswith("def set_eagle3_layers_to_capture(")
    assert one["found"] == "set_eagle3_layers_to_capture"
    assert "get_embed_and_head, set_embed_and_head" in one["reason"]

    untouched = snapshot(type_.package)
    for command in (["apply"], ["apply", EAGLE]):
        refused = type_(*command)
        assert refused.code == 3
        assert f"{type_.package}/{one['where']}" in refused.err
        assert snapshot(type_.package) == untouched
    assert type_("apply", NCCL).code == 0
    assert type_.look(EAGLE)["state"] == "partial"


def test_made_by_hand_is_reported_and_the_other_is_applied(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    edit(type_.package / KIMI, END_OF_KIMI, EAGLE_BY_HAND + THE_REST_BY_HAND + END_OF_KIMI)
    by_hand = (type_.package / KIMI).read_bytes()
    done = type_("apply", "--json")
    assert done.code == 0
    steps = {step["id"]: (step["action"], step["state"]) for step in done.document["steps"]}
    assert steps == {NCCL: ("apply", "not-applied"), EAGLE: ("skip", "upstream")}
    assert (type_.package / KIMI).read_bytes() == by_hand
    assert type_("check").code == 0
    assert type_("revert", "--all").code == 0
    assert (type_.package / KIMI).read_bytes() == by_hand


NCCL_BY_HAND = {
    "setdefault": "".join(f'    os.environ.setdefault("{name}", "{value}")\n' for name, value in SIX.items()),
    "if not set": "".join(
        f'    if "{name}" not in os.environ:\n        os.environ["{name}"] = "{value}"\n' for name, value in SIX.items()
    ),
    "if get is None": "".join(
        f'    if os.environ.get("{name}") is None:\n        os.environ["{name}"] = "{value}"\n'
        for name, value in SIX.items()
    ),
    "a loop": f"    for name, value in {SIX}.items():\n        os.environ.setdefault(name, value)\n",
    "update": f"    os.environ.update({SIX})\n",
    "merge": f"    os.environ |= {SIX}\n",
    "or": "".join(f'    os.environ["{name}"] = os.environ.get("{name}", "{value}")\n' for name, value in SIX.items()),
    "unconditional": "".join(f'    os.environ["{name}"] = "{value}"\n' for name, value in SIX.items()),
    "putenv": "".join(f'    os.putenv("{name}", "{value}")\n' for name, value in SIX.items()),
}


@pytest.mark.parametrize("form", NCCL_BY_HAND)
def test_nccl_by_hand_is_not_made_twice(form: str, fixture_tree: Tree, prompt: At) -> None:
    """However it was written, it is seen; where it is all there and guarded, nothing is left to do."""
    type_ = prompt(fixture_tree("classic"))
    edit(type_.package / ENGINE, AUTO, AUTO + NCCL_BY_HAND[form])
    by_hand = (type_.package / ENGINE).read_bytes()
    one = type_.look(NCCL)
    assert one["state"] in ("upstream", "partial")
    if form == "setdefault":
        assert one["state"] == "upstream"
    if one["where"] and ":" in one["where"]:
        number = int(one["where"].split(":")[1])
        assert "NCCL_PROTO" in "\n".join(by_hand.decode().splitlines()[number - 2 : number + 1])
    assert type_("apply", NCCL).code == (0 if one["state"] == "upstream" else 3)
    assert (type_.package / ENGINE).read_bytes() == by_hand
    assert type_("apply", EAGLE).code == 0
    assert type_.look(EAGLE)["state"] == "applied"


@pytest.mark.parametrize("names", [["NCCL_PROTO"], ["NCCL_NTHREADS", "NCCL_P2P_LEVEL"], list(SIX)[:5]])
def test_partial_by_some_variables_set_by_hand(names: Sequence[str], fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    lines = "".join(f'    os.environ.setdefault("{name}", "{SIX[name]}")\n' for name in names)
    edit(type_.package / ENGINE, AUTO, AUTO + lines)
    one = type_.look(NCCL)
    assert one["state"] == "partial"
    assert type_.line(one) == one["found"] == lines.splitlines()[0].strip()
    assert all(name in one["reason"] for name in names)
    assert type_("apply", NCCL).code == 3


def test_partial_because_the_ledger_is_gone(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    base = (type_.package / ENGINE).read_bytes()
    type_("apply")
    shutil.rmtree(type_.package / ".sglang-patch")
    applied = snapshot(type_.package)
    one = type_.look(NCCL)
    assert one["state"] == "partial"
    assert type_.line(one) == FIRST_LINE[NCCL].strip()
    assert "ledger" in one["reason"]
    assert (type_("apply").code, type_("revert", NCCL).code) == (3, 3)
    assert snapshot(type_.package) == applied

    assert type_.type_hint(one["hint"]).code == 0
    assert type_.look(NCCL)["state"] == "applied"
    assert type_("revert", "--all").code == 0
    assert (type_.package / ENGINE).read_bytes() == base


# conflict: case 18

TWICE = '\n\nif True:\n\n    def _set_envs_and_config(server_args):\n        os.environ["NCCL_CUMEM_ENABLE"] = "0"\n'
START = '    mp.set_start_method("spawn", force=True)\n'


@pytest.mark.parametrize(
    ("patch_id", "old", "new", "reason", "line"),
    [
        (NCCL, "\n\n# A marker for the end", TWICE, "2 times", "def _set_envs_and_config(server_args):"),
        (NCCL, AUTO, START + AUTO, "calls set_start_method before", START.strip()),
        (NCCL, AUTO, "    if server_args is None:\n        return\n" + AUTO, "can return before", "return"),
        (
            EAGLE,
            END_OF_KIMI,
            "\n\nclass KimiK25ForConditionalGeneration(Base):\n    pass\n" + END_OF_KIMI,
            "2 times",
            "class KimiK25ForConditionalGeneration(Base):",
        ),
    ],
)
def test_conflict(patch_id: str, old: str, new: str, reason: str, line: str, fixture_tree: Tree, prompt: At) -> None:
    """The place is ambiguous: it is named, and so is what stands in the way; nothing is changed."""
    type_ = prompt(fixture_tree("classic"))
    path = type_.package / FILE[patch_id]
    path.write_text(path.read_text() + "\n\n# A marker for the end")
    edit(path, old, new)
    one = type_.look(patch_id)
    assert one["state"] == "conflict"
    assert reason in one["reason"]
    assert type_.line(one) == line
    if reason == "2 times":
        name = line.split("(")[0]
        lines = path.read_text().splitlines()
        places = ", ".join(str(n) for n, text in enumerate(lines, 1) if text.strip().startswith(f"{name}("))
        assert one["found"] == f"definitions at lines {places}"

    untouched = snapshot(type_.package)
    for command in (["apply"], ["apply", patch_id], ["apply", NCCL, EAGLE]):
        refused = type_(*command, "--json")
        assert (refused.code, refused.document["error"]["code"]) == (3, 3)
        assert refused.document["error"]["where"].endswith(one["where"])
        assert f"{type_.package}/{one['where']}" in refused.err
        assert one["reason"] in refused.err
        assert snapshot(type_.package) == untouched
    assert type_("revert", "--all").code == 0


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (ENGINE, AUTO, START + AUTO),
        (ENGINE, AUTO, "    if server_args is None:\n        return\n" + AUTO),
        (ENGINE, "import os\n", "import os\nimport (\n"),
        (KIMI, "self.language_model = Deep", "self.text_model = Deep"),
    ],
)
def test_every_refusal_says_what_to_do(path: str, old: str, new: str, fixture_tree: Tree, prompt: At) -> None:
    """The file and the line, what was looked for, what was found, what to type next."""
    type_ = prompt(fixture_tree("classic"))
    edit(type_.package / path, old, new)
    text = (type_.package / path).read_text()
    (type_.package / path).write_text(text.replace("self.language_model", "self.text_model") if path == KIMI else text)
    refused = type_("apply", NCCL if path == ENGINE else EAGLE, "--json")
    assert refused.code == 3
    error = refused.document["error"]
    assert re.search(re.escape(path) + ":[0-9]+$", error["where"])
    assert [name for name in ("message", "expected", "found", "hint") if not error.get(name)] == []


def test_conflict_because_the_place_is_missing(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    path = type_.package / ENGINE
    head, _, body = path.read_text().partition("def _set_envs_and_config(")
    path.write_text(head + "def _set_envs_and_config(" + re.sub(r'"(NCCL|CUDA)_', '"OTHER_', body))
    one = type_.look(NCCL)
    assert one["state"] == "conflict"
    assert "NCCL_" in one["reason"]
    assert "os.environ" in one["expected"]
    assert type_.line(one).startswith("def _set_envs_and_config(")
    untouched = snapshot(type_.package)
    assert (type_("apply").code, type_("apply", NCCL).code) == (3, 3)
    assert snapshot(type_.package) == untouched
    assert type_("apply", EAGLE).code == 0


def test_conflict_because_two_files_define_the_function(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    function = "".join((type_.package / ENGINE).read_text().partition("def _set_envs_and_config(")[1:])
    (type_.package / "srt" / "server.py").write_text("import os\n\n\n" + function.partition("\n\n\n")[0] + "\n")
    one = type_.look(NCCL)
    assert one["state"] == "conflict"
    assert ENGINE in str(one["found"])
    assert "srt/server.py" in str(one["found"])
    untouched = snapshot(type_.package)
    assert type_("apply", NCCL).code == 3
    assert snapshot(type_.package) == untouched


def test_conflict_because_it_does_not_parse(fixture_tree: Tree, prompt: At) -> None:
    type_ = prompt(fixture_tree("classic"))
    path = type_.package / ENGINE
    path.write_text(path.read_text() + "\n\nx = (\n")
    one = type_.look(NCCL)
    assert one["state"] == "conflict"
    assert "not valid Python" in one["reason"]
    assert type_.line(one) == "x = ("
    untouched = snapshot(type_.package)
    assert type_("apply").code == 3
    assert snapshot(type_.package) == untouched


# A patch of two files: one state for both.

TWO_FILES = """
from patcher import Edit, Finding, Patch, Rewritten, State
from patcher.source import Source


def rewrite(source, params):
    if b"SITE" in source.data:
        return Finding(State.UPSTREAM, "SITE is there already")
    return Rewritten(Source(source.path, b"# sglang-patch: two-files\\nSITE = 1\\n" + source.data))


PATCH = Patch(
    id="two-files",
    revision=1,
    summary="A note in two files",
    why="To see what becomes of it",
    edits=(Edit(("srt/entrypoints/engine.py",), rewrite), Edit(("srt/models/kimi_k25.py",), rewrite)),
)
"""


def test_one_of_two_files(tmp_path: Path, fixture_tree: Tree, prompt: At) -> None:
    """Half by hand is partial, half reinstalled is lost, half edited is drifted: never half applied."""
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "two_files.py").write_text(TWO_FILES)
    type_ = prompt(fixture_tree("classic"), tmp_path / "patches")
    path = type_.package / KIMI
    base = path.read_text()

    path.write_text("SITE = 0\n" + base)
    one = type_.look("two-files")
    assert (one["state"], one["where"]) == ("partial", KIMI)
    assert type_("apply", "two-files").code == 3

    path.write_text(base)
    assert type_("apply", "two-files").code == 0
    applied = path.read_text()
    path.write_text(base)
    one = type_.look("two-files")
    assert (one["state"], one["where"]) == ("lost", KIMI)
    assert type_("apply", "two-files").code == 0
    assert path.read_text() == applied

    path.write_text(applied.replace("SITE = 1", "SITE = 2"))
    one = type_.look("two-files")
    assert (one["state"], one["where"], one["found"]) == ("drifted", f"{KIMI}:2", "SITE = 2")
    assert type_("revert", "two-files").code == 3

    path.write_text(applied)
    assert type_("revert", "two-files").code == 0
    assert path.read_text() == base
