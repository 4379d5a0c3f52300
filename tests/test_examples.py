"""Every patch of the catalog does what its own examples say, on a tree, and a second time nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from patcher import Example, Patch, Result, State, Target, apply, check, revert, status
from patcher.catalog import collect

CATALOG = collect()


every_example = pytest.mark.parametrize(
    ("patch", "example"),
    [
        pytest.param(patch, example, id=f"{patch.id}: {example.name}")
        for patch in CATALOG.everything()
        for example in patch.examples
    ],
)


@pytest.fixture
def module(patch: Patch, example: Example, tmp_path: Path) -> Path:
    """The example's module in a tree that has nothing else."""
    path = tmp_path / "sglang" / (example.path or patch.edits[0].paths[0])
    path.parent.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").touch()
    (tmp_path / "sglang" / "version.py").write_text('__version__ = "0.0.0"\n')
    path.write_text(example.before)
    return path


def state(tree: Path, patch: Patch) -> State:
    return status(Target.find(tree))[patch.id].state


def put(tree: Path, patch: Patch, example: Example) -> Result:
    return apply(Target.find(tree), [patch.id], overrides=example.params)


@every_example
def test_an_example_once_twice_and_back(patch: Patch, example: Example, module: Path, tmp_path: Path) -> None:
    fits = not isinstance(example.after, State)
    after = example.after if fits else example.before

    first = put(tmp_path, patch, example)
    assert module.read_text() == after
    assert first.done is fits
    assert state(tmp_path, patch) == (State.APPLIED if fits else example.after)
    assert bool(first.plan.refused) is (example.after in (State.ABSENT, State.PARTIAL, State.CONFLICT))

    written = module.stat()
    second = put(tmp_path, patch, example)
    assert not second.done
    assert module.read_text() == after
    assert (module.stat().st_ino, module.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert check(Target.find(tmp_path), [patch.id]).in_place is (fits or example.after is State.UPSTREAM)

    revert(Target.find(tmp_path), [patch.id])
    assert module.read_text() == example.before
    assert sorted(path.name for path in module.parent.iterdir()) == [module.name]


@pytest.mark.parametrize("patch", [one for one in CATALOG.everything() if one.edits], ids=lambda patch: patch.id)
def test_a_patch_shows_what_it_does_and_each_way_in_which_it_does_not_fit(patch: Patch) -> None:
    outcomes = {example.after if isinstance(example.after, State) else State.APPLIED for example in patch.examples}
    assert outcomes == {State.APPLIED, State.UPSTREAM, State.ABSENT, State.PARTIAL, State.CONFLICT}
    names = [example.name for example in patch.examples]
    assert len(set(names)) == len(names)
