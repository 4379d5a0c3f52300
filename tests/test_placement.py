"""The NCCL block is placed by structure: shapes of `_set_envs_and_config` that releases and forks have, or could have.

The shapes are the files of fixtures/shapes. In `fits` the comment `# above` marks the line under which the block must
come; in `no_place` the comment `# here` marks the line that the refusal names, and the last line quotes its reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from patcher import State, Target, apply, revert, status
from patcher.cli import main
from patcher.sandbox import run_function
from tests.releases import REPO

SHAPES = REPO / "fixtures" / "shapes"
SIX = {
    "NCCL_ALGO": "Ring",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_NTHREADS": "512",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_PROTO": "LL",
}


def shapes(folder: str) -> list[object]:
    return [pytest.param(path, id=path.stem) for path in sorted((SHAPES / folder).glob("*.py"))]


@pytest.fixture
def engine(fixture_tree: Callable[[str], Path]) -> Path:
    """The engine.py of a small tree, to be written anew."""
    return fixture_tree("classic") / "srt" / "entrypoints" / "engine.py"


@pytest.mark.parametrize("shape", shapes("fits"))
def test_the_block_stands_behind_the_last_setting_and_works(engine: Path, shape: Path) -> None:
    source = shape.read_text()
    engine.write_text(source)
    target = Target.find(engine.parents[2])

    assert apply(target, ["nccl-defaults"]).done
    lines = engine.read_text().splitlines()
    block = next(n for n, line in enumerate(lines) if "sglang-patch: nccl-defaults" in line)
    assert lines[block - 1] == ""
    assert lines[block - 2].endswith("# above")
    starts = [n for n, line in enumerate(lines) if "set_start_method" in line]
    assert all(n > block for n in starts)

    function = "Engine._set_envs_and_config" if "class Engine" in source else "_set_envs_and_config"
    effect = run_function(engine, function, env={})
    assert effect.error is None
    assert effect.child_environment is not None
    assert {name: effect.child_environment.get(name) for name in SIX} == SIX
    with_nvls = run_function(engine, function, env={}, attributes={"enable_nccl_nvls": True}, spawn=False)
    assert "NCCL_ALGO" not in with_nvls.environment
    assert with_nvls.environment["NCCL_NTHREADS"] == "512"

    patched = engine.read_bytes()
    assert not apply(target, ["nccl-defaults"]).done
    assert engine.read_bytes() == patched
    assert revert(target).done
    assert engine.read_text() == source


@pytest.mark.parametrize("shape", shapes("no_place"))
def test_without_a_certain_place_it_says_so_and_changes_nothing(engine: Path, shape: Path) -> None:
    source = shape.read_text()
    lines = source.splitlines()
    engine.write_text(source)
    target = Target.find(engine.parents[2])

    result = apply(target, ["nccl-defaults"])

    assert not result.done
    (refused,) = result.plan.refused
    assert lines[-1].removeprefix("# says: ") in str(refused.reason)
    line = next(n for n, text in enumerate(lines, 1) if text.endswith("# here"))
    assert refused.status.where == f"srt/entrypoints/engine.py:{line}"
    assert engine.read_text() == source
    assert not (target.path / ".sglang-patch").exists()


def test_the_function_is_found_in_another_module(fixture_tree: Callable[[str], Path]) -> None:
    package = fixture_tree("classic")
    moved = package / "srt" / "launch" / "environment.py"
    moved.parent.mkdir()
    (package / "srt" / "entrypoints" / "engine.py").rename(moved)

    assert apply(Target.find(package), ["nccl-defaults"]).done
    assert "sglang-patch: nccl-defaults" in moved.read_text()


def test_the_function_in_two_modules_is_a_conflict_that_names_both(fixture_tree: Callable[[str], Path]) -> None:
    package = fixture_tree("classic")
    engine = package / "srt" / "entrypoints" / "engine.py"
    for name in ("one.py", "two.py"):
        (package / "srt" / name).write_bytes(engine.read_bytes())
    engine.unlink()

    seen = status(Target.find(package))["nccl-defaults"]

    assert seen.state is State.CONFLICT
    assert seen.found == "srt/one.py, srt/two.py"


def test_a_configuration_file_that_the_defaults_would_override_is_named(
    fixture_tree: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """CASES 9: NCCL's own files lose to the environment, so an administrator's choice would be overridden."""
    package, conf = fixture_tree("classic"), tmp_path / "nccl.conf"
    conf.write_text("# ours\nNCCL_PROTO=Simple\nNCCL_MIN_NCHANNELS=32\nNCCL_DEBUG=WARN\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(conf))

    assert main(["--target", str(package), "apply", "nccl-defaults", "--json"]) == 0

    captured = capsys.readouterr()
    overridden, unseen = json.loads(captured.out)["notices"]
    assert f"{conf}:2 sets NCCL_PROTO=Simple, which the default LL would override" in overridden
    assert "--set NCCL_PROTO=" in overridden
    assert f"{conf}:3 sets NCCL_MIN_NCHANNELS" in unseen
    assert overridden in captured.err
