"""The pages say what is true: commands exist, links resolve, the examples work, JSON has the documented fields."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from patcher import errors
from patcher.cli import cli
from patcher.patch import State
from patcher.plan import Action
from tests.releases import REPO
from tests.test_cli import run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGES = sorted([*REPO.glob("*.md"), *(REPO / "docs").glob("*.md")])
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<to>[^()\s]+)\)")
_HEADING = re.compile(r"^#+ +(?P<text>.+)$", re.MULTILINE)
_INLINE = re.compile(r"`(sglang-patch [^`\n]+)`")
_PROGRAM = "sglang-patch"
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of some languages, without the indentation of a list around them."""
    found = [one for one in _FENCE.finditer(page.read_text("utf-8")) if one["language"] in languages]
    return [re.sub(rf"^{one['indent']}", "", one["text"], flags=re.MULTILINE) for one in found]


def typed(page: Path) -> Iterator[str]:
    """What the page tells to type into a shell, one logical line each."""
    for text in blocks(page, "console", "sh"):
        lines = text.replace("\\\n", " ").splitlines()
        prompted = [line[2:] for line in lines if line.startswith("$ ")]
        yield from prompted or lines
    for text in blocks(page, "dockerfile"):
        yield from (line.removeprefix("RUN ") for line in text.replace("\\\n", " ").splitlines() if "RUN" in line)
    for text in blocks(page, "ini"):
        yield from (line.partition("=")[2].lstrip("-") for line in text.splitlines() if line.startswith("Exec"))
    yield from _INLINE.findall(_FENCE.sub("", page.read_text("utf-8")))


def commands(page: Path) -> list[list[str]]:
    """The arguments of each call of the program on a page."""
    found = []
    for line in typed(page):
        words = shlex.shlex(line.replace("VERSION|WHEEL|TREE", "VERSION"), posix=True, punctuation_chars=";&|<>()")
        words.whitespace_split = True
        call: list[str] | None = None
        for word in [*words, ";"]:
            if set(word) <= set(";&|<>()"):
                found += [call] if call is not None else []
                call = None
            elif call is not None:
                call.append(word)
            elif word.rpartition("/")[2] == _PROGRAM:
                call = []
    return [[word for word in call if word not in ("...", "[ID]...")] for call in found]


def parse(arguments: list[str]) -> None:
    """Parse a command line as the program does, and run nothing; raises click's UsageError."""
    with click.Context(cli, info_name=_PROGRAM) as context:
        _, rest, _ = cli.make_parser(context).parse_args(list(arguments))
        if rest:
            name, command, rest = cli.resolve_command(context, rest)
            assert command is not None
            command.make_context(name, rest, parent=context)


@every_page
def test_every_command_on_a_page_is_one_of_the_program(page: Path) -> None:
    for arguments in commands(page):
        asks_only = {"--help", "--version"} & set(arguments)
        try:
            parse([word for word in arguments if word not in asks_only])
        except click.UsageError as error:
            pytest.fail(f"{page.name}: sglang-patch {shlex.join(arguments)}: {error.format_message()}")


@pytest.mark.parametrize(
    "text", ["sglang-patch aply", "true && sglang-patch apply --profil x | cat", "sglang-patch show"]
)
def test_a_command_that_is_none_would_be_found(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"1. Type\n\n   ```console\n   $ {text}\n   aply: what it prints\n   ```\n")
    (arguments,) = commands(page)
    with pytest.raises(click.UsageError):
        parse(arguments)


def test_commands_are_found_where_they_stand() -> None:
    assert len(commands(REPO / "README.md")) > 5
    operating = commands(REPO / "docs" / "operating.md")
    assert ["check", "nccl-defaults"] in operating
    assert ["apply", "--dry-run"] in operating
    assert ["--python", "$(command -v python3)", "apply", "nccl-defaults"] in operating
    assert ["try", "0.5.10"] in operating


def anchors(page: Path) -> set[str]:
    """The names that headings can be linked by, as git hosts make them."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    words = (re.sub(r"[^\w\- ]", "", one["text"].lower()) for one in _HEADING.finditer(text))
    return {one.strip().replace(" ", "-") for one in words}


@every_page
def test_links_within_the_repository_resolve(page: Path) -> None:
    text = _FENCE.sub("", page.read_text("utf-8"))
    for to in (one["to"] for one in _LINK.finditer(text)):
        if re.match(r"[a-z]+:", to):
            continue
        path, _, anchor = to.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {to}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {to}; there are {sorted(anchors(file))}"


@every_page
def test_files_that_a_page_names_exist(page: Path) -> None:
    """`patcher/plan.py`, `docs/json.md`: paths in backticks that begin with a directory of this repository."""
    for name in re.findall(r"`((?:patcher|patches|scripts|tests|fixtures|docs)/[\w./-]+)`", page.read_text("utf-8")):
        elsewhere = name in ("patches/your_patch.py", "patches/ID.diff")
        assert elsewhere or (REPO / name).exists(), f"{page.name} names {name}"


def test_every_module_has_its_line_in_the_layout() -> None:
    layout = (REPO / "docs" / "contributing.md").read_text("utf-8")
    hidden = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    parts = [path for path in (REPO / "patcher").iterdir() if path.name not in hidden]
    missing = [one.name for one in parts if one.name not in layout]
    assert not missing


def test_every_dependency_is_accounted_for() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))
    page = (REPO / "docs" / "dependencies.md").read_text("utf-8").lower()
    declared = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    declared += [one for group in project["dependency-groups"].values() for one in group if isinstance(one, str)]
    names = {re.split(r"[<>=!~; \[]", one)[0].lower() for one in declared}
    assert not [name for name in names if f"[{name}](" not in page]


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """The files of docs/authoring.md, each of which begins with its path in a comment, in a directory of their own."""
    folder = tmp_path / "authoring"
    for text in blocks(REPO / "docs" / "authoring.md", "python"):
        first, _, rest = text.partition("\n")
        if name := re.fullmatch(r"# ([\w/]+\.py)", first):
            path = folder / name[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rest)
    return folder


@pytest.mark.parametrize(
    ("patch", "tree", "file"),
    [
        ("nccl-debug", "early", "srt/server.py"),
        ("nccl-debug", "classic", "srt/entrypoints/engine.py"),
        ("nccl-debug", "modern", "srt/entrypoints/engine.py"),
        ("log-shutdown", "classic", "srt/entrypoints/engine.py"),
    ],
)
def test_an_authoring_example_from_apply_to_revert(
    patch: str, tree: str, file: str, examples: Path, fixture_tree: Callable[[str], Path]
) -> None:
    package = fixture_tree(tree)
    engine = package / file
    before = engine.read_bytes()
    here = ["--target", package, "--patches", examples / "mine"]

    applied = run(*here, "apply", patch)
    assert (applied.returncode, applied.stderr) == (0, "")
    patched = engine.read_bytes()
    assert f"# sglang-patch: {patch}\n".encode() in patched
    again = run(*here, "apply", patch)
    assert again.stdout.startswith(f"in place  {patch}")
    assert engine.read_bytes() == patched
    assert run(*here, "check", patch).returncode == 0
    assert run(*here, "verify", patch).returncode == 0

    assert run("--target", package, "revert", patch).returncode == 0
    assert engine.read_bytes() == before
    assert run(*here, "check", patch).returncode == 1


def test_the_authoring_example_refuses_a_bad_value_as_the_page_shows(
    examples: Path, fixture_tree: Callable[[str], Path]
) -> None:
    done = run(
        "--target", fixture_tree("classic"), "--patches", examples / "mine", "apply", "nccl-debug", "--set",
        "NCCL_DEBUG=LOUD",
    )  # fmt: skip
    assert done.returncode == 2
    page = (REPO / "docs" / "authoring.md").read_text("utf-8")
    assert done.stderr.splitlines()[0] in page


def test_the_authoring_test_passes(examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=examples, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


def shape(value: Any) -> Any:
    """The keys of a document, all the way down; of a list, those of its first element."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else None


def documented(heading: str, number: int = 0) -> dict[str, Any]:
    """The example below a heading of docs/json.md."""
    text = (REPO / "docs" / "json.md").read_text("utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    examples = [one["text"] for one in _FENCE.finditer(section) if one["language"] == "json"]
    document: dict[str, Any] = json.loads(examples[number])
    return document


def compare(real: Any, example: Any, where: str) -> None:
    """Both have the same fields; where one has nothing (null, no element, free keys), there is nothing to compare."""
    if isinstance(real, dict) and isinstance(example, dict):
        if where.rpartition(".")[2] not in ("params", "overrides", "profiles"):
            assert set(real) == set(example), where
        for key in real.keys() & example.keys():
            compare(real[key], example[key], f"{where}.{key}")
    elif isinstance(real, list) and isinstance(example, list) and real and example:
        compare(real[0], example[0], f"{where}[]")


DOCUMENTS = [
    ("status", 0, ["status"]),
    ("check", 0, ["check"]),
    ("verify", 0, ["verify"]),
    ("apply, revert, repair", 0, ["apply"]),
    ("apply, revert, repair", 0, ["revert", "--all"]),
    ("apply, revert, repair", 0, ["repair"]),
    ("list, show", 0, ["list"]),
    ("list, show", 1, ["show", "eagle3-delegation"]),
    ("diff", 0, ["diff"]),
    ("log", 0, ["log"]),
]


@pytest.mark.parametrize(("heading", "number", "arguments"), DOCUMENTS, ids=lambda one: str(one))
def test_a_json_document_has_the_documented_fields(
    heading: str, number: int, arguments: list[str], fixture_tree: Callable[[str], Path]
) -> None:
    package = fixture_tree("classic")
    run("--target", package, "apply", "nccl-defaults")
    real = json.loads(run("--json", "--target", package, *arguments).stdout)
    compare(shape(real), shape(documented(heading, number)), heading)


def test_the_json_document_of_try(fixture_tree: Callable[[str], Path]) -> None:
    package = fixture_tree("classic")
    real = json.loads(run("--json", "--target", package, "try", fixture_tree("modern")).stdout)
    compare(shape(real), shape(documented("try")), "try")


def test_the_json_document_of_a_failure(tmp_path: Path) -> None:
    real = json.loads(run("--json", "--target", tmp_path / "venw", "status").stdout)
    compare(shape(real), shape(documented("Failures")), "failures")


def test_every_kind_of_failure_and_every_state_is_described() -> None:
    kinds = {one.kind: one.exit_code for one in vars(errors).values() if isinstance(one, type) and hasattr(one, "kind")}
    page = (REPO / "docs" / "json.md").read_text("utf-8")
    missing = [kind for kind, code in kinds.items() if kind != "error" and f"| `{kind}` | {code} |" not in page]
    assert not missing
    assert not [one for one in (*State, *Action) if f"`{one}`" not in page]
    operating = (REPO / "docs" / "operating.md").read_text("utf-8")
    assert not [one for one in State if f"\n| `{one}`" not in operating]
