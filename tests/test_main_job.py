"""The main job on real releases: apply, check and revert both patches on the whole tree, and the effect of the code."""

from __future__ import annotations

import ast
import json
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from patcher import Target, apply
from patcher.sandbox import Call, Case, FunctionEffect, run_delegation, run_function_cases
from tests import releases
from tests.test_releases import rows_that_disagree

ENGINE, KIMI = "srt/entrypoints/engine.py", "srt/models/kimi_k25.py"
FUNCTION, WRAPPER = "_set_envs_and_config", "KimiK25ForConditionalGeneration"
METHODS = ("set_eagle3_layers_to_capture", "get_embed_and_head", "set_embed_and_head")

RELEASES = ("0.4.4", "0.5.9", "0.5.10", "0.5.19", "0.5.23")
CHANGED = {version: {ENGINE, KIMI} if version == "0.5.9" else {ENGINE} for version in RELEASES}
KIMI_STATE = {"0.4.4": "absent", "0.5.9": "applied", "0.5.10": "upstream", "0.5.19": "upstream", "0.5.23": "upstream"}
LAST_SETTING = {
    **dict.fromkeys(("0.4.4", "0.5.9", "0.5.10"), "os.environ['CUDA_MODULE_LOADING'] = 'AUTO'"),
    **dict.fromkeys(("0.5.19", "0.5.23"), "os.environ['CUDA_DEVICE_MAX_CONNECTIONS'] = '8'"),
}
SIX = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}

every_release = pytest.mark.parametrize("version", RELEASES)
OLD_AND_NEW = ("0.5.9", "0.5.23")
old_and_new = pytest.mark.parametrize("version", OLD_AND_NEW)
Snapshot = dict[str, tuple[int, ...]]
Trees = Callable[[str], tuple[Path, Path]]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command() -> Command:
    """Types `sglang-patch --target PACKAGE ...`."""

    def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        script = Path(sys.executable).with_name("sglang-patch")
        return subprocess.run([script, "--target", package, *arguments], capture_output=True, text=True, check=False)

    return run


def snapshot(folder: Path) -> Snapshot:
    """Every path below a folder with its mode, size, inode and times: nobody can write to it and leave these alone."""
    found = {path.relative_to(folder).as_posix(): path.lstat() for path in folder.rglob("*")}
    return {
        name: (one.st_mode, one.st_size, one.st_ino, one.st_mtime_ns, one.st_ctime_ns) for name, one in found.items()
    }


def files(folder: Path) -> dict[str, tuple[int, ...]]:
    """Every file of an installation but the ledger's: mode, size and modification time."""
    return {
        name: (mode, size, modified)
        for name, (mode, size, _, modified, _) in snapshot(folder).items()
        if stat.S_ISREG(mode) and not name.startswith("sglang/.sglang-patch/")
    }


def states(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    patches = json.loads(done.stdout)["patches"]
    return {one["id"]: one["state"] for one in patches if one["id"] in ("nccl-defaults", "kimi-k25-eagle3")}


@every_release
def test_apply_check_and_revert_on_the_whole_tree(version: str, tmp_path: Path, command: Command) -> None:
    package = releases.unpacked(version, tmp_path / "site-packages")
    site = package.parent
    shipped, record = files(site), next(site.glob("*.dist-info/RECORD")).read_bytes()
    assert rows_that_disagree(package) == []

    done = command(package, "apply")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(rows_that_disagree(package)) == {f"sglang/{path}" for path in CHANGED[version]}
    assert files(site).keys() == shipped.keys()
    assert {name for name, entry in files(site).items() if entry != shipped[name]} == set(rows_that_disagree(package))

    status = command(package, "status", "--json")
    assert states(status) == {"nccl-defaults": "applied", "kimi-k25-eagle3": KIMI_STATE[version]}
    assert json.loads(status.stdout)["target"] == {"path": str(package), "version": version, "kind": "wheel"}
    applied = snapshot(site)
    done = command(package, "check")
    assert (done.returncode, done.stderr) == (0, "")
    done = command(package, "apply")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no file was touched" in done.stdout
    assert snapshot(site) == applied  # the ledger included

    done = command(package, "revert", "--all")
    assert (done.returncode, done.stderr) == (0, "")
    assert rows_that_disagree(package) == []
    assert files(site) == shipped
    assert next(site.glob("*.dist-info/RECORD")).read_bytes() == record
    assert states(command(package, "status", "--json"))["nccl-defaults"] == "not-applied"


@pytest.mark.parametrize(("version", "code"), [("0.4.4", 3), ("0.5.10", 0)])
def test_a_patch_that_there_is_nothing_to_do_for(
    version: str, code: int, wheel_tree: Callable[..., Path], command: Command
) -> None:
    """Absent and asked for by name is a refusal; upstream is what was asked for."""
    package = wheel_tree(version)
    untouched = snapshot(package)
    assert command(package, "apply", "kimi-k25-eagle3").returncode == code
    assert command(package, "check", "kimi-k25-eagle3").returncode == (1 if code else 0)
    assert command(package, "revert", "--all").returncode == 0
    assert snapshot(package) == untouched


# The source that is left behind.


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Trees:
    """Two trees of a release with the patched files only: as shipped, and after a bare `apply`."""
    made: dict[str, tuple[Path, Path]] = {}

    def trees_of(version: str) -> tuple[Path, Path]:
        if version not in made:
            wanted = {"sglang/__init__.py", "sglang/version.py", f"sglang/{ENGINE}", f"sglang/{KIMI}"}
            places = [tmp_path_factory.mktemp(f"{version}-{name}") for name in ("shipped", "patched")]
            shipped, patched = (releases.unpacked(version, place, only=wanted.__contains__) for place in places)
            assert apply(Target.find(patched)).done
            made[version] = shipped, patched
        return made[version]

    return trees_of


each_patched_file = pytest.mark.parametrize(
    ("version", "path"), [(version, path) for version in RELEASES for path in sorted(CHANGED[version])]
)


@each_patched_file
def test_one_insertion_and_every_other_byte_as_it_was(version: str, path: str, trees: Trees) -> None:
    old, new = ((tree / path).read_bytes().splitlines(keepends=True) for tree in trees(version))
    at = next(n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    count = len(new) - len(old)
    assert new[at + count :] == old[at:]
    inserted = b"".join(new[at : at + count]).decode("ascii")
    assert inserted.startswith(f"    # sglang-patch: {'nccl-defaults' if path == ENGINE else 'kimi-k25-eagle3'}\n")
    assert "import" not in inserted
    assert [line for line in inserted.splitlines() if line != line.rstrip()] == []


@each_patched_file
def test_without_the_inserted_nodes_the_syntax_tree_is_as_it_was(version: str, path: str, trees: Trees) -> None:
    old, new = (ast.parse((tree / path).read_bytes()) for tree in trees(version))
    name = FUNCTION if path == ENGINE else WRAPPER
    node = definition(new, name)
    kept = [statement for statement in node.body if not is_inserted(statement)]
    assert len(node.body) - len(kept) == (1 if path == ENGINE else 3)
    node.body = kept
    assert ast.dump(node) == ast.dump(definition(old, name))
    assert ast.dump(new) == ast.dump(old)


def definition(module: ast.Module, name: str) -> ast.FunctionDef | ast.ClassDef:
    (found,) = (node for node in module.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name)
    return found


def is_inserted(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef):
        return statement.name in METHODS
    return isinstance(statement, ast.If) and "SGLANG_PATCH_NCCL_DEFAULTS" in ast.unparse(statement.test)


@every_release
def test_the_block_stands_behind_the_last_setting_and_before_the_start_method(version: str, trees: Trees) -> None:
    body = definition(ast.parse((trees(version)[1] / ENGINE).read_bytes()), FUNCTION).body
    (block,) = (n for n, statement in enumerate(body) if is_inserted(statement))
    own = [n for n, statement in enumerate(body) if n != block and settings_in(statement)]
    (start,) = (n for n, statement in enumerate(body) if "set_start_method" in ast.unparse(statement))
    assert max(own) == block - 1
    assert ast.unparse(body[block - 1]) == LAST_SETTING[version]
    assert block < start


def settings_in(statement: ast.stmt) -> list[str]:
    """The variables of NCCL and CUDA that a statement names."""
    texts = [node.value for node in ast.walk(statement) if isinstance(node, ast.Constant)]
    return [text for text in texts if isinstance(text, str) and text.startswith(("NCCL_", "TORCH_NCCL_", "CUDA_"))]


# The effect, in the process that calls the function and in a child that it really spawns.

TREE = "allreduce:tree"
# The cases by their number in the list of real use: what the process finds, the server's flags, and what the patch must
# then not add.
NOT_ADDED: dict[str, tuple[dict[str, str], dict[str, bool], set[str]]] = {
    "11: nothing set": ({}, {}, set()),
    "1: an algorithm set": ({"NCCL_ALGO": TREE}, {}, {"NCCL_PROTO"}),
    "1: a protocol set": ({"NCCL_PROTO": "Simple"}, {}, {"NCCL_ALGO"}),
    "2: deterministic mode": (
        {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8", "NCCL_ALGO": TREE},
        {},
        {"NCCL_PROTO"},
    ),
    "3: NVLS": ({}, {"enable_nccl_nvls": True}, {"NCCL_ALGO", "NCCL_PROTO"}),
    "3: symmetric memory": ({}, {"enable_symm_mem": True}, {"NCCL_ALGO", "NCCL_PROTO"}),
    "3: both": ({}, {"enable_nccl_nvls": True, "enable_symm_mem": True}, {"NCCL_ALGO", "NCCL_PROTO"}),
    "3: NVLS, exported": (
        {"NCCL_NVLS_ENABLE": "2", "NCCL_CUMEM_ENABLE": "1"},
        {"enable_nccl_nvls": True},
        {"NCCL_ALGO", "NCCL_PROTO"},
    ),
    "4: a tuned host": (
        {
            "NCCL_P2P_DISABLE": "1",
            "NCCL_MIN_NCHANNELS": "32",
            "NCCL_MAX_NCHANNELS": "64",
            "NCCL_BUFFSIZE": "67108864",
        },
        {},
        {"NCCL_P2P_LEVEL"},
    ),
    "4: no peer to peer": ({"NCCL_P2P_DISABLE": "1"}, {}, {"NCCL_P2P_LEVEL"}),
    "5: a minimum": ({"NCCL_MIN_NCHANNELS": "32"}, {}, {"NCCL_MAX_NCHANNELS"}),
    "5: MAX_CTAS": ({"NCCL_MAX_CTAS": "32"}, {}, {"NCCL_MAX_NCHANNELS"}),
    "5: MIN_CTAS": ({"NCCL_MIN_CTAS": "32"}, {}, {"NCCL_MAX_NCHANNELS"}),
    "5: MAX_NRINGS": ({"NCCL_MAX_NRINGS": "32"}, {}, {"NCCL_MAX_NCHANNELS"}),
    "5: MIN_NRINGS": ({"NCCL_MIN_NRINGS": "32"}, {}, {"NCCL_MAX_NCHANNELS"}),
    "6: a graph file": ({"NCCL_GRAPH_FILE": "/etc/graph.xml"}, {}, {"NCCL_ALGO", "NCCL_PROTO"}),
    "6: a tuner": ({"NCCL_TUNER_PLUGIN": "libtuner.so"}, {}, {"NCCL_ALGO", "NCCL_PROTO"}),
    "7: an empty algorithm": ({"NCCL_ALGO": ""}, {}, {"NCCL_PROTO"}),
    "7: an empty level": ({"NCCL_P2P_LEVEL": ""}, {}, set()),
    "7: an empty minimum": ({"NCCL_MIN_NCHANNELS": ""}, {}, {"NCCL_MAX_NCHANNELS"}),
    "10: off": ({"SGLANG_PATCH_NCCL_DEFAULTS": "0"}, {}, set(SIX)),
    "10: on, in so many words": ({"SGLANG_PATCH_NCCL_DEFAULTS": "1"}, {}, set()),
    "10: all six exported": (dict.fromkeys(SIX, "user's"), {}, set()),
    **{
        f"10: {name} exported": (
            {name: "user's"},
            {},
            {"NCCL_PROTO": {"NCCL_ALGO"}, "NCCL_ALGO": {"NCCL_PROTO"}}.get(name, set()),
        )
        for name in SIX
    },
}
CASES = [Case(name, {"PATH": "/bin", **env}, flags) for name, (env, flags, _) in NOT_ADDED.items()]
# Spawning takes most of the time, so that some releases do it for these only.
ALWAYS_SPAWNED = {"11: nothing set", "10: all six exported", "10: NCCL_PROTO exported"}
Effects = Callable[[str], Mapping[str, tuple[FunctionEffect, FunctionEffect]]]


@pytest.fixture(scope="module")
def effects(trees: Trees) -> Effects:
    """What the function of a release does in every case, as shipped and patched."""
    made: dict[str, dict[str, tuple[FunctionEffect, FunctionEffect]]] = {}

    def effects_of(version: str) -> Mapping[str, tuple[FunctionEffect, FunctionEffect]]:
        if version not in made:
            shipped, patched = (tree / ENGINE for tree in trees(version))
            cases = CASES if version in OLD_AND_NEW else [case for case in CASES if case.name in ALWAYS_SPAWNED]
            before = run_function_cases(shipped, FUNCTION, cases, spawn="none")
            after = run_function_cases(patched, FUNCTION, cases, spawn="all")
            made[version] = {case.name: (b, a) for case, b, a in zip(cases, before, after, strict=True)}
        return made[version]

    return effects_of


def without_run_id(environment: Mapping[str, str] | None) -> dict[str, str]:
    """An environment without the one variable that SGLang sets to another value at every start."""
    assert environment is not None
    return {name: value for name, value in environment.items() if name != "SGLANG_RUN_ID"}


@pytest.mark.parametrize(
    ("version", "case"),
    [(version, case) for version in RELEASES for case in NOT_ADDED if version in OLD_AND_NEW or case in ALWAYS_SPAWNED],
)
def test_what_a_spawned_child_inherits(version: str, case: str, effects: Effects) -> None:
    """All six, but what somebody set stays, and what must not be added is not; everything else is SGLang's own."""
    shipped, patched = effects(version)[case]
    assert (shipped.error, patched.error) == (None, None)
    env, _, not_added = NOT_ADDED[case]
    added = {name: value for name, value in SIX.items() if name not in {*env, *not_added}}
    expected = without_run_id(shipped.environment) | added
    assert without_run_id(patched.child_environment) == expected
    assert without_run_id(patched.environment) == expected


@every_release
def test_all_six_arrive(version: str, effects: Effects) -> None:
    child = effects(version)["11: nothing set"][1].child_environment
    assert child is not None
    assert SIX.items() <= child.items()


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (Call("set_eagle3_layers_to_capture", [[2, 30, 58]]), [[2, 30, 58]]),
        (Call("set_eagle3_layers_to_capture"), [None]),
        (Call("get_embed_and_head"), []),
        (Call("set_embed_and_head", ["embed", "head"]), ["embed", "head"]),
    ],
)
def test_kimi_hands_the_calls_of_eagle3_to_its_language_model(
    call: Call, arguments: list[object], trees: Trees
) -> None:
    source = trees("0.5.9")[1] / KIMI
    effect = run_delegation(source, WRAPPER, inner_attribute="language_model", calls=[call])
    assert effect.error is None
    (done,) = effect.calls
    assert [(got.method, got.args, got.kwargs) for got in done.received] == [(call.method, arguments, {})]
    assert done.returned == ("same" if call.method == "get_embed_and_head" else "none")


@pytest.mark.parametrize(
    ("inner", "says"),
    [
        ("none", f"{WRAPPER} has no language_model"),
        ("missing", f"{WRAPPER} has no language_model"),
        ("without-methods", "the language_model, has no "),
    ],
)
def test_kimi_without_a_language_model_that_can_says_so(inner: Any, says: str, trees: Trees) -> None:
    calls = [Call(METHODS[0]), Call(METHODS[1]), Call(METHODS[2], ["embed", "head"])]
    source = trees("0.5.9")[1] / KIMI
    effect = run_delegation(source, WRAPPER, inner_attribute="language_model", calls=calls, inner=inner)
    assert [call.error_type for call in effect.calls] == ["AttributeError"] * 3
    for call in effect.calls:
        assert says in (call.error or "")


# Case 8: values that NCCL would ignore or misread are refused; one that it takes as text stays text.


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("NCCL_P2P_LEVEL=sys", "write SYS"),
        ("NCCL_BUFFSIZE=16M", "write 16777216"),
        ('NCCL_ALGO=";import os#', "NCCL_ALGO"),
        ("LD_PRELOAD=x", "is not an NCCL variable"),
        ("nccl_proto=LL", "write NCCL_PROTO"),
        ("NCCL_SOCKET_IFNAME=eth0\nimport os", "control"),
        ("NCCL_NTHREADS", "KEY=VALUE"),
    ],
)
@old_and_new
def test_a_bad_value_is_refused_with_the_reason(
    version: str, setting: str, says: str, wheel_tree: Callable[..., Path], command: Command
) -> None:
    package = wheel_tree(version)
    untouched = snapshot(package)
    done = command(package, "apply", "nccl-defaults", "--set", setting, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (2, 2)
    assert says in error["message"]
    assert error["message"] in done.stderr
    assert snapshot(package) == untouched


FREE_TEXT = {
    "NCCL_SOCKET_IFNAME": '";import os#',
    "NCCL_IB_HCA": "'''\\",
    "NCCL_DEBUG_FILE": '"""',
    "NCCL_TOPO_FILE": '\\"',
    "NCCL_DEBUG_SUBSYS": "{x!r} %s",
    "NCCL_NET": "ü€\N{PILE OF POO}",
    "NCCL_COMM_ID": "# no comment",
}


@old_and_new
def test_no_value_becomes_code(version: str, wheel_tree: Callable[..., Path], command: Command) -> None:
    package = wheel_tree(version)
    settings = [word for name, value in FREE_TEXT.items() for word in ("--set", f"{name}={value}")]
    done = command(package, "apply", "nccl-defaults", *settings)
    assert done.returncode == 0, done.stderr
    (block,) = filter(is_inserted, definition(ast.parse((package / ENGINE).read_bytes()), FUNCTION).body)
    calls = [node for node in ast.walk(block) if isinstance(node, ast.Call)]
    assert {ast.unparse(call.func) for call in calls} == {"os.environ.get", "os.environ.setdefault", "getattr"}
    (effect,) = run_function_cases(package / ENGINE, FUNCTION, [Case("", {})])
    assert effect.child_environment is not None
    assert {name: effect.child_environment[name] for name in FREE_TEXT} == FREE_TEXT
    assert command(package, "check").returncode == 0


def test_a_value_can_be_changed_and_left_out(wheel_tree: Callable[..., Path], command: Command) -> None:
    package = wheel_tree("0.5.9")
    changes = ["--profile", "pcie-throughput", "--set", "NCCL_NTHREADS=256", "--set", "NCCL_P2P_LEVEL="]
    assert command(package, "apply", "nccl-defaults", *changes).returncode == 0
    (effect,) = run_function_cases(package / ENGINE, FUNCTION, [Case("", {})])
    six = {**SIX, "NCCL_PROTO": "LL,LL128,Simple", "NCCL_NTHREADS": "256", "NCCL_P2P_LEVEL": None}
    assert effect.child_environment is not None
    assert {name: effect.child_environment.get(name) for name in six} == six
    assert command(package, "revert", "nccl-defaults").returncode == 0
    assert rows_that_disagree(package) == []
