"""Real SGLang releases for tests, the demo and the matrix: pinned, cached, unpacked as pip would lay them out.

What is pinned stands in fixtures/releases.toml. Wheels are kept in `SGLANG_PATCH_CACHE`, or in .cache/wheels.
"""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPO = Path(__file__).resolve().parent.parent
RELEASES = REPO / "fixtures" / "releases.toml"

PLATFORMS = ("manylinux_2_34_x86_64", "manylinux2014_x86_64", "any")
# From 0.5.11 a release has one wheel per CPython; these choose the same one on every machine.
PIN = [
    *("--no-deps", "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp"),
    *("--abi", "cp311", "--abi", "none", "--abi", "abi3"),
    *(word for platform in PLATFORMS for word in ("--platform", platform)),
]


class ReleaseError(RuntimeError):
    """A release that is not pinned, has no wheel, or did not arrive as pinned."""


@dataclass(frozen=True)
class Release:
    """One release: `file` is its wheel's name, `size` in bytes; `reason` says why there is no wheel to use."""

    version: str
    file: str = ""
    sha256: str = ""
    size: int = 0
    reason: str | None = None


@functools.cache
def _pinned() -> tuple[Release, ...]:
    with RELEASES.open("rb") as stream:
        return tuple(Release(**table) for table in tomllib.load(stream)["release"])


def known_releases() -> list[Release]:
    """Every final and post release that is pinned, oldest first."""
    return list(_pinned())


def cache_dir() -> Path:
    """Where wheels are kept."""
    return Path(os.environ.get("SGLANG_PATCH_CACHE") or REPO / ".cache" / "wheels").absolute()


def wheel(version: str) -> Path:
    """The wheel of `version`, from the cache or else from the package index; its hash is checked either way.

    Several processes may ask at once: one downloads, the others wait. Raises ReleaseError.
    """
    release = next((known for known in _pinned() if known.version == version), None)
    if release is None:
        raise ReleaseError(f"sglang {version} is not pinned in {RELEASES}")
    if release.reason:
        raise ReleaseError(f"sglang {version} cannot be used: {release.reason}")

    cached = cache_dir() / release.file
    cached.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(cached.with_name(f".{release.file}.lock")):
        if cached.exists():
            found = _sha256(cached)
            if found == release.sha256:
                return cached
            sys.stderr.write(f"{cached}: sha256 is {found}, not {release.sha256}: fetching it again\n")
        with tempfile.TemporaryDirectory(dir=cached.parent, prefix=".fetch-") as folder:
            fetched = _fetch(release, Path(folder))
            found = _sha256(fetched)
            if found != release.sha256:
                raise ReleaseError(f"{release.file}: expected sha256 {release.sha256}, found {found}")
            fetched.replace(cached)
    return cached


def unpacked(version: str, into: Path, *, only: Callable[[str], bool] | None = None) -> Path:
    """Lay the wheel of `version` out in `into`, as pip does in site-packages; returns the `sglang` directory.

    `only` picks files by their path in the wheel; metadata and its RECORD always come, and RECORD stays complete.
    """
    metadata = f"sglang-{version}.dist-info"
    with zipfile.ZipFile(wheel(version)) as archive:
        for member in archive.infolist():
            if only and not member.filename.startswith(f"{metadata}/") and not only(member.filename):
                continue
            path = Path(archive.extract(member, into))
            # Of a file's mode pip keeps one thing: whether it may be executed.
            if not member.is_dir() and (member.external_attr >> 16) & 0o111:
                readable = path.stat().st_mode & 0o444
                path.chmod(path.stat().st_mode | readable >> 2)
    added = {f"{metadata}/INSTALLER": b"pip\n", f"{metadata}/REQUESTED": b""}
    for name, content in added.items():
        (into / name).write_bytes(content)
    _add_to_record(into / metadata / "RECORD", added)
    return into / "sglang"


def _fetch(release: Release, folder: Path) -> Path:
    """Have pip download the wheel into `folder`. pip finds the index in its own configuration."""
    if sys.stderr.isatty():
        sys.stderr.write(f"fetching {release.file} ({release.size / 1e6:.1f} MB)\n")
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir"]
    command = [sys.executable, "-m", "pip", "download", *quiet, *PIN, "-d", str(folder), f"sglang=={release.version}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    fetched = folder / release.file
    if done.returncode == 0 and fetched.is_file():
        return fetched
    arrived = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
    said = "\n".join(f"  {line}" for line in done.stderr.strip().splitlines()[-8:])
    raise ReleaseError(
        f"sglang {release.version}: expected {release.file}, found {arrived} (pip exit status {done.returncode})\n"
        f"{said}\n"
        f"  Put the wheel into {cache_dir()}, or try again with a network."
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _add_to_record(record: Path, added: dict[str, bytes]) -> None:
    """Rewrite RECORD with rows for `added`, sorted and with the line ends that pip gives it."""
    with record.open(newline="", encoding="utf-8") as stream:
        rows = [tuple(row) for row in csv.reader(stream)]
    for name, content in added.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append((name, f"sha256={digest}", str(len(content))))
    with record.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(sorted(rows))
