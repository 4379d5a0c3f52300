"""Try patches on a copy of some SGLang: a release by its version, a wheel, or a tree. Nothing outside the copy changes.

The steps are those of a deploy and its way back: plan, apply, parse, verify, apply again, revert, compare every byte.
"""

from __future__ import annotations

import difflib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from patcher import api
from patcher.errors import PatcherError, Surroundings, TargetNotFound, UsageError
from patcher.judgement import PatchStatus
from patcher.manifest import Manifest, sha256
from patcher.patch import State
from patcher.plan import Plan, Request, plan_apply
from patcher.proof import Verified
from patcher.results import Report, Workplace, silent
from patcher.source import parses, scope_at, syntax
from patcher.survey import Survey
from patcher.target import LEDGER, PACKAGE, Target

_VERSION = re.compile(r"\d+(\.\d+)+[\w.+-]*")


@dataclass(frozen=True)
class TriedPatch:
    """One patch on the copy: its state before, its effect after `apply` (None where it was not applied), what moved.

    `moved` is a diff of the class or function that the patch goes into, from the release that it was applied to.
    """

    status: PatchStatus
    verified: Verified | None
    moved: str | None = None
    by_name: bool = False

    @property
    def fits(self) -> bool:
        """Whether the patch would be in place, with its effect, after an apply on this SGLang."""
        missing = self.status.state is State.ABSENT and self.by_name
        if missing or self.status.state in (State.CONFLICT, State.PARTIAL):
            return False
        return self.verified is None or self.verified.passed


@dataclass(frozen=True)
class Trial:
    """What came of it: the version tried, every patch, and each promise that did not hold (none, if all is well)."""

    version: str | None
    patches: tuple[TriedPatch, ...]
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every patch fits or is not needed, and everything was taken back byte for byte."""
        return not self.problems and all(one.fits for one in self.patches)


def try_on(
    subject: str,
    place: Workplace,
    manifest: Manifest,
    ids: Sequence[str] = (),
    *,
    report: Report = silent,
) -> Trial:
    """Try the patches of `manifest`, or the named ones, or the whole catalog, on a copy of `subject`.

    `subject` is a version, a wheel or a tree; `place` brings the catalog, and the ledger in which the former base is.
    Raises UsageError and Surroundings where there is no such SGLang.
    """
    recorded = {one.id: one for one in manifest.applications}
    names = (
        api.meant(place, manifest, ids) or [name for name in recorded if name in place.catalog] or list(place.catalog)
    )
    requests = [
        Request(name, recorded[name].profile, recorded[name].overrides, by_name=bool(ids))
        if name in recorded
        else Request(name, by_name=bool(ids))
        for name in names
        if name in place.catalog
    ]
    with copy_of(subject, report) as target:
        trial = run_trial(Workplace.of(target, catalog=place.catalog), requests, report)
        if not manifest.applications:
            return trial
        moved = tuple(_with_moves(one, place, manifest, target) for one in trial.patches)
        return Trial(trial.version, moved, trial.problems)


def run_trial(place: Workplace, requests: Sequence[Request], report: Report = silent) -> Trial:
    """Run all the steps on a target that nobody else uses; it ends as it began, but for its ledger."""
    before = _fingerprint(place.target)
    report("looking")
    survey = Survey(place.target, place.catalog, Manifest(None))
    statuses = [survey.status(one.id, _params(place, one)) for one in requests]
    fitting = [one for one, status in zip(requests, statuses, strict=True) if status.state is State.NOT_APPLIED]
    problems: list[str] = []
    verified: dict[str, Verified] = {}
    if fitting:
        report(f"applying {', '.join(one.id for one in fitting)}")
        problems += _apply(place, fitting)
    report("running the patched code")
    in_place = [one.id for one, status in zip(requests, statuses, strict=True) if status.state in _IN_PLACE]
    for one in api.verify(place, in_place, reach=False).patches if in_place else ():
        verified[one.status.id] = one
        if not one.passed:
            failed = [
                f"{probe.name}: expected {probe.expected}, found {probe.found}"
                for probe in one.probes
                if not probe.passed
            ]
            problems.append(f"{one.status.id} is in the text and has not its effect: {'; '.join(failed) or one.reason}")
    report("taking it back")
    api.revert(place)
    changed = [path for path, digest in _fingerprint(place.target).items() if before.get(path) != digest]
    if changed or len(before) != len(_fingerprint(place.target)):
        problems.append(f"not every byte came back: {', '.join(changed) or 'a file is missing'}")
    named = {one.id for one in requests if one.by_name}
    tried = tuple(TriedPatch(one, verified.get(one.id), by_name=one.id in named) for one in statuses)
    return Trial(place.target.version, tried, tuple(problems))


_IN_PLACE = (State.NOT_APPLIED, State.UPSTREAM)


def _params(place: Workplace, request: Request) -> dict[str, str]:
    return dict(place.catalog[request.id].resolve(request.profile, request.overrides)[1])


def _apply(place: Workplace, requests: Sequence[Request]) -> Iterator[str]:
    """Apply, parse what was written, apply again; yields what did not hold."""

    def plan(survey: Survey) -> Plan:
        return plan_apply(survey, requests, {})

    done = api.carry_out(place, plan, dry_run=False)
    if done.plan.refused:
        yield from (f"{step.id} looked as if it fitted, and was refused: {step.reason}" for step in done.plan.refused)
    yield from (
        f"{one.path} does not parse any more"
        for one in done.plan.changes
        if parses(one.old or b"") and not parses(one.new)
    )
    if api.carry_out(place, plan, dry_run=False).done:
        yield "applying again changed something"


def _fingerprint(target: Target) -> dict[str, str]:
    """sha256 (hexadecimal) of every file of the package but bytecode and the ledger."""
    return {
        str(path.relative_to(target.path)): sha256(path.read_bytes())
        for path in target.path.rglob("*")
        if path.is_file() and LEDGER not in path.parts and path.suffix != ".pyc"
    }


@contextmanager
def copy_of(subject: str, report: Report = silent) -> Iterator[Target]:
    """A copy of a release, a wheel or a tree, for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="sglang-patch-try-") as name:
        folder = Path(name)
        path = Path(subject).expanduser()
        if path.suffix == ".whl" and path.is_file():
            _unpack(path, folder / "tree")
        elif path.is_dir():
            _copy(Target.find(path), folder / "tree")
        elif _VERSION.fullmatch(subject):
            report(f"fetching sglang {subject} from the package index")
            _unpack(_download(subject, folder / "wheel"), folder / "tree")
        else:
            raise TargetNotFound(
                f"{subject!r} is neither a version, nor a wheel, nor a tree",
                hint="sglang-patch try 0.5.10, try ./sglang-0.5.10-py3-none-any.whl, or try /path/to/checkout",
            )
        yield Target.find(folder / "tree")


def _unpack(wheel: Path, into: Path) -> None:
    """The Python sources and the metadata of a wheel, as pip lays them out."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".py") or ".dist-info/" in name]
            if not any(name.startswith(f"{PACKAGE}/") for name in names):
                raise UsageError("this wheel holds no sglang package", where=str(wheel))
            archive.extractall(into, [name for name in names if name.startswith(PACKAGE)])
    except (zipfile.BadZipFile, OSError) as error:
        if isinstance(error, PatcherError):
            raise
        raise Surroundings(f"this wheel cannot be unpacked: {error}", where=str(wheel)) from error


def _copy(target: Target, into: Path) -> None:
    """The package and its metadata, with edits and without what sglang-patch records about it."""
    ignored = shutil.ignore_patterns(LEDGER, "__pycache__", "*.pyc", ".git")
    shutil.copytree(target.path, into / PACKAGE, ignore=ignored, symlinks=False, ignore_dangling_symlinks=True)
    if target.dist_info:
        shutil.copytree(target.dist_info, into / target.dist_info.name)


def _download(version: str, into: Path) -> Path:
    """The wheel of a release, fetched by pip by its name. Raises Surroundings with pip's own words."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(into)]
    done = subprocess.run([*command, f"{PACKAGE}=={version}"], capture_output=True, text=True, check=False)
    wheels = sorted(into.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines() or ["nothing"]
        raise Surroundings(
            f"pip could not fetch sglang {version}",
            found=said[0].partition(" (from versions")[0].strip(),
            hint=_nearby(version, done.stderr) or "check the network, or give a wheel: sglang-patch try ./sglang-X.whl",
        )
    return wheels[0]


def _nearby(version: str, said: str) -> str | None:
    """The releases that pip lists beside one that does not exist."""
    _, listed, rest = said.partition("(from versions: ")
    known = rest.partition(")")[0].split(", ") if listed else []
    near = [one for one in known if one.rpartition(".")[0] == version.rpartition(".")[0]][-5:] or known[-3:]
    return f"sglang-patch try {near[-1]}   # there are {', '.join(near)}" if near else None


def _with_moves(one: TriedPatch, place: Workplace, manifest: Manifest, target: Target) -> TriedPatch:
    """For a patch that does not fit: how its class or function changed since the release it was applied to."""
    application, head = manifest.application(one.status.id), place.ledger.head()
    if one.fits or application is None or head is None:
        return one
    parts = []
    for file in application.files:
        base, now = place.ledger.blob(head, f"base/{file.path}"), target.read(file.path)
        for scope in dict.fromkeys(hunk.scope for hunk in file.hunks):
            old, new = _segment(base, scope), _segment(now or b"", scope)
            lines = difflib.unified_diff(
                old,
                new,
                f"{file.path} {scope} in {manifest.version}",
                f"{file.path} {scope} in {target.version}",
                lineterm="",
            )
            parts.append("\n".join(lines) if new else f"{file.path}: {scope} is not there in {target.version}")
    return replace(one, moved="\n".join(parts))


def _segment(data: bytes, scope: str) -> list[str]:
    """The lines of a class or function, by its dotted name."""
    tree, lines = syntax(data), data.decode("utf-8", "replace").splitlines()
    return [line for number, line in enumerate(lines, 1) if (scope_at(tree, number) + ".").startswith(scope + ".")]
