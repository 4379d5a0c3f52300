"""Run the git command with an environment of its own.

An inherited GIT_DIR, GIT_INDEX_FILE or hook environment would make git work on somebody else's repository, and a
configuration of the user or the system could run programs: none of it reaches the commands started here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from patcher.errors import GitMissing, LedgerDamaged

# No hooks, no file system monitor, any owner of the repository: nobody's configuration is asked, none is edited.
_CONFIG = {"core.hooksPath": os.devnull, "core.fsmonitor": "false", "safe.directory": "*"}


def environment() -> dict[str, str]:
    """The environment for git: nothing named GIT_*, no configuration but the repository's own, no prompts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "none",  # a partial clone must not fetch: its remote can be a program
        "GIT_PYTHON_REFRESH": "quiet",  # GitPython reads the ledger also where there is no git command
        "GIT_OPTIONAL_LOCKS": "0",
        "HOME": os.devnull,
        "XDG_CONFIG_HOME": os.devnull,
        "LC_ALL": "C",
        **{f"GIT_CONFIG_KEY_{n}": name for n, name in enumerate(_CONFIG)},
        **{f"GIT_CONFIG_VALUE_{n}": value for n, value in enumerate(_CONFIG.values())},
        "GIT_CONFIG_COUNT": str(len(_CONFIG)),
    }


@contextlib.contextmanager
def scrubbed() -> Iterator[None]:
    """Give this whole process that environment for a moment, as GitPython hands its own on to git unchanged."""
    before = dict(os.environ)
    clean = environment()
    os.environ.clear()
    os.environ.update(clean)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def executable() -> str:
    """The git command; raises GitMissing."""
    found = shutil.which("git")
    if found is None:
        raise GitMissing(
            "the git command is not on PATH; the ledger is written with it",
            expected="git 2.20 or newer",
            hint="install git (apt-get install git), then run the same command again",
        )
    return found


def run(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run git with these arguments; raises GitMissing."""
    config = [argument for name, value in _CONFIG.items() for argument in ("-c", f"{name}={value}")]
    return subprocess.run(
        [executable(), *config, *map(str, arguments)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        capture_output=True,
        check=False,
    )


def must(*arguments: str | Path) -> str:
    """Run git and return what it printed; raises LedgerDamaged with git's own words when it fails."""
    done = run(*arguments)
    if done.returncode:
        raise LedgerDamaged(
            f"git {' '.join(map(str, arguments[:4]))} failed",
            found=done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}",
            hint="sglang-patch repair",
        )
    return done.stdout.decode("utf-8", "replace").strip()


def tracks(work_tree: Path, package: Path) -> bool:
    """Whether a git work tree tracks the package; without the git command, whether its index names it."""
    relative = (package / "__init__.py").relative_to(work_tree)
    if shutil.which("git"):
        return run("-C", work_tree, "ls-files", "--error-unmatch", "--", relative).returncode == 0
    try:
        return str(relative).encode() in (work_tree / ".git" / "index").read_bytes()
    except OSError:
        return False


def head_blob(work_tree: Path, path: Path) -> bytes | None:
    """The bytes of a file as the HEAD commit of a work tree has them, or None."""
    if not shutil.which("git"):
        return None
    done = run("-C", work_tree, "cat-file", "blob", f"HEAD:{path.relative_to(work_tree).as_posix()}")
    return done.stdout if done.returncode == 0 else None
