"""`make demo`: the main job on the real SGLang 0.5.9, in front of you, with the proof that every byte is back."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

from patcher.sandbox import run_function
from tests.releases import REPO, unpacked, wheel

VERSION = "0.5.9"
PLACE = REPO / ".cache" / "demo"
ENGINE = "srt/entrypoints/engine.py"


def title(text: str) -> None:
    """Begin a part of the demo."""
    click.secho(f"\n== {text}", bold=True)


def run(*arguments: str, expect: int = 0) -> None:
    """Show a command, run it, and stop if it exits otherwise than it should."""
    click.secho(f"$ sglang-patch {' '.join(arguments)}", fg="cyan")
    command = [sys.executable, "-m", "patcher", *arguments]
    done = subprocess.run(command, env={**os.environ, "SGLANG_PATCH_TARGET": str(PLACE)}, check=False)
    if done.returncode != expect:
        sys.exit(f"demo: exit code {done.returncode} where {expect} was expected")


def fingerprint(package: Path) -> dict[str, str]:
    """sha256 of every file of the package, without the ledger."""
    return {
        str(path.relative_to(package)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(package.rglob("*"))
        if path.is_file() and ".sglang-patch" not in path.parts
    }


def inherited(package: Path, exported: dict[str, str]) -> dict[str, str]:
    """The NCCL variables of a process spawned after the function ran, as it would in a server."""
    env = {"PATH": os.defpath, **exported}
    effect = run_function(package / ENGINE, "_set_envs_and_config", env=env)
    if effect.child_environment is None:
        sys.exit(f"demo: no child process: {effect.error}")
    return {name: value for name, value in effect.child_environment.items() if name.startswith("NCCL_")}


def show_inherited(package: Path, exported: dict[str, str]) -> None:
    """Print what a child inherits when the user has exported some variables."""
    words = " ".join(f"{name}={value}" for name, value in exported.items()) or "nothing"
    click.echo(f"exported: {words}; a spawned child of the patched _set_envs_and_config then has")
    for name, value in sorted(inherited(package, exported).items()):
        click.echo(f"    {name}={value}{'   (yours)' if name in exported else ''}")


def main() -> None:
    """Run the demo; exits with a message at the first thing that is not as it should be."""
    title(f"The real sglang {VERSION} from the package index, as pip lays it out")
    wheel(VERSION)
    shutil.rmtree(PLACE, ignore_errors=True)
    package = unpacked(VERSION, PLACE)
    before = fingerprint(package)
    click.echo(f"{len(before)} files in {package}")

    title("What is it, and what could be done?")
    run("status")
    click.echo(f"a spawned child has {inherited(package, {})}: no tuning reaches it")

    title("Apply both patches; first look at the diff")
    run("apply", "--dry-run")
    run("apply")

    title("Is everything in place? By the bytes, then by the effect")
    run("check")
    run("verify")
    show_inherited(package, {})
    show_inherited(package, {"NCCL_PROTO": "Simple", "NCCL_NTHREADS": "256"})

    title("The record, and the way back")
    run("log")
    run("revert", "--all")
    run("check", expect=1)
    after = fingerprint(package)
    if after != before:
        sys.exit(f"demo: these files differ: {sorted(set(before.items()) ^ set(after.items()))}")
    total = hashlib.sha256("".join(after.values()).encode()).hexdigest()
    click.secho(f"every byte is back: {len(after)} files, sha256 over all of them {total[:16]}", fg="green")

    title("On your own machine")
    click.echo("pip install .                                  # in the environment of your choice")
    click.echo("sglang-patch --python $(which python) status   # the interpreter that runs your server")
    click.echo("sglang-patch --python $(which python) apply")
    click.echo("sglang-patch --python $(which python) check    # before every start; exit 0 means in place")


if __name__ == "__main__":
    main()
