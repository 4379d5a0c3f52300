"""The command line: parse, call `patcher.api`, print. `main` is the one place that turns outcomes into exit codes."""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from patcher import __version__, report
from patcher.completion import PatchId, ProfileName
from patcher.errors import Interrupted, PatcherError, Surroundings, TargetNotFound, UsageError
from patcher.options import Group, Options, typed
from patcher.patch import State
from patcher.results import LOCK_TIMEOUT, Check, Report, Result, Workplace, silent
from patcher.target import Target

NOT_IN_PLACE = 1


ids = click.argument("ids", metavar="[ID]...", nargs=-1, type=PatchId())
dry_run = click.option("--dry-run", is_flag=True, help="Show what would be done, with the diff, and write nothing.")


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  sglang-patch --target /opt/venv status
  sglang-patch --target /opt/venv apply
  sglang-patch --target /opt/venv check && exec python -m sglang.launch_server ...
  sglang-patch --target /opt/venv revert --all

\b
Exit codes:
  0  what was asked for holds now      3  a patch does not fit; nothing was changed
  1  something is not in place         4  the surroundings are in the way; nothing was changed
  2  the command line is wrong         130  interrupted; nothing is half-done

Without --target and --python the target is SGLANG_PATCH_TARGET, else the SGLang of the interpreter that runs this.
""",
)
@click.version_option(__version__, prog_name="sglang-patch")
def cli() -> None:
    """Keep local source patches on an installed SGLang: apply, check, revert byte for byte."""


def _say(text: str, *, fg: str, err: bool = False) -> None:
    """Print a line in a colour, where colours are wanted."""
    click.secho(text, fg=fg, err=err, color=False if os.environ.get("NO_COLOR") else None)


def _options() -> Options:
    return click.get_current_context().ensure_object(Options)


def _workplace() -> Workplace:
    options = _options()
    if options.target and options.python:
        raise UsageError("--target and --python name two targets", hint="give one of them")
    target = Target.find(options.target, python=options.python)
    timeout = LOCK_TIMEOUT if options.lock_timeout is None else options.lock_timeout
    return Workplace.of(target, patches=options.patches, ledger=options.ledger, lock_timeout=timeout)


def _print_json(document: object) -> None:
    click.echo(json.dumps(document, indent=2))


@cli.command(
    epilog="""\b
Examples:
  sglang-patch apply
  sglang-patch apply nccl-defaults --profile pcie-throughput
  sglang-patch apply nccl-defaults --set NCCL_MAX_NCHANNELS=8 --set NCCL_P2P_LEVEL=
  sglang-patch apply eagle3-delegation --set model=kimi_vl
  sglang-patch apply --dry-run
"""
)
@ids
@click.option("--profile", metavar="NAME", type=ProfileName(), help="The named set of parameters.")
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="One parameter; an empty value leaves it out."
)
@dry_run
def apply(ids: Sequence[str], profile: str | None, settings: Sequence[str], dry_run: bool) -> int:
    """Put patches in place, all or nothing; without an ID the whole catalog.

    A patch that this SGLang has no place for is skipped, unless it is asked for by name. Parameters that were chosen
    before stay until others are named.
    """
    from patcher import api

    place = _workplace()
    ids, overrides = _instances(place, ids, [_setting(text) for text in settings])
    return _report(place, api.apply(place, ids, profile=profile, overrides=overrides, dry_run=dry_run), dry_run=dry_run)


def _instances(
    place: Workplace, ids: Sequence[str], settings: Sequence[tuple[str, str]]
) -> tuple[list[str], dict[str, str]]:
    """The ids with a family's replaced by the instances that `--set` names, and the settings that are left."""
    families = {one.id: one.family for one in place.catalog.everything() if one.family and one.id in ids}
    named = {name: [value for key, value in settings if key == family.parameter] for name, family in families.items()}
    parameters = {family.parameter for family in families.values()}
    if any("" in values for values in named.values()):
        raise UsageError("an empty name is no instance", hint="sglang-patch show eagle3-delegation   # lists the names")
    found = [[f"{one}:{value}" for value in named[one]] if named.get(one) else [one] for one in ids]
    return [one for some in found for one in some], {key: value for key, value in settings if key not in parameters}


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--set {text!r} is no KEY=VALUE", expected="--set NCCL_PROTO=LL")
    return key, value


@cli.command(
    epilog="""\b
Examples:
  sglang-patch revert nccl-defaults
  sglang-patch revert --all
"""
)
@ids
@click.option("--all", "everything", is_flag=True, help="Every patch that is recorded.")
@dry_run
def revert(ids: Sequence[str], everything: bool, dry_run: bool) -> int:
    """Take patches out, in any order, byte for byte. The patch's own code is not needed."""
    from patcher import api

    if bool(ids) == everything:
        raise UsageError(
            "revert needs the patches to take out, or --all" if not ids else "revert takes IDs or --all, not both",
            hint="sglang-patch revert --all",
        )
    place = _workplace()
    return _report(place, api.revert(place, ids, dry_run=dry_run), dry_run=dry_run)


def _report(place: Workplace, done: Result, *, dry_run: bool) -> int:
    """Print the outcome of an operation; its exit code."""
    from patcher import api

    diff = api.preview(done.plan) if dry_run else ""
    if _options().as_json:
        _print_json(report.result(done, place.target, dry_run=dry_run, diff=diff if dry_run else None))
    else:
        from patcher import display

        display.result(done, dry_run=dry_run, diff=diff)
    for notice in done.plan.notices:
        _say(f"note: {notice}", err=True, fg="yellow")
    for step in done.plan.refused:
        _say(typed(str(report.refusal(step, place.target))), err=True, fg="red")
    return 3 if done.plan.refused else 0


@cli.command(
    epilog="\b\nExamples:\n  sglang-patch status\n  sglang-patch status -v\n  sglang-patch status --exit-code --json"
)
@click.option("--exit-code", is_flag=True, help="Exit 1 unless everything that is recorded is in place.")
@click.option("-v", "--verbose", is_flag=True, help="Also the ways of starting workers, and which the patches reach.")
def status(exit_code: bool, verbose: bool) -> int:
    """Every known patch and its state, the target, the digest."""
    from patcher import api

    place = _workplace()
    seen = api.status(place)
    paths = api.paths(place) if verbose else []
    if _options().as_json:
        more = {"launch_paths": report.launch_paths(paths)} if verbose else {}
        _print_json({**report.status(seen), **more})
    else:
        from patcher import display

        display.status(seen)
        display.launch_paths(paths)
    return NOT_IN_PLACE if exit_code and not api.check(place).in_place else 0


@cli.command(epilog="\b\nExamples:\n  sglang-patch check\n  sglang-patch check nccl-defaults && systemctl start sglang")
@ids
def check(ids: Sequence[str]) -> int:
    """Is everything that is recorded, or exactly what is named, in place? Reads only; exit 0 or 1.

    On a target with nothing recorded, the whole catalog is checked, as a bare apply would take it.
    """
    from patcher import api

    seen = api.check(_workplace(), ids)
    if _options().as_json:
        _print_json(report.check(seen))
    else:
        _print_check(seen)
    return 0 if seen.in_place else NOT_IN_PLACE


def _print_check(seen: Check) -> None:
    _print_missing(seen)
    if seen.in_place:
        names = [f"{one.id} ({one.state})" for one in seen.patches if one.state is not State.ABSENT]
        version = seen.target.version or "of unknown version"
        _say(f"in place on SGLang {version}: {', '.join(names) or 'nothing, as no patch fits here'}", fg="green")


def _print_missing(seen: Check) -> None:
    for one in seen.missing:
        details = [one.reason or one.summary, *([f"at {one.where}"] if one.where else [])]
        advice = f"; type: {typed(one.hint)}" if one.hint else ""
        _say(f"{one.id}: {one.state}: {', '.join(details)}{advice}", fg="red")


@cli.command(epilog="\b\nExamples:\n  sglang-patch verify\n  sglang-patch verify kimi-k25-eagle3 --json")
@ids
@click.option("--scan-environment", is_flag=True, help="Look for installed packages that replace a patched function.")
def verify(ids: Sequence[str], scan_environment: bool) -> int:
    """`check`, then run the patched code and look at the effect: the text alone proves nothing.

    The file runs in a fresh interpreter in which everything but the standard library is a stub. SGLang is not imported.
    The ways in which this SGLang starts workers are named, with those that the patch does not reach.
    """
    from patcher import api

    as_json = _options().as_json
    seen = api.verify(_workplace(), ids, scan=scan_environment, report=_reporter())
    if as_json:
        _print_json(report.verification(seen))
    else:
        from patcher import display

        _print_missing(seen.check)
        display.verification(seen)
    return 0 if seen.passed else NOT_IN_PLACE


def _reporter() -> Report:
    """Tells a person at a terminal what long work is at; programs are told nothing."""
    talks = sys.stderr.isatty() and not _options().as_json
    return (lambda text: click.echo(text, err=True)) if talks else silent


@cli.command("list", epilog="\b\nExamples:\n  sglang-patch list\n  sglang-patch --patches ./patches list")
def list_() -> int:
    """The catalog: every patch that can be applied."""
    from patcher.catalog import collect

    patches = collect(_options().patches)
    if _options().as_json:
        _print_json(report.catalog(patches.everything()))
    else:
        from patcher import display

        display.catalog(patches.everything())
    return 0


@cli.command(epilog="\b\nExample:\n  sglang-patch show nccl-defaults")
@click.argument("patch_id", metavar="ID", type=PatchId())
def show(patch_id: str) -> int:
    """One patch: why, for which releases, profiles and parameters, when to retire it."""
    from patcher.catalog import collect

    patches, target = collect(_options().patches), _target_if_any()
    patches = patches.on(target) if target else patches
    one = patches[patches.known(patch_id)]
    candidates = one.family.candidates(target) if one.family and target else []
    if _options().as_json:
        listed = {"candidates": [asdict(candidate) for candidate in candidates]} if one.family else {}
        _print_json({"schema": 1, "patch": {**report.patch(one), **listed}})
    else:
        from patcher import display

        display.patch(one)
        display.candidates(one, candidates)
    return 0


def _target_if_any() -> Target | None:
    """The target, or None where none was named and none is found."""
    options = _options()
    try:
        return Target.find(options.target, python=options.python)
    except TargetNotFound:
        if options.target or options.python:
            raise
        return None


@cli.command(epilog="\b\nExamples:\n  sglang-patch diff\n  sglang-patch diff kimi-k25-eagle3 > kimi.patch")
@ids
def diff(ids: Sequence[str]) -> int:
    """What is changed on the target, as a unified diff that `git apply` and `patch -p1` take."""
    from patcher import api

    text = api.diff(_workplace(), ids)
    if _options().as_json:
        _print_json({"schema": 1, "diff": text})
    elif text:
        from patcher import display

        display.patch_text(text)
    else:
        click.echo(
            "nothing is applied here that could be shown; sglang-patch apply --dry-run shows what would be", err=True
        )
    return 0


@cli.command(epilog="\b\nExamples:\n  sglang-patch log\n  sglang-patch log --json")
def log() -> int:
    """The ledger's history: every operation, newest first."""
    from patcher import api

    place = _workplace()
    entries = api.log(place)
    if _options().as_json:
        _print_json(report.log(entries))
    else:
        from patcher import display

        display.log(entries)
    return 0


@cli.command(
    "try",
    epilog="\b\nExamples:\n  sglang-patch try 0.5.10\n  sglang-patch --target /opt/venv try ./sglang-0.5.23-*.whl",
)
@click.argument("subject", metavar="VERSION|WHEEL|TREE")
@ids
def try_(subject: str, ids: Sequence[str]) -> int:
    """Will my patches survive the upgrade? Run all the steps on a copy of another SGLang.

    The patches are those recorded for the target, the named ones, or without any record the whole catalog.
    """
    from patcher.manifest import EMPTY
    from patcher.trial import try_on

    options = _options()
    if _target_if_any():
        place = _workplace()
        manifest = place.ledger.manifest()
    else:
        place, manifest = Workplace.of(Target(Path(os.devnull)), patches=options.patches), EMPTY
    seen = try_on(subject, place, manifest, ids, report=_reporter())
    if options.as_json:
        _print_json(report.trial(seen))
    else:
        from patcher import display

        display.trial(seen)
    return 0 if seen.passed else 3


@cli.command(epilog="\b\nExample:\n  sglang-patch repair && sglang-patch status")
def repair() -> int:
    """Finish or roll back an interrupted operation; record anew what the bytes prove.

    It changes no file of SGLang but to roll back. A record that cannot be read is set aside, never deleted.
    """
    from patcher import api

    place = _workplace()
    return _report(place, api.repair(place), dry_run=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; nothing is raised but SystemExit by shell completion."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path can hold any byte
    as_json = "--json" in arguments
    try:
        code = cli.main(arguments, prog_name="sglang-patch", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        usage = f"sglang-patch {context.command.name} --help" if context and context.parent else "sglang-patch --help"
        return _fail(UsageError(error.format_message(), hint=usage), as_json=as_json)
    except PatcherError as error:
        return _fail(error, as_json=as_json)
    except (KeyboardInterrupt, click.Abort):
        return _fail(Interrupted("interrupted; nothing is half-done"), as_json=as_json)
    except OSError as error:
        said = error.strerror or str(error)
        return _fail(Surroundings(said, where=error.filename, hint="free or repair what is named"), as_json=as_json)
    except Exception as error:  # noqa: BLE001 (the last resort: a fault of ours, told without a traceback)
        return _fail(_crash(error), as_json=as_json)


def _fail(error: PatcherError, *, as_json: bool) -> int:
    if as_json:
        _print_json(error.as_json())
    _say(f"sglang-patch: {typed(str(error))}", err=True, fg="red")
    return error.exit_code


def _crash(error: Exception) -> PatcherError:
    """A fault of this program, with its traceback kept in a file."""
    with tempfile.NamedTemporaryFile("w", prefix="sglang-patch-crash-", suffix=".txt", delete=False) as file:
        file.write(f"sglang-patch {__version__}, Python {sys.version}\n{traceback.format_exc()}")
    fault = PatcherError(
        f"this is a fault of sglang-patch: {type(error).__name__}: {error}",
        where=file.name,
        hint="please report it with that file",
    )
    fault.kind = "fault"
    return fault
