"""`try`: the same steps on a copy, before an upgrade; the copy is all that changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from patcher import Target, apply
from patcher.cli import main
from tests.releases import known_releases, wheel

# Where something changed: the function's file, its neighbours, the Kimi class. docs/compatibility.md has all releases.
TURNING_POINTS = {
    "0.3.0": ("not-applied", "absent"),
    "0.4.1": ("not-applied", "absent"),
    "0.4.1.post7": ("not-applied", "absent"),
    "0.4.4": ("not-applied", "absent"),
    "0.5.8.post1": ("not-applied", "absent"),
    "0.5.9": ("not-applied", "not-applied"),
    "0.5.10": ("not-applied", "upstream"),
    "0.5.19": ("not-applied", "upstream"),
    "0.5.23": ("not-applied", "upstream"),
}


def tried(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, object]:
    assert main([*arguments, "--json"]) == code
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize("version", TURNING_POINTS)
def test_each_turning_point_keeps_every_promise(capsys: pytest.CaptureFixture[str], version: str) -> None:
    document = tried(capsys, "try", str(wheel(version)))

    assert document["version"] == version
    assert document["passed"] is True
    assert document["problems"] == []
    assert tuple(one["state"] for one in document["patches"]) == TURNING_POINTS[version]  # type: ignore[attr-defined]


def test_the_turning_points_include_the_newest_release() -> None:
    assert known_releases()[-1].version in TURNING_POINTS


def test_the_recorded_patches_are_tried_with_their_parameters(
    wheel_tree: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    package = wheel_tree("0.5.9")
    apply(Target.find(package), ["nccl-defaults"], profile="pcie-throughput", overrides={"NCCL_NTHREADS": "256"})
    before = (package / "srt/entrypoints/engine.py").read_bytes()

    document = tried(capsys, "--target", str(package), "try", str(wheel("0.5.10")))

    (patch,) = document["patches"]  # type: ignore[misc]
    assert patch["params"]["NCCL_PROTO"] == "LL,LL128,Simple"
    assert patch["params"]["NCCL_NTHREADS"] == "256"
    assert (package / "srt/entrypoints/engine.py").read_bytes() == before


def test_a_conflict_shows_what_moved_since_the_release_it_was_applied_to(
    fixture_tree: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    package, upgraded = fixture_tree("classic"), fixture_tree("modern")
    apply(Target.find(package), ["nccl-defaults"])
    engine = upgraded / "srt/entrypoints/engine.py"
    lines = engine.read_text().splitlines(keepends=True)
    start = next(n for n, line in enumerate(lines) if line.startswith("def _set_envs_and_config"))
    engine.write_text("".join([*lines[: start + 1], "    if not server_args:\n        return\n", *lines[start + 1 :]]))

    document = tried(capsys, "--target", str(package), "try", str(upgraded), code=3)

    (patch,) = document["patches"]  # type: ignore[misc]
    assert patch["state"] == "conflict"
    assert patch["fits"] is False
    assert "+        return" in patch["moved"]


def test_a_tree_is_copied_with_its_edits_and_stays_as_it_is(
    fixture_tree: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    package = fixture_tree("classic")
    names = sorted(str(path) for path in package.rglob("*"))

    assert tried(capsys, "try", str(package))["passed"] is True
    assert sorted(str(path) for path in package.rglob("*")) == names


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("no/such/place", "neither a version, nor a wheel, nor a tree"),
        ("0.0.0.1", "pip could not fetch sglang 0.0.0.1"),
    ],
)
def test_a_subject_that_is_nothing_exits_4(capsys: pytest.CaptureFixture[str], subject: str, message: str) -> None:
    assert main(["try", subject]) == 4
    assert message in capsys.readouterr().err


def test_a_broken_wheel_exits_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "sglang-9.9.9-py3-none-any.whl"
    broken.write_bytes(b"no zip")

    assert main(["try", str(broken)]) == 4
    assert "cannot be unpacked" in capsys.readouterr().err


def test_a_patch_asked_for_by_name_that_has_no_place_there_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    document = tried(capsys, "try", str(wheel("0.4.4")), "kimi-k25-eagle3", code=3)

    assert [one["fits"] for one in document["patches"]] == [False]  # type: ignore[attr-defined]
