"""Other people's edits in the patched files: kept through apply and revert, or a refusal that says where."""

from __future__ import annotations

import ast
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from patcher import Result, Target, Workplace, apply, log, revert, status
from patcher.cli import main
from tests.conftest import TREES

ENGINE, KIMI = "srt/entrypoints/engine.py", "srt/models/kimi_k25.py"
NCCL, EAGLE = "nccl-defaults", "kimi-k25-eagle3"
FILE = {NCCL: ENGINE, EAGLE: KIMI}
FIRST = {NCCL: "    # sglang-patch: nccl-defaults\n", EAGLE: "    # sglang-patch: kimi-k25-eagle3\n"}
LAST = {
    NCCL: '            os.environ.setdefault("NCCL_P2P_LEVEL", "SYS")\n',
    EAGLE: "        inner.set_embed_and_head(embed, head)\n",
}
SAME_BODY = {NCCL: "    set_ulimit()\n", EAGLE: "        return self.mm_projector(pixels)\n"}
AUTO = '    os.environ["CUDA_MODULE_LOADING"] = "AUTO"\n'
START = '    mp.set_start_method("spawn", force=True)\n'

Tree = Callable[..., Path]
both_patches = pytest.mark.parametrize("patch_id", [NCCL, EAGLE])


# A catalog of small patches for the same file, each of which replaces one text by another.

PATCH_FILE = """
from patcher import Edit, Finding, Patch, Rewritten, State
from patcher.source import Source

OLD, NEW = {old!r}, {new!r}


def rewrite(source, params):
    if source.data.count(OLD) != 1:
        return Finding(State.CONFLICT, "the line is not there, or there twice", expected=OLD.decode())
    return Rewritten(Source(source.path, source.data.replace(OLD, NEW)))


PATCH = Patch(
    id={name!r}, revision={revision}, summary="One line", why="To see what becomes of it",
    edits=(Edit(("srt/entrypoints/engine.py",), rewrite),),
)
"""
IMPORT, INFO = "import zmq\n", '        """Stop every worker."""\n'
ULIMIT, DOC = "    set_ulimit()\n", '    """Owns the worker processes of one model."""\n'
LOCAL = {
    "add-import": (IMPORT, "import gc\n" + IMPORT),
    "elsewhere": (INFO, INFO + '        logger.info("stopping")\n'),
    "replace-line": (ULIMIT, "    set_ulimit(65535)\n"),
    "same-place-one": (AUTO, AUTO + '    os.environ.setdefault("SITE_ONE", "1")\n'),
    "same-place-two": (AUTO, AUTO + '    os.environ.setdefault("SITE_TWO", "2")\n'),
    "before-start": (START, '    logger.info("spawning")\n' + START),
}
IN_ENGINE = [NCCL, *LOCAL]


def write_patch(directory: Path, name: str, old: str, new: str, revision: int = 1) -> Path:
    directory.mkdir(exist_ok=True)
    text = PATCH_FILE.format(name=name, old=old.encode(), new=new.encode(), revision=revision)
    (directory / f"{name.replace('-', '_')}.py").write_text(text)
    return directory


@pytest.fixture(scope="session")
def local_patches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("local") / "patches"
    for name, (old, new) in LOCAL.items():
        write_patch(directory, name, old, new)
    return directory


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.out))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Types `sglang-patch --target PACKAGE ...`."""

    def run(package: Path, *arguments: str | Path) -> Done:
        capsys.readouterr()
        code = main(["--target", *map(str, [package, *arguments])])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Done(code, out, err)

    return run


Command = Callable[..., Done]


def place(package: Path, patches: Path | None = None) -> Workplace:
    return Workplace.of(Target.find(package), patches=[patches] if patches else [])


def states(package: Path, patches: Path | None = None) -> dict[str, str]:
    return {one.id: str(one.state) for one in status(place(package, patches)).patches}


def snapshot(package: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in package.rglob("*") if path.is_file()}


def done(result: Result) -> Result:
    assert result.done, [step.reason for step in result.plan.refused] or result.plan.steps
    return result


# Case 19: edits around the block.

OURS = "    ours = 1\n"


def above(text: str, line: str, ours: str = "", *, gap: str = "") -> str:
    """The text with lines of ours above a line that is there once, or without an empty line there."""
    assert text.count(line) == 1
    return text.replace(gap + line, ours + line)


def below(text: str, line: str, ours: str = "", *, gap: str = "") -> str:
    """The text with lines of ours below a line that is there once, or without an empty line there."""
    assert text.count(line) == 1
    return text.replace(line + gap, line + ours)


Edit = Callable[[str, str], str]
EDITS: dict[str, Edit] = {
    "at the top": lambda text, patch_id: "# ours\n" + text,
    "at the end": lambda text, patch_id: text + "# ours\n",
    "right above the first line": lambda text, patch_id: above(text, FIRST[patch_id], OURS),
    "a comment right above the first line": lambda text, patch_id: above(text, FIRST[patch_id], "    # ours\n"),
    "a gap above the first line": lambda text, patch_id: above(text, FIRST[patch_id], OURS + "\n"),
    "one more gap above the first line": lambda text, patch_id: above(text, FIRST[patch_id], "\n"),
    "the gap above the first line closed": lambda text, patch_id: above(text, FIRST[patch_id], gap="\n"),
    "right below the last line": lambda text, patch_id: below(text, LAST[patch_id], OURS),
    "a comment right below the last line": lambda text, patch_id: below(text, LAST[patch_id], "    # ours\n"),
    "a gap below the last line": lambda text, patch_id: below(text, LAST[patch_id], "\n" + OURS),
    "one more gap below the last line": lambda text, patch_id: below(text, LAST[patch_id], "\n"),
    "the gap below the last line closed": lambda text, patch_id: below(text, LAST[patch_id], gap="\n"),
    "elsewhere in the same body": lambda text, patch_id: below(text, SAME_BODY[patch_id], "        # ours\n"),
    "a line of the same body replaced": lambda text, patch_id: text.replace(SAME_BODY[patch_id], "    ours = 1\n"),
    "in other bodies": lambda text, patch_id: text.replace("zmq.Context(1)", "None").replace("return features", "pass"),
}
# What stands around the place: a gap behind it, none, or for the class the end of the file.
LAYOUTS: dict[str, Callable[[str], str]] = {
    "a gap": lambda text: text,
    "no gap": lambda text: text.replace(AUTO + "\n", AUTO).replace("\n\n\nEntryClass", "\nEntryClass"),
    "the end": lambda text: text.partition("\n\nEntryClass")[0],
}


def without_gaps(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(
    ("patch_id", "layout"),
    [(name, layout) for name in FIRST for layout in LAYOUTS if (name, layout) != (NCCL, "the end")],
)
def test_an_edit_after_apply_is_kept(patch_id: str, edit: str, layout: str, fixture_tree: Tree) -> None:
    """It is no drift, and `revert` leaves the file as if the patch had never been there."""
    package = fixture_tree("classic")
    path = package / FILE[patch_id]
    path.write_text(LAYOUTS[layout](path.read_text()))
    base = path.read_text()
    done(apply(place(package), [patch_id]))
    patched = path.read_text()
    edited = EDITS[edit](patched, patch_id)
    path.write_text(edited)
    assert states(package)[patch_id] == "applied"
    assert not apply(place(package), [patch_id]).done
    assert path.read_text() == edited

    done(revert(place(package), [patch_id]))
    first, last = edited.index(FIRST[patch_id]), edited.index(LAST[patch_id].rstrip("\n")) + len(LAST[patch_id])
    assert without_gaps(path.read_text()) == without_gaps(edited[:first] + edited[last:])
    ours = {line for line in edited.splitlines() if line not in patched.splitlines()}
    rest = [line for line in path.read_text().splitlines() if line not in ours]
    if "first line" in edit or "last line" in edit:
        # which of the empty lines there is whose, nobody can tell
        assert [line for line in rest if line] == [line for line in base.splitlines() if line]
        assert abs(len(rest) - len(base.splitlines())) <= 1
    elif "replaced" not in edit and "bodies" not in edit:
        assert rest == base.splitlines()


@pytest.mark.parametrize("edit", [name for name in EDITS if "first" not in name and "last" not in name])
@both_patches
def test_an_edit_before_apply_comes_back(patch_id: str, edit: str, fixture_tree: Tree) -> None:
    """It is part of what `revert` gives back, with the very time that the file had."""
    package = fixture_tree("classic")
    path = package / FILE[patch_id]
    path.write_text(EDITS[edit](path.read_text(), patch_id))
    base, modified = path.read_bytes(), path.stat().st_mtime_ns
    done(apply(place(package)))
    assert path.read_bytes() != base
    done(revert(place(package)))
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (base, modified)


@both_patches
def test_an_edit_of_a_real_release_is_kept(patch_id: str, wheel_tree: Tree, command: Command) -> None:
    package = wheel_tree("0.5.9")
    path = package / FILE[patch_id]
    before, after = (f"# ours, {when} apply\n".encode() for when in ("before", "after"))
    path.write_bytes(before + path.read_bytes())
    base = path.read_bytes()
    assert command(package, "apply").code == 0
    path.write_bytes(path.read_bytes() + after)
    assert command(package, "check").code == 0
    assert command(package, "apply").code == 0
    assert command(package, "revert", "--all").code == 0
    assert path.read_bytes() == base + after


def test_a_second_patch_is_applied_to_an_edited_file(fixture_tree: Tree, local_patches: Path) -> None:
    package = fixture_tree("classic")
    path = package / ENGINE
    base = path.read_text()
    done(apply(place(package), [NCCL]))
    path.write_text(above(path.read_text(), FIRST[NCCL], OURS))
    done(apply(place(package, local_patches), ["same-place-one", "replace-line"]))
    path.write_text(below(path.read_text(), '    os.environ.setdefault("SITE_ONE", "1")\n', "    # more of ours\n"))
    assert {states(package, local_patches)[name] for name in (NCCL, "same-place-one", "replace-line")} == {"applied"}
    done(revert(place(package, local_patches), [NCCL]))
    done(revert(place(package, local_patches)))
    assert path.read_text() == base.replace(AUTO + "\n", f"{AUTO}    # more of ours\n\n{OURS}")


# Edits of the block itself.


@pytest.mark.parametrize(
    ("patch_id", "old", "new"),
    [
        (NCCL, '"NCCL_BUFFSIZE", "16777216"', '"NCCL_BUFFSIZE", "4194304"'),
        ("add-import", "import gc\n", "import gc as collector\n"),
        ("elsewhere", '        logger.info("stopping")\n', '        logger.warning("stopping")\n'),
        ("replace-line", "set_ulimit(65535)", "set_ulimit(4096)"),
        ("same-place-one", '"SITE_ONE", "1"', '"SITE_ONE", "one"'),
    ],
)
def test_an_edit_of_the_patched_lines_is_refused(
    patch_id: str, old: str, new: str, fixture_tree: Tree, local_patches: Path, command: Command
) -> None:
    """However short the patch is: nobody's line is overwritten, doubled or left behind in silence."""
    package = fixture_tree("classic")
    path = package / ENGINE
    base = path.read_text()
    done(apply(place(package, local_patches), IN_ENGINE))
    applied = path.read_text()
    assert applied.count(old) == 1
    path.write_text(applied.replace(old, new))
    number = path.read_text()[: path.read_text().index(new)].count("\n") + 1
    edited = snapshot(package)
    for arguments in (["revert", patch_id], ["revert", "--all"], ["apply", patch_id], ["apply"]):
        refused = command(package, "--patches", local_patches, *arguments)
        assert refused.code == 3
        assert f"{path}:{number}: {patch_id}: " in refused.err
        assert "nothing was changed" in refused.err
        assert new.strip() in refused.err
        assert snapshot(package) == edited

    others = [name for name in IN_ENGINE if name != patch_id]
    assert command(package, "--patches", local_patches, "revert", *others).code == 0
    path.write_text(path.read_text().replace(new, old))
    assert command(package, "--patches", local_patches, "revert", patch_id).code == 0
    assert path.read_text() == base


def test_another_patch_goes_in_and_out_beside_an_edited_one(
    fixture_tree: Tree, local_patches: Path, command: Command
) -> None:
    package = fixture_tree("classic")
    path = package / ENGINE
    base = path.read_text()
    run = [package, "--patches", local_patches]
    assert command(*run, "apply", NCCL, "elsewhere").code == 0
    path.write_text(path.read_text().replace('"NCCL_BUFFSIZE", "16777216"', '"NCCL_BUFFSIZE", "4194304"'))
    edited = path.read_text()
    assert command(*run, "apply", "add-import").code == 0
    assert states(package, local_patches)[NCCL] == "drifted"
    assert states(package, local_patches)["add-import"] == "applied"
    assert command(*run, "revert", "add-import").code == 0
    assert path.read_text() == edited
    assert command(*run, "revert", "elsewhere").code == 0
    path.write_text(path.read_text().replace("4194304", "16777216"))
    assert command(*run, "revert", "--all").code == 0
    assert path.read_text() == base


# Patches on patches.


def test_a_patch_that_changes_the_lines_of_another(tmp_path: Path, fixture_tree: Tree, command: Command) -> None:
    """The upper one goes first, or both together; the lower one alone is refused with the command that works."""
    package = fixture_tree("classic")
    base = (package / ENGINE).read_bytes()
    old = '"NCCL_MAX_NCHANNELS", "16"'
    patches = write_patch(tmp_path / "patches", "fewer-channels", old, old.replace("16", "8"))
    run = [package, "--patches", patches]
    assert command(*run, "apply", NCCL).code == 0
    lower = (package / ENGINE).read_bytes()
    assert command(*run, "apply", "fewer-channels").code == 0
    both = snapshot(package)
    assert command(*run, "check").code == 0

    refused = command(*run, "revert", NCCL, "--json")
    assert refused.code == 3
    assert "fewer-channels" in refused.document["error"]["message"]
    assert refused.document["error"]["hint"] == f"sglang-patch revert {NCCL} fewer-channels"
    assert snapshot(package) == both

    assert command(*run, "revert", "fewer-channels").code == 0
    assert (package / ENGINE).read_bytes() == lower
    assert command(*run, "apply", "fewer-channels").code == 0
    assert command(*run, *refused.document["error"]["hint"].split()[1:]).code == 0
    assert (package / ENGINE).read_bytes() == base


def test_a_line_of_a_patch_that_another_replaced_and_somebody_wrote_again(
    tmp_path: Path, fixture_tree: Tree, command: Command
) -> None:
    package = fixture_tree("classic")
    path = package / ENGINE
    spawning = '    logger.info("spawning")\n'
    patches = write_patch(tmp_path / "patches", "lower", START, spawning + START)
    write_patch(patches, "upper", spawning, '    logger.info("spawning now")\n')
    run = [package, "--patches", patches]
    assert command(*run, "apply", "lower").code == 0
    assert command(*run, "apply", "upper").code == 0
    path.write_text(below(path.read_text(), ULIMIT, spawning))
    assert command(*run, "status").code == 0
    assert command(*run, "check").code in (0, 1)
    assert command(*run, "revert", "upper").code == 0
    assert '    logger.info("spawning now")\n' not in path.read_text()


def test_a_patch_that_only_deletes(tmp_path: Path, fixture_tree: Tree, command: Command) -> None:
    package = fixture_tree("classic")
    path = package / ENGINE
    base = path.read_text()
    patches = write_patch(tmp_path / "patches", "no-doc", DOC, "")
    run = [package, "--patches", patches]
    assert command(*run, "apply").code == 0
    assert DOC not in path.read_text()
    path.write_text("# ours\n" + path.read_text() + "# ours\n")
    assert command(*run, "check").code == 0
    assert command(*run, "revert", NCCL).code == 0
    assert command(*run, "revert", "no-doc").code == 0
    assert path.read_text() == "# ours\n" + base + "# ours\n"


def test_an_edit_beside_a_line_that_is_there_more_than_once(
    tmp_path: Path, fixture_tree: Tree, command: Command
) -> None:
    """Such a line is recorded with its neighbours; what is said about an edit of these is true."""
    package = fixture_tree("classic")
    path = package / ENGINE
    patches = write_patch(tmp_path / "patches", "again", START, ULIMIT + START)
    run = [package, "--patches", patches]
    assert command(*run, "apply", "again").code == 0
    comment = "    # Workers start from a fresh interpreter\n"
    path.write_text(path.read_text().replace(comment, "    # ours\n"))
    done = command(*run, "status", "--json")
    (one,) = (one for one in done.document["patches"] if one["id"] == "again")
    if one["state"] == "drifted":
        assert one["found"] == "# ours"
        assert path.read_text().splitlines()[int(one["where"].split(":")[1]) - 1].strip() == "# ours"
    else:
        assert command(*run, "revert", "again").code == 0
        assert path.read_text().count(ULIMIT) == 1


# Any set of patches, in any order, among any edits.

SHIPPED = (TREES / "classic" / "sglang" / ENGINE).read_text()
# Lines to edit beside: whole ones that nothing else contains, and that no patch of this file replaces.
LINES = [
    line
    for line in SHIPPED.splitlines(keepends=True)
    if len(line.strip()) > 5 and SHIPPED.count(line) == 1 and line != ULIMIT
]
edits = st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(["above", "below"])), max_size=3)
subsets = st.lists(st.sampled_from(IN_ENGINE), min_size=1, unique=True)


class Model:
    """A tree to patch, and beside it the text that its engine.py would have without any patch."""

    def __init__(self, package: Path, patches: Path) -> None:
        self.path = package / ENGINE
        self.without = self.path.read_text()
        self.package, self.patches, self.count = package, patches, 0

    def edit(self, wanted: Sequence[tuple[str, str]]) -> None:
        """Put comments above or below lines that are there once, in the tree and in the model alike."""
        for line, side in wanted:
            self.count += 1
            indent = line[: len(line) - len(line.lstrip())]
            ours = f"{indent}# ours {self.count}\n"
            new = ours + line if side == "above" else line + ours
            text = self.path.read_text()
            assert text.count(line) == 1
            self.path.write_text(text.replace(line, new))
            self.without = self.without.replace(line, new)

    def apply(self, *ids: str) -> Result:
        return apply(place(self.package, self.patches), ids)

    def revert(self, *ids: str) -> Result:
        return revert(place(self.package, self.patches), ids)


def applied(result: Result) -> set[str]:
    return {one.id for one in result.status.patches if one.state == "applied"}


@pytest.fixture(scope="session")
def model(local_patches: Path) -> Callable[[str], Model]:
    def fresh(folder: str) -> Model:
        shutil.copytree(TREES / "classic", folder, dirs_exist_ok=True)
        return Model(Path(folder) / "sglang", local_patches)

    return fresh


@settings(deadline=None, max_examples=6)
@given(st.data())
def test_edits_between_the_steps_are_kept(model: Callable[[str], Model], data: st.DataObject) -> None:
    ids = data.draw(subsets, "apply")
    with tempfile.TemporaryDirectory() as folder:
        tree = model(folder)
        tree.edit(data.draw(edits, "before"))
        for n, name in enumerate(ids):
            assert applied(done(tree.apply(name))) == set(ids[: n + 1])
            tree.edit(data.draw(edits, f"after {name}"))
        patched = tree.path.read_text()
        assert not tree.apply(*ids).done
        assert tree.path.read_text() == patched
        ast.parse(patched)
        for n, name in enumerate(order := data.draw(st.permutations(ids), "revert")):
            assert applied(done(tree.revert(name))) == set(order[n + 1 :])
            tree.edit(data.draw(edits, f"after the revert of {name}"))
        assert tree.path.read_text() == tree.without


@settings(deadline=None, max_examples=6)
@given(st.data())
def test_the_order_of_commands_leaves_no_trace(model: Callable[[str], Model], data: st.DataObject) -> None:
    """One by one, all at once, or with more that are taken out again: the same bytes and the same digest."""
    ids, before = data.draw(subsets, "apply"), data.draw(edits, "before")
    also = data.draw(st.lists(st.sampled_from(IN_ENGINE), unique=True), "and taken out again")
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        first, second = model(one), model(other)
        first.edit(before)
        second.edit(before)
        once = done(first.apply(*ids))
        for name in data.draw(st.permutations([*ids, *(name for name in also if name not in ids)]), "order"):
            last = done(second.apply(name))
        for name in also:
            if name not in ids:
                last = done(second.revert(name))
        assert first.path.read_bytes() == second.path.read_bytes()
        assert once.status.digest == last.status.digest
        done(first.revert())
        done(second.revert())
        assert first.path.read_text() == second.path.read_text() == first.without


def test_an_edit_in_another_file_does_not_make_the_order_count(fixture_tree: Tree, local_patches: Path) -> None:
    texts = set()
    for order in (["same-place-one", "same-place-two"], ["same-place-two", "same-place-one"]):
        package = fixture_tree("classic")
        done(apply(place(package, local_patches), [EAGLE, order[0]]))
        with (package / KIMI).open("a") as kimi:
            kimi.write("# ours\n")
        done(apply(place(package, local_patches), [order[1]]))
        texts.add((package / ENGINE).read_text())
    assert len(texts) == 1


# Case 14: whatever the file is made of, it comes back byte for byte.

LATIN = b"# -*- coding: latin-1 -*-\n"
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "byte order mark and CRLF": lambda data: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"),
    "no final newline": lambda data: data.rstrip(b"\n"),
    "the class last, no final newline": lambda data: data.partition(b"\n\n\nEntryClass")[0],
    "blanks on empty lines": lambda data: data.replace(b"\n\n", b"\n  \n"),
    "tabs": lambda data: data.replace(b"    ", b"\t"),
    "two blanks": lambda data: data.replace(b"    ", b"  "),
    "latin-1": lambda data: LATIN + data.replace(b"\nclass ", b"\n# \xe9\xff\nclass ", 1),
    "latin-1 and CRLF": lambda data: (LATIN + data + b"# \xe9").replace(b"\n", b"\r\n"),
    "other line separators": lambda data: data + "SEPARATORS = '\u2028\u0085\x1c\x0b'  # \u2029\n".encode(),
    "form feed on a line": lambda data: data.replace(b"\n\n\n", b"\n\n\x0c\n"),
    "form feed before a class": lambda data: data.replace(b"\nclass ", b"\n\x0cclass "),
    "form feed before a function": lambda data: data.replace(b"\ndef ", b"\n\x0cdef "),
    "form feed before the place": lambda data: data.replace(b"\n    os.environ[", b"\n\x0c    os.environ["),
    "form feed behind the place": lambda data: data.replace(b"\n    mp.set", b"\n\x0c    mp.set"),
    "form feed in a comment line": lambda data: data.replace(b"    # ", b"    \x0c# "),
    "form feed first": lambda data: b"\x0c" + data,
    "form feed last": lambda data: data + b"\x0c",
    "LF, and CRLF in some lines": lambda data: data.replace(b":\n", b":\r\n"),
    "CRLF, and LF in some lines": lambda data: data.replace(b"\n", b"\r\n").replace(b":\r\n", b":\n"),
    "CRLF at the place only": lambda data: data.replace(b'"AUTO"\n', b'"AUTO"\r\n'),
    "LF at the place only": lambda data: data.replace(b"\n", b"\r\n").replace(b'"AUTO"\r\n', b'"AUTO"\n'),
}  # fmt: skip


def one_insertion(old: bytes, new: bytes) -> bytes:
    """The lines that one file has more than another, all in one place."""
    a, b = old.splitlines(keepends=True), new.splitlines(keepends=True)
    if b[: len(a) - 1] == a[:-1] and b[len(a) - 1].rstrip(b"\r\n") == a[-1]:
        return b"".join(b[len(a) :])  # what was the last line, and had no end, has one now
    at = next(n for n, (left, right) in enumerate(zip(a, b, strict=False)) if left != right)
    assert b[at + len(b) - len(a) :] == a[at:]
    return b"".join(b[at : at + len(b) - len(a)])


@pytest.mark.parametrize("form", BYTES)
def test_every_byte_comes_back(form: str, fixture_tree: Tree, command: Command) -> None:
    package = fixture_tree("classic")
    paths = [package / ENGINE, package / KIMI]
    for path in paths:
        path.write_bytes(BYTES[form](path.read_bytes()))
    base = [path.read_bytes() for path in paths]
    assert all(ast.parse(data) for data in base)
    refused = command(package, "apply")
    assert (refused.code, refused.err) == (0, "")
    for path, old in zip(paths, base, strict=True):
        new = path.read_bytes()
        ast.parse(new)
        block = one_insertion(old, new)
        assert b"# sglang-patch: " in block
        assert b"\xef\xbb\xbf" not in block
        ends, of_the_file = (set(re.findall(rb"\r\n|\n|\r", data)) for data in (block, old))
        assert len(ends) == 1
        assert ends <= of_the_file
        if form == "tabs":
            assert b"\n  " not in block
    applied = [path.read_bytes() for path in paths]
    assert command(package, "apply").code == 0
    assert [path.read_bytes() for path in paths] == applied
    assert command(package, "check").code == 0
    assert command(package, "revert", "--all").code == 0
    assert [path.read_bytes() for path in paths] == base


@pytest.mark.parametrize("form", BYTES)
def test_every_byte_comes_back_around_an_edit(form: str, fixture_tree: Tree) -> None:
    package = fixture_tree("classic")
    path = package / ENGINE
    path.write_bytes(BYTES[form](path.read_bytes()))
    base = path.read_bytes()
    done(apply(place(package), [NCCL]))
    line = next(line for line in base.splitlines(keepends=True) if b"import zmq" in line)
    path.write_bytes(path.read_bytes().replace(line, line + line.replace(b"zmq", b"gc")))
    assert states(package)[NCCL] == "applied"
    done(revert(place(package)))
    assert path.read_bytes() == base.replace(line, line + line.replace(b"zmq", b"gc"))


ODD: dict[str, Callable[[bytes], bytes]] = {
    "carriage returns everywhere": lambda data: data.replace(b"\n", b"\r"),
    "a carriage return at an import": lambda data: data.replace(b"import zmq\n", b"import zmq\r"),
    "a carriage return at the place": lambda data: data.replace(b'"AUTO"\n', b'"AUTO"\r'),
    "carriage returns in gaps": lambda data: data.replace(b"\n\n\n", b"\n\r\n\r"),
    "a carriage return at the end": lambda data: data.rstrip(b"\n") + b"\r",
    "a carriage return in a string": lambda data: data.replace(b'"""Stop every', b'"""Stop\r every'),
    "a carriage return in a comment": lambda data: data.replace(b"# A flag", b"# A\r# flag"),
    "blanks behind the last newline": lambda data: data + b"\n\n   ",
    "a continued first line": lambda data: b"\\\n" + data,
}


@pytest.mark.parametrize("form", ODD)
def test_odd_bytes_survive_or_are_refused_for_what_they_are(form: str, fixture_tree: Tree, command: Command) -> None:
    package = fixture_tree("classic")
    path = package / ENGINE
    path.write_bytes(ODD[form](path.read_bytes()))
    base, untouched = path.read_bytes(), snapshot(package)
    assert ast.parse(base)
    tried = command(package, "apply", NCCL)
    if tried.code == 3:
        assert str(path) in tried.err
        assert ("carriage return" in tried.err) == (b"\r" in base)
        assert snapshot(package) == untouched
    else:
        assert tried.code == 0, tried.err
        assert ast.dump(ast.parse(path.read_bytes())) != ast.dump(ast.parse(base))
        assert command(package, "revert", "--all").code == 0
        assert path.read_bytes() == base


# Case 15: the tree decides, whatever its metadata says.


@pytest.mark.parametrize(("tree", "says", "kimi"), [("0.5.9", "0.5.10", "applied"), ("0.4.4", "0.5.9", "absent")])
def test_metadata_that_lies(tree: str, says: str, kimi: str, wheel_tree: Tree, command: Command) -> None:
    package = wheel_tree(tree)
    (package.parent / f"sglang-{tree}.dist-info").rename(package.parent / f"sglang-{says}.dist-info")
    base = snapshot(package)
    assert command(package, "apply").code == 0
    seen = command(package, "status", "--json").document
    assert {one["id"]: one["state"] for one in seen["patches"]}[EAGLE] == kimi
    assert (seen["target"]["version"], seen["target"]["metadata_version"]) == (tree, says)
    first_line = command(package, "status").out.splitlines()[0]
    assert tree in first_line
    assert says in first_line
    assert command(package, "revert", "--all").code == 0
    assert {name: data for name, data in snapshot(package).items() if ".sglang-patch" not in name} == base


def test_a_version_file_that_lies(fixture_tree: Tree, command: Command) -> None:
    package = fixture_tree("classic")
    (package / "version.py").write_text('__version__ = "0.5.23"\n')
    assert command(package, "apply").code == 0
    assert states(package)[EAGLE] == "applied"
    package = fixture_tree("modern")
    (package / "version.py").write_text('__version__ = "0.5.9"\n')
    assert command(package, "apply").code == 0
    assert states(package)[EAGLE] == "upstream"
    (package / "version.py").unlink()
    assert command(package, "check").code == 0


# Case 28: the patch's code is gone, or newer.


def test_a_patch_whose_code_is_gone_can_be_taken_out(tmp_path: Path, fixture_tree: Tree, command: Command) -> None:
    package = fixture_tree("classic")
    base = (package / ENGINE).read_bytes()
    patches = write_patch(tmp_path / "patches", "add-import", *LOCAL["add-import"])
    assert command(package, "--patches", patches, "apply").code == 0
    shutil.rmtree(patches)

    seen = command(package, "status", "--json").document["patches"]
    (one,) = (one for one in seen if one["id"] == "add-import")
    assert one["state"] == "applied"
    assert "can still be reverted" in one["reason"]
    for arguments in (["check"], ["check", "add-import"], ["apply"], ["apply", "add-import"], ["diff", "add-import"]):
        assert command(package, *arguments).code == 0
    assert command(package, "revert", "add-import").code == 0
    assert b"import gc" not in (package / ENGINE).read_bytes()
    assert states(package)[NCCL] == "applied"
    assert command(package, "revert", "--all").code == 0
    assert (package / ENGINE).read_bytes() == base


def test_a_patch_whose_code_is_gone_cannot_be_put_back(tmp_path: Path, fixture_tree: Tree, command: Command) -> None:
    package = fixture_tree("classic")
    base = (package / ENGINE).read_bytes()
    patches = write_patch(tmp_path / "patches", "add-import", *LOCAL["add-import"])
    assert command(package, "--patches", patches, "apply", "add-import").code == 0
    shutil.rmtree(patches)
    (package / ENGINE).write_bytes(base)
    assert states(package)["add-import"] == "lost"
    refused = command(package, "apply", "add-import")
    assert refused.code == 3
    assert "its code is gone" in refused.err
    assert command(package, "revert", "add-import").code == 0
    assert "add-import" not in states(package)


@pytest.mark.parametrize("edited", [False, True])
def test_a_newer_revision_takes_the_place_of_the_old_in_one_step(
    edited: bool, tmp_path: Path, fixture_tree: Tree, command: Command
) -> None:
    package = fixture_tree("classic")
    path, (old, new) = package / ENGINE, LOCAL["add-import"]
    base = path.read_text()
    patches = write_patch(tmp_path / "patches", "add-import", old, new)
    run = [package, "--patches", patches]
    assert command(*run, "apply").code == 0
    if edited:
        path.write_text("# ours\n" + path.read_text() + "# ours\n")
        base = "# ours\n" + base + "# ours\n"
    write_patch(patches, "add-import", old, "import gc as collector\n" + old, revision=2)
    assert states(package, patches)["add-import"] == "outdated"
    assert command(*run, "check").code == 1

    operations = len(log(place(package)))
    assert command(*run, "apply").code == 0
    assert len(log(place(package))) == operations + 1
    assert states(package, patches)["add-import"] == "applied"
    assert (path.read_text().count("import gc as collector\n"), path.read_text().count("import gc\n")) == (1, 0)
    assert command(*run, "revert", "--all").code == 0
    assert path.read_text() == base


def test_the_old_revision_can_be_taken_out_under_the_new_code(
    tmp_path: Path, fixture_tree: Tree, command: Command
) -> None:
    package = fixture_tree("classic")
    base = (package / ENGINE).read_bytes()
    patches = write_patch(tmp_path / "patches", "add-import", *LOCAL["add-import"])
    run = [package, "--patches", patches]
    assert command(*run, "apply", "add-import").code == 0
    write_patch(patches, "add-import", "no such line\n", "at all\n", revision=2)
    refused = command(*run, "apply", "add-import")
    assert refused.code == 3
    assert "is not there, or there twice" in refused.err
    assert states(package, patches)["add-import"] == "outdated"
    assert command(*run, "revert", "add-import").code == 0
    assert (package / ENGINE).read_bytes() == base


def test_a_newer_application_is_in_place_for_an_older_catalog(
    tmp_path: Path, fixture_tree: Tree, command: Command
) -> None:
    package = fixture_tree("classic")
    old, new = LOCAL["add-import"]
    patches = write_patch(tmp_path / "patches", "add-import", old, new, revision=2)
    run = [package, "--patches", patches]
    assert command(*run, "apply", "add-import").code == 0
    write_patch(patches, "add-import", old, "import gc as older\n" + old, revision=1)
    applied = snapshot(package)
    assert command(*run, "check", "add-import").code == 0
    assert command(*run, "apply", "add-import").code == 0
    assert snapshot(package) == applied
    (one,) = (one for one in command(*run, "status", "--json").document["patches"] if one["id"] == "add-import")
    assert (one["state"], one["revision"]) == ("applied", 2)
    assert "newer than this catalog's" in one["reason"]


# Case 30: a file that LibCST cannot read, or not give back, although Python can.

DEEP: dict[str, Callable[[int], str]] = {
    "a chain of calls": lambda n: "DEEP = zmq" + ".x()" * n + "\n",
    "a long sum": lambda n: "DEEP = " + " + ".join(["1"] * n) + "\n",
    "many branches": lambda n: "if not zmq:\n    pass\n" + "elif not zmq:\n    pass\n" * n,
    "strings in a row": lambda n: "DEEP = (\n" + '    "x"\n' * n + ")\n",
}


@pytest.mark.parametrize("depth", [150, 300, 900])
@pytest.mark.parametrize("form", DEEP)
def test_a_file_too_deep_for_libcst(form: str, depth: int, fixture_tree: Tree, command: Command) -> None:
    """It is patched, or named with the LibCST version and left alone."""
    package = fixture_tree("classic")
    path = package / ENGINE
    path.write_text(path.read_text() + "\n\n" + DEEP[form](depth))
    assert ast.parse(path.read_bytes())
    base, untouched = path.read_bytes(), snapshot(package)
    assert command(package, "status").code == 0
    tried = command(package, "apply", NCCL)
    if tried.code == 0:
        assert command(package, "check", NCCL).code == 0
        assert command(package, "revert", NCCL).code == 0
        assert path.read_bytes() == base
    else:
        assert tried.code == 3, tried.err
        assert f"LibCST {version_of('libcst')} cannot parse it, although Python can" in tried.err
        assert str(path) in tried.err
        assert command(package, "check", NCCL).code == 1
        assert snapshot(package) == untouched
        assert command(package, "apply", EAGLE).code == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = (\n", "x = ("),
        ("x = 'open\n", "x = 'open"),
        ("def f(:\n    pass\n", "def f(:"),
        ("if zmq:\n        x = 1\n    y = 2\n", "y = 2"),
        ("x = 1\n\\\n", "\\"),
        ("x = 0777\n", "x = 0777"),
        ("x = 1 $ 2\n", "x = 1 $ 2"),
        ("if zmq:\n\tx = 1\n        y = 2\n", "y = 2"),
    ],
)
def test_a_file_that_is_no_python_is_named_with_the_line(
    text: str, line: str, fixture_tree: Tree, command: Command
) -> None:
    package = fixture_tree("classic")
    path = package / ENGINE
    path.write_text(path.read_text() + "\n\n" + text)
    untouched = snapshot(package)
    refused = command(package, "apply", NCCL, "--json")
    assert refused.code == 3
    assert "not valid Python" in refused.document["error"]["message"]
    assert snapshot(package) == untouched
    number = int(refused.document["error"]["where"].partition(":")[2])
    assert path.read_text().splitlines()[number - 1].strip() == line


# Lines that came to belong to the patched statements cannot stay without them.

DEPENDING = {
    "a line in the block": (NCCL, LAST[NCCL], LAST[NCCL] + '        os.environ["OURS"] = "1"\n'),
    "an else of the block": (NCCL, LAST[NCCL], LAST[NCCL] + "    else:\n        ours = 1\n"),
    "a line in the last method": (EAGLE, LAST[EAGLE], LAST[EAGLE] + "        self.ours = 1\n"),
    "a decorator of the first method": (EAGLE, FIRST[EAGLE], "    @torch.no_grad()\n" + FIRST[EAGLE]),
}


@pytest.mark.parametrize("name", DEPENDING)
def test_a_line_that_depends_on_the_patched_lines_is_neither_lost_nor_moved(name: str, fixture_tree: Tree) -> None:
    package = fixture_tree("classic")
    patch_id, old, new = DEPENDING[name]
    done(apply(place(package), [patch_id]))
    path = package / FILE[patch_id]
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    edited = path.read_bytes()

    assert states(package)[patch_id] == "drifted"
    refused = revert(place(package), [patch_id])
    assert [step.id for step in refused.plan.refused] == [patch_id]
    assert path.read_bytes() == edited

    path.write_text(text)
    done(revert(place(package), [patch_id]))
