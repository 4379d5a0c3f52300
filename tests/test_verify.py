"""`verify` believes the effect: text that is there and does nothing, or something else, is found out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from patcher import Target, apply, check, verify
from patcher.cli import main
from tests.releases import unpacked

ENGINE = "srt/entrypoints/engine.py"
KIMI = "srt/models/kimi_k25.py"


@pytest.fixture
def patched(fixture_tree: Callable[[str], Path]) -> Target:
    """A small tree in 0.5.9's shape with both patches in place."""
    target = Target.find(fixture_tree("classic"))
    assert apply(target).done
    return target


def edit(target: Target, path: str, old: str, new: str) -> None:
    file = target.path / path
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def failed(target: Target, patch_id: str) -> dict[str, str | None]:
    """The probes of a patch that saw something else, each with what it found."""
    seen = next(one for one in verify(target).patches if one.status.id == patch_id)
    return {probe.name: probe.found for probe in seen.probes if not probe.passed}


def test_what_is_in_place_is_shown_by_running_it(patched: Target) -> None:
    seen = verify(patched)

    assert seen.passed
    assert {one.status.id: len(one.probes) for one in seen.patches} == {"nccl-defaults": 25, "kimi-k25-eagle3": 4}


def test_an_assignment_further_down_is_found_out(patched: Target) -> None:
    edit(patched, ENGINE, "    mp.set_start", '    os.environ["NCCL_PROTO"] = "Simple"\n    mp.set_start')

    assert check(patched).in_place
    assert "NCCL_PROTO=Simple" in str(failed(patched, "nccl-defaults")["clean"])


def test_a_variable_taken_away_further_down_is_found_out(patched: Target) -> None:
    edit(patched, ENGINE, "    mp.set_start", '    os.environ.pop("NCCL_ALGO", None)\n    mp.set_start')

    assert check(patched).in_place
    assert "NCCL_ALGO unset" in str(failed(patched, "nccl-defaults")["clean"])


def test_a_function_bound_anew_at_the_end_of_the_module_is_found_out(patched: Target) -> None:
    engine = patched.path / ENGINE
    engine.write_text(engine.read_text() + "\n\n_set_envs_and_config = lambda server_args: None\n")

    assert check(patched).in_place
    assert "clean" in failed(patched, "nccl-defaults")


def test_a_decorator_that_replaces_the_function_is_found_out(patched: Target) -> None:
    edit(
        patched,
        ENGINE,
        "def _set_envs_and_config(",
        "def nothing(function):\n    return lambda server_args: None\n\n\n@nothing\ndef _set_envs_and_config(",
    )

    assert check(patched).in_place
    assert "clean" in failed(patched, "nccl-defaults")


def test_a_return_above_the_block_is_found_out(patched: Target) -> None:
    edit(
        patched,
        ENGINE,
        "    # sglang-patch: nccl-defaults\n",
        "    if True:\n        return\n    # sglang-patch: nccl-defaults\n",
    )

    assert check(patched).in_place
    assert "clean" in failed(patched, "nccl-defaults")


def test_a_method_that_shadows_the_patched_one_is_found_out(patched: Target) -> None:
    kimi = patched.path / KIMI
    kimi.write_text(kimi.read_text() + "\n\nKimiK25ForConditionalGeneration.get_embed_and_head = lambda self: None\n")

    assert check(patched).in_place
    assert "get_embed_and_head" in str(
        next(one for one in verify(patched).patches[1].probes if not one.passed).expected
    )


def test_a_module_that_fails_when_it_runs_is_said(patched: Target) -> None:
    kimi = patched.path / KIMI
    kimi.write_text(kimi.read_text() + "\n\nraise RuntimeError('broken by hand')\n")

    assert "broken by hand" in str(failed(patched, "kimi-k25-eagle3"))


def test_the_command_exits_1_and_names_the_probe(patched: Target, capsys: pytest.CaptureFixture[str]) -> None:
    edit(patched, ENGINE, "    mp.set_start", '    os.environ["NCCL_PROTO"] = "Simple"\n    mp.set_start')

    assert main(["--target", str(patched.path), "verify"]) == 1
    assert "nccl-defaults: clean: expected NCCL_PROTO=LL; found NCCL_PROTO=Simple" in capsys.readouterr().out

    assert main(["--target", str(patched.path), "verify", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["in_place"] is True
    assert document["verified"] is False
    assert {one["id"]: one["verified"] for one in document["patches"]} == {
        "nccl-defaults": False,
        "kimi-k25-eagle3": True,
    }


def test_what_is_not_in_place_is_not_run(fixture_tree: Callable[[str], Path]) -> None:
    seen = verify(Target.find(fixture_tree("classic")))

    assert not seen.passed
    assert all(one.probes == () for one in seen.patches)


def test_the_behaviour_of_a_release_that_has_it_is_run_too(fixture_tree: Callable[[str], Path]) -> None:
    target = Target.find(fixture_tree("modern"))
    kimi = target.path / KIMI

    assert verify(target, ["kimi-k25-eagle3"]).passed
    kimi.write_text(kimi.read_text().replace("return self.language_model.get_embed_and_head()", "return None"))
    assert not verify(target, ["kimi-k25-eagle3"]).passed


def test_another_module_of_the_tree_that_replaces_the_function_is_found_out(patched: Target) -> None:
    plugin = patched.path / "srt" / "plugin.py"
    plugin.write_text(
        "import sglang.srt.entrypoints.engine as engine\n\nengine._set_envs_and_config = lambda server_args: None\n"
    )

    seen = verify(patched)

    assert not seen.passed
    (found,) = seen.patches[0].rebound
    assert (found.path, found.line) == (plugin, 3)


def test_installed_packages_that_replace_the_function_are_named_when_asked_for(wheel_tree: Callable[..., Path]) -> None:
    target = Target.find(wheel_tree("0.5.9"))
    apply(target, ["nccl-defaults"])
    other = target.path.parent / "trainer" / "rollout.py"
    other.parent.mkdir()
    other.write_text(
        "def start(f):\n    from sglang.srt.entrypoints import engine\n\n    engine._set_envs_and_config = f\n"
    )

    assert verify(target).rebinders == ()
    seen = verify(target, scan=True)

    assert seen.passed  # it may never be imported
    (found,) = seen.rebinders
    assert (found.package, found.path, found.line) == ("trainer", other, 4)


@pytest.mark.parametrize(
    ("version", "reached", "not_reached"),
    [
        ("0.4.4", {"Engine", "HTTP server", "bench_one_batch"}, set()),
        ("0.5.9", {"Engine", "HTTP server", "bench_one_batch"}, {"gRPC server", "encoder-only server"}),
        ("0.5.23", {"Engine", "HTTP server", "bench_one_batch"}, {"Ray actors", "encoder-only server"}),
    ],
)
def test_the_ways_of_starting_workers_are_named_never_all_workers(
    version: str, reached: set[str], not_reached: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = unpacked(version, tmp_path, only=lambda name: name.endswith(".py"))

    assert main(["--target", str(package), "status", "-v", "--json"]) == 0
    paths = json.loads(capsys.readouterr().out)["launch_paths"]

    assert reached <= {path["name"] for path in paths if path["covered"]}
    assert not_reached <= {path["name"] for path in paths if path["covered"] is False}
    assert all(path["reason"] and path["file"] and path["line"] for path in paths)
