"""`eagle3-delegation`: one patch, an instance for each wrapper class, proved before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patcher import State, Target, apply, check, revert, status, verify
from patcher.cli import main

KIMI_VL = "eagle3-delegation:kimi_vl"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real 0.5.9 with all its models."""
    from tests.releases import unpacked

    return unpacked("0.5.9", tmp_path_factory.mktemp("models"), only=lambda name: name.endswith(".py"))


@pytest.fixture
def target(release: Path) -> Target:
    found = Target.find(release)
    revert(found)
    return found


def test_an_instance_is_applied_run_and_taken_out(target: Target) -> None:
    before = (target.path / "srt/models/kimi_vl.py").read_bytes()

    assert main(["--target", str(target.path), "apply", "eagle3-delegation", "--set", "model=kimi_vl"]) == 0
    seen = status(target)[KIMI_VL]
    assert seen.state is State.APPLIED
    assert seen.params == {"model": "kimi_vl"}
    assert check(target, ["eagle3-delegation"]).in_place
    (verified,) = verify(target, [KIMI_VL]).patches
    assert verified.passed
    assert len(verified.probes) == 4
    assert revert(target, ["eagle3-delegation"]).done
    assert (target.path / "srt/models/kimi_vl.py").read_bytes() == before


def test_several_instances_each_have_a_state_of_their_own(target: Target) -> None:
    arguments = [
        "apply",
        "eagle3-delegation",
        "--set",
        "model=kimi_vl",
        "--set",
        "model=GlmAsrForConditionalGeneration",
    ]

    assert main(["--target", str(target.path), *arguments]) == 0
    assert revert(target, [KIMI_VL]).done
    states = {one.id: one.state for one in status(target).patches if one.id.startswith("eagle3-delegation")}
    assert states == {"eagle3-delegation:GlmAsrForConditionalGeneration": State.APPLIED}


def test_a_wrapper_that_does_not_fit_is_refused_with_the_reason(target: Target) -> None:
    done = apply(target, ["eagle3-delegation:gemma3_mm"])

    assert not done.done
    (step,) = done.plan.refused
    assert step.status.state is State.CONFLICT
    assert "has none of the three methods" in str(step.reason)
    assert str(step.status.where).startswith("srt/models/gemma3_mm.py:")


def test_a_wrapper_that_has_some_of_the_methods_is_partial(target: Target) -> None:
    (step,) = apply(target, ["eagle3-delegation:dots_ocr"]).plan.refused

    assert step.status.state is State.PARTIAL


def test_an_unknown_name_is_absent_and_names_the_near_misses(target: Target) -> None:
    (step,) = apply(target, ["eagle3-delegation:kimi_vll"]).plan.refused

    assert step.status.state is State.ABSENT
    assert "did you mean kimi_vl" in str(step.reason)


def test_without_a_name_it_says_how_to_give_one(target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", str(target.path), "apply", "eagle3-delegation"]) == 2
    assert "--set model=NAME" in capsys.readouterr().err


def test_the_fixed_patch_and_the_instance_for_the_same_class_do_not_both_define_it(target: Target) -> None:
    done = apply(target, ["kimi-k25-eagle3", "eagle3-delegation:kimi_k25"])

    assert done.done
    text = (target.path / "srt/models/kimi_k25.py").read_text()
    assert text.count("def get_embed_and_head") == 1
    assert "put there by kimi-k25-eagle3" in str(status(target)["kimi-k25-eagle3"].reason) or (
        status(target)["kimi-k25-eagle3"].state is State.APPLIED
    )


def test_show_lists_what_fits_and_why_the_others_do_not(target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", str(target.path), "show", "eagle3-delegation", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["patch"]["candidates"]}

    assert found["kimi_vl"]["verdict"] == "fits"
    assert found["kimi_k25"]["verdict"] == "fits"
    assert found["mllama4"]["verdict"] == "upstream"
    assert found["dots_ocr"]["verdict"] == "partial"
    assert "kimi_vl.py:" in found["kimi_vl"]["reason"]
    assert "none of the three methods" in found["gemma3_mm"]["reason"]


def test_every_wrapper_that_fits_really_takes_the_calls(target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", str(target.path), "show", "eagle3-delegation", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["patch"]["candidates"]
    ids = [f"eagle3-delegation:{one['name']}" for one in found if one["verdict"] == "fits"]

    assert len(ids) > 10
    assert apply(target, ids).done
    seen = verify(target, ids)
    assert {one.status.id: one.passed for one in seen.patches} == dict.fromkeys(ids, True)


def test_a_bare_apply_leaves_the_family_alone(target: Target) -> None:
    apply(target)

    assert not [one.id for one in status(target).patches if one.id.startswith("eagle3-delegation")]


def test_a_bare_apply_puts_a_lost_instance_back(target: Target) -> None:
    apply(target, [KIMI_VL])
    path = target.path / "srt/models/kimi_vl.py"
    patched = path.read_bytes()
    revert(target)
    base = path.read_bytes()
    apply(target, [KIMI_VL])
    path.write_bytes(base)

    assert status(target)[KIMI_VL].state is State.LOST
    assert apply(target).done
    assert path.read_bytes() == patched


def test_an_empty_name_is_a_wrong_command_line(target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", str(target.path), "apply", "eagle3-delegation", "--set", "model="]) == 2
    assert "an empty name" in capsys.readouterr().err
