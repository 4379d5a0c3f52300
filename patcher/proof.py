"""Prove patches by their effect: run the patched code in the sandbox and compare with what each patch promises."""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patcher.errors import UsageError
from patcher.hunks import take_out_found
from patcher.judgement import PatchStatus
from patcher.launchers import LaunchPath, launch_paths
from patcher.patch import Patch, State
from patcher.probe import DelegationProbe, EnvironmentProbe, ProbeResult
from patcher.rebinding import Rebinding, rebinders, rebound_in_tree
from patcher.results import Report, silent
from patcher.sandbox import Call, CallEffect, Case, FunctionEffect, run_delegation, run_function_cases
from patcher.source import syntax
from patcher.survey import Survey
from patcher.target import PACKAGE, Target

# What SGLang itself sets for NCCL and CUDA must be as without the patch; a run's own id and the like may differ.
_COMPARED = ("NCCL_", "CUDA_", "TORCH_")
# A process needs these to start at all.
_MINIMUM = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


@dataclass(frozen=True)
class Verified:
    """One patch with what its probes saw; a patch that is not in place has none.

    `paths` are the ways of starting workers, `rebound` the places in SGLang's own tree where the patched function is
    replaced, so that the patch is dead there.
    """

    status: PatchStatus
    probes: tuple[ProbeResult, ...]
    reason: str | None = None
    paths: tuple[LaunchPath, ...] = ()
    rebound: tuple[Rebinding, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether it is in place, every probe saw what it expected, and nothing in the tree replaces the function."""
        in_place = self.status.state in (State.APPLIED, State.UPSTREAM)
        return in_place and self.reason is None and not self.rebound and all(probe.passed for probe in self.probes)


def verify_patch(survey: Survey, status: PatchStatus, report: Report = silent, *, reach: bool = True) -> Verified:
    """Run the probes of one patch that is in place, and with `reach` judge the ways of starting workers.

    `report` is told about each step. Raises Surroundings.
    """
    patch = survey.catalog.get(status.id)
    if status.state not in (State.APPLIED, State.UPSTREAM):
        return Verified(status, ())
    if patch is None:
        return Verified(status, (), "its code is gone, and its probes with it; the bytes are as recorded")
    path = _file(survey, status, patch)
    data = survey.text(path) or b""
    base = _base(survey, status.id, path, data)
    probes = patch.probes(status.params)
    report(f"{status.id}: running {path} in {len(probes)} cases")
    with tempfile.TemporaryDirectory(prefix="sglang-patch-verify-") as folder:
        now, before = Path(folder, "now", Path(path).name), Path(folder, "before", Path(path).name)
        for copy, text in ((now, data), (before, base)):
            copy.parent.mkdir()
            copy.write_bytes(text)
        environment = [probe for probe in probes if isinstance(probe, EnvironmentProbe)]
        results = [*_environment(environment, now, before, data)]
        results += [_delegation(probe, now) for probe in probes if isinstance(probe, DelegationProbe)]
    if patch.function is None or not reach:
        return Verified(status, tuple(results))
    report(f"{status.id}: looking for the ways in which workers are started")
    paths = launch_paths(survey.target, patch.function, path)
    rebound = [one for one in rebound_in_tree(survey.target, path, patch.function) if not one.what.startswith("may")]
    return Verified(status, tuple(results), None, tuple(paths), tuple(rebound))


def scan_environment(target: Target, patches: Sequence[Patch], files: Mapping[str, str]) -> list[Rebinding]:
    """The packages installed beside SGLang that replace a patched function at run time.

    `files` are the patched files by the patches' ids. Raises UsageError where it is not known what is installed.
    """
    beside = target.site_packages()
    if not beside:
        raise UsageError(
            "it is not known in which environment this SGLang runs, so there is nothing to scan",
            where=str(target.path),
            hint="name its interpreter: sglang-patch --python /path/to/venv/bin/python verify --scan-environment",
        )
    names = {
        f"{PACKAGE}.{files[one.id].removesuffix('.py').replace('/', '.')}": one.function
        for one in patches
        if one.function and one.id in files
    }
    return rebinders(beside, names)


def _file(survey: Survey, status: PatchStatus, patch: Patch) -> str:
    place = survey.place(patch.edits[0])
    return status.files[0][0] if status.files else str(place)


def _base(survey: Survey, patch_id: str, path: str, data: bytes) -> bytes:
    application = survey.manifest.application(patch_id)
    return take_out_found(data, application.hunks_in(path)) if application else data


def _environment(probes: Sequence[EnvironmentProbe], now: Path, before: Path, data: bytes) -> Iterator[ProbeResult]:
    """Run the cases on the patched file and on the file without the patch, each in one interpreter."""
    if not probes:
        return
    function = _qualified(data, probes[0].function)
    cases = [Case(probe.name, {**_MINIMUM, **probe.env}, probe.attributes) for probe in probes]
    spawned = [number for number, probe in enumerate(probes) if probe.spawned]
    effects = run_function_cases(now, function, cases, spawn="all" if len(spawned) > 1 else "first")
    originals = run_function_cases(before, function, cases, spawn="none")
    for probe, effect, original in zip(probes, effects, originals, strict=True):
        yield _compare(probe, effect, original)


def _qualified(data: bytes, function: str) -> str:
    """A function's dotted name in its file: it can be a method."""

    def search(body: Sequence[ast.stmt], prefix: str) -> str | None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
                return prefix + function
            if isinstance(node, ast.ClassDef) and (found := search(node.body, f"{prefix}{node.name}.")):
                return found
        return None

    tree = syntax(data)
    return (search(tree.body, "") if tree else None) or function


def _compare(probe: EnvironmentProbe, effect: FunctionEffect, original: FunctionEffect) -> ProbeResult:
    wrong = _wrong(probe.expected, effect.environment)
    if wrong:
        found = f"{_shown(wrong, effect.environment)}{f' ({effect.error})' if effect.error else ''}"
        return ProbeResult(probe.name, False, _expected(probe.expected, wrong), found)
    others = {name for name in {*effect.environment, *original.environment} if name.startswith(_COMPARED)}
    expected = {name: original.environment.get(name) for name in others - set(probe.expected)}
    wrong = _wrong(expected, effect.environment)
    if wrong:
        return ProbeResult(
            probe.name, False, f"{_expected(expected, wrong)}, as without the patch", _shown(wrong, effect.environment)
        )
    if probe.spawned:
        child = effect.child_environment
        if child is None:
            return ProbeResult(
                probe.name, False, "a spawned process that reports its environment", effect.error or "none"
            )
        wrong = _wrong(probe.expected, child)
        if wrong:
            return ProbeResult(
                probe.name, False, f"{_expected(probe.expected, wrong)} in a spawned process", _shown(wrong, child)
            )
    if effect.error:
        return ProbeResult(probe.name, False, "no exception", effect.error)
    return ProbeResult(probe.name, True)


def _wrong(expected: Mapping[str, str | None], environment: Mapping[str, str]) -> list[str]:
    return sorted(name for name, value in expected.items() if environment.get(name) != value)


def _expected(expected: Mapping[str, str | None], names: Sequence[str]) -> str:
    return ", ".join(f"{name} unset" if expected[name] is None else f"{name}={expected[name]}" for name in names)


def _shown(names: Sequence[str], environment: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={environment[name]}" if name in environment else f"{name} unset" for name in names)


def _delegation(probe: DelegationProbe, file: Path) -> ProbeResult:
    calls = [Call(call.method, call.args) for call in probe.calls]
    effect = run_delegation(file, probe.class_name, inner_attribute=probe.attribute, calls=calls, inner=probe.inner)
    if effect.error:
        return ProbeResult(probe.name, False, f"an instance of {probe.class_name}", effect.error)
    for call, seen in zip(probe.calls, effect.calls, strict=True):
        wanted, found = _delegated(probe, call.returns, seen)
        if found:
            return ProbeResult(probe.name, False, f"{call.method}: {wanted}", found)
    return ProbeResult(probe.name, True)


def _delegated(probe: DelegationProbe, returns: bool, seen: CallEffect) -> tuple[str, str | None]:
    """What a call should have done, and what it did instead, or None."""
    name = seen.call.method
    if not seen.defined:
        return "a method", "the class has none"
    if probe.inner != "recording":
        wanted = f"an AttributeError that names {probe.attribute} or {name}"
        told = seen.error or ""
        right = seen.error_type == "AttributeError" and (probe.attribute in told or name in told)
        return wanted, None if right else told or "no exception"
    wanted = f"{probe.attribute}.{name} is called once with {list(seen.call.args)}"
    if seen.error:
        return wanted, seen.error
    received = [(one.method, [*one.args, *one.kwargs.values()]) for one in seen.received]
    arguments = list(seen.call.args)
    # an argument that was left out may arrive as the None that it defaults to
    if received not in ([(name, arguments)], [(name, arguments or [None])]):
        return wanted, f"it received {received or 'nothing'}"
    if returns and seen.returned not in ("same", "equal"):
        return "what it returns comes back", f"{seen.returned}: {seen.value}"
    return wanted, None
