"""The pinned releases, and the helper that fetches them."""

from __future__ import annotations

import csv
import hashlib
import io
import shutil
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from tests import releases

# One of each shape that DESIGN.md and FACTS.md tell apart.
SHAPES = ["0.4.4", "0.5.9", "0.5.10", "0.5.19", "0.5.23"]
SMALL = "0.4.4"


def pinned(version: str) -> releases.Release:
    return next(known for known in releases.known_releases() if known.version == version)


def corrupt(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize("version", SHAPES)
def test_a_release_arrives_as_pinned(version: str) -> None:
    path = releases.wheel(version)
    release = pinned(version)
    assert path.name == release.file
    assert path.stat().st_size == release.size
    assert hashlib.sha256(path.read_bytes()).hexdigest() == release.sha256


class TestCache:
    @pytest.fixture
    def good(self) -> Path:
        """The wheel in the usual cache, asked for before a test looks elsewhere."""
        return releases.wheel(SMALL)

    @pytest.fixture
    def cache(self, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A cache of its own that is filled from the usual one, so that this needs no network of its own."""

        def fetch(release: releases.Release, folder: Path) -> Path:
            return Path(shutil.copy(good, folder / release.file))

        monkeypatch.setattr(releases, "_fetch", fetch)
        monkeypatch.setenv("SGLANG_PATCH_CACHE", str(tmp_path / "cache"))
        return tmp_path / "cache"

    def test_a_corrupted_wheel_is_fetched_again(self, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
        corrupt(releases.wheel(SMALL))
        again = releases.wheel(SMALL)
        assert again.parent == cache
        assert hashlib.sha256(again.read_bytes()).hexdigest() == pinned(SMALL).sha256
        assert "fetching it again" in capsys.readouterr().err

    def test_a_good_wheel_is_not_fetched_again(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = releases.wheel(SMALL)
        monkeypatch.setattr(releases, "_fetch", lambda *_: pytest.fail("fetched although it is there"))
        assert releases.wheel(SMALL) == first

    def test_other_bytes_than_pinned_never_enter_the_cache(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fetch(release: releases.Release, folder: Path) -> Path:
            (folder / release.file).write_bytes(b"not a wheel")
            return folder / release.file

        monkeypatch.setattr(releases, "_fetch", fetch)
        found = hashlib.sha256(b"not a wheel").hexdigest()
        with pytest.raises(releases.ReleaseError, match=f"expected sha256 {pinned(SMALL).sha256}, found {found}"):
            releases.wheel(SMALL)
        assert list(cache.glob("*.whl")) == []
        assert list(cache.glob(".fetch-*")) == []

    def test_several_processes_fetch_once(self, cache: Path, good: Path) -> None:
        script = f"""
import shutil, time
from pathlib import Path
from tests import releases

def fetch(release, folder):
    print("fetched")
    time.sleep(0.3)
    return Path(shutil.copy({str(good)!r}, folder / release.file))

releases._fetch = fetch
releases.wheel({SMALL!r})
"""
        command = [sys.executable, "-c", script]
        workers = [subprocess.Popen(command, cwd=releases.REPO, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        said = [worker.communicate()[0] for worker in workers]
        assert [worker.returncode for worker in workers] == [0] * 4
        assert sorted(said) == ["", "", "", "fetched\n"]


def test_a_release_that_is_not_pinned_is_refused() -> None:
    with pytest.raises(releases.ReleaseError, match=r"0\.5\.0 is not pinned"):
        releases.wheel("0.5.0")


class TestPins:
    def test_are_sorted_final_and_post_releases(self) -> None:
        versions = [Version(known.version) for known in releases.known_releases()]
        assert versions == sorted(set(versions))
        assert (str(versions[0]), str(versions[-1])) == ("0.3.0", "0.5.23")
        assert not [version for version in versions if version.is_prerelease]

    def test_leave_no_gap(self) -> None:
        versions = [Version(known.version) for known in releases.known_releases()]
        for minor, group in groupby(versions, key=lambda version: version.minor):
            micros = sorted({version.micro for version in group})
            # 0.5.0 had release candidates only.
            assert micros == list(range(1 if minor == 5 else 0, micros[-1] + 1))
        for final, group in groupby(versions, key=lambda version: version.release):
            posts = [version.post or 0 for version in group]
            assert posts == list(range(len(posts))), f"{final}: {posts}"

    def test_name_one_wheel_each(self) -> None:
        for known in releases.known_releases():
            if known.reason:
                continue
            name, version, _, tags = parse_wheel_filename(known.file)
            assert (name, str(version)) == ("sglang", known.version)
            shape = "cp311-cp311-manylinux_2_34_x86_64" if version >= Version("0.5.11") else "py3-none-any"
            assert {str(tag) for tag in tags} == {shape}
            assert len(known.sha256) == 64
            assert known.size > 100_000


class TestUnpacked:
    @pytest.mark.parametrize("version", SHAPES)
    def test_a_slim_tree_agrees_with_its_record(self, version: str, wheel_tree: Callable[..., Path]) -> None:
        package = wheel_tree(version)
        files = [path for path in package.rglob("*") if path.is_file()]
        assert (package / "srt" / "entrypoints" / "engine.py") in files
        assert len(files) < 200
        assert rows_that_disagree(package) == []

    def test_a_whole_tree_is_what_record_lists(self, wheel_tree: Callable[..., Path]) -> None:
        package = wheel_tree(SMALL, whole=True)
        site = package.parent
        there = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
        assert there == {name for name, _, _ in record(package)}
        assert rows_that_disagree(package) == []

    def test_two_trees_share_nothing(self, wheel_tree: Callable[..., Path]) -> None:
        one, other = (wheel_tree(SMALL) / "srt" / "entrypoints" / "engine.py" for _ in range(2))
        before = other.read_bytes()
        one.write_text("changed")
        assert other.read_bytes() == before
        assert other.stat().st_nlink == 1


def record(package: Path) -> list[list[str]]:
    (path,) = package.parent.glob("sglang-*.dist-info/RECORD")
    return list(csv.reader(io.StringIO(path.read_text(), newline="")))


def rows_that_disagree(package: Path) -> list[str]:
    """Files that are there, with other bytes than RECORD says."""
    wrong = []
    for name, expected, _ in record(package):
        path = package.parent / name
        if expected and path.is_file():
            digest = urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
            if expected != f"sha256={digest}":
                wrong.append(name)
    return wrong
