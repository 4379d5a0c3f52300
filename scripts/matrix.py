"""`make matrix`: every release of SGLang against every patch, really tried.

Writes docs/compatibility.md and its picture. Each release is fetched (pinned by hash), unpacked, and goes through the
steps of `sglang-patch try`. What was tried with the very same code is not tried again, so an interrupted run goes on
where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import click

from patcher import __version__
from patcher.patch import Candidate, State
from patcher.plan import Request
from patcher.results import Workplace
from patcher.target import Target
from patcher.trial import Trial, TriedPatch, run_trial
from scripts.picture import picture
from tests.releases import REPO, known_releases, unpacked

RESULTS = REPO / ".cache" / "matrix"
PAGE = REPO / "docs" / "compatibility.md"
PICTURE = REPO / "docs" / "compatibility.svg"

TEXT = """\
# Which patch does what on which SGLang

Made by `make matrix` on {date} with sglang-patch {tool}, Python {python}: {count} releases in {seconds:.0f} s.
Every final and post release from {first} to {last} was unpacked from its wheel (hashes in fixtures/releases.toml);
the patches were planned and applied, the result parsed and run, applied again, reverted, and every file compared with
its first bytes.

![Releases by patch, coloured by state](compatibility.svg)

- `applied`: it fits, and the patched code had its effect in as many cases as the brackets say.
- `upstream`: this release has the behaviour, shown by running it.
- `absent`: it has no such file, class or function.
- `eagle3-delegation` was applied, in one operation, to every wrapper class of the release that fits, and each was run;
  the counts say for how many classes the methods fit, are there upstream, are there in part, or do not fit
  (`sglang-patch show eagle3-delegation` tells why, class by class).

{table}

{end}
"""


@dataclass(frozen=True)
class Cell:
    """One patch on one release: its state after an apply, in how many cases it had its effect, why it is not there."""

    patch: str
    state: str
    cases: int
    reason: str

    def __str__(self) -> str:
        cases = f" ({self.cases} cases)" if self.cases else ""
        return f"{self.state}{cases}{f': {self.reason}' if self.reason else ''}"


@dataclass(frozen=True)
class Row:
    """One release: its cells, and every promise that did not hold on it."""

    version: str
    cells: tuple[Cell, ...]
    problems: tuple[str, ...]


def code_hash() -> str:
    """One hash over the code whose results are kept."""
    files = sorted(path for folder in ("patcher", "patches") for path in (REPO / folder).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def tried(version: str, code: str) -> Row:
    """What came of trying one release, from the results of an earlier run if there are any."""
    kept = RESULTS / f"{version}-{code}.json"
    if kept.exists():
        fields = json.loads(kept.read_bytes())
        return Row(version, tuple(Cell(**cell) for cell in fields["cells"]), tuple(fields["problems"]))
    with tempfile.TemporaryDirectory(prefix="sglang-patch-matrix-") as folder:
        unpacked(version, Path(folder), only=lambda name: name.endswith(".py") or ".dist-info/" in name)
        place = Workplace.of(Target.find(folder))
        families = {
            name: one.family.candidates(place.target) for name, one in place.catalog.families.items() if one.family
        }
        fitting = [f"{name}:{one.name}" for name, found in families.items() for one in found if one.verdict == "fits"]
        trial = run_trial(place, [Request(name, by_name=False) for name in [*place.catalog, *fitting]])
    cells = [_cell(one, trial.problems) for one in trial.patches if ":" not in one.status.id]
    cells += [_family_cell(name, found, trial) for name, found in families.items()]
    row = Row(version, tuple(cells), trial.problems)
    RESULTS.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(asdict(row), indent=1))
    part.replace(kept)
    return row


def _cell(one: TriedPatch, problems: Sequence[str]) -> Cell:
    status, cases = one.status, len(one.verified.probes) if one.verified else 0
    if status.state is State.NOT_APPLIED and not problems:
        return Cell(status.id, "applied", cases, "")
    quiet = status.state in (State.UPSTREAM, State.ABSENT)
    return Cell(status.id, str(status.state), cases, "" if quiet else status.reason or "; ".join(problems))


def _family_cell(name: str, found: Sequence[Candidate], trial: Trial) -> Cell:
    """How many of a release's places fit, each of which was applied and run, and how many do not."""
    tried = [one for one in trial.patches if one.status.id.startswith(f"{name}:")]
    cases = sum(len(one.verified.probes) for one in tried if one.verified)
    verdicts = [one.verdict for one in found]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    state = "applied" if tried else "upstream" if "upstream" in verdicts else "absent"
    return Cell(name, "conflict" if trial.problems else state, cases, counts)


def all_tried(versions: Sequence[str]) -> list[Row]:
    """Every release tried, in parallel; a fault ends the run and names itself."""
    code, rows = code_hash(), {}
    with ProcessPoolExecutor(os.cpu_count()) as pool, click.progressbar(length=len(versions), label="releases") as bar:
        running = [pool.submit(tried, version, code) for version in versions]
        for done in as_completed(running):
            row = done.result()
            rows[row.version] = row
            bar.update(1)
    return [rows[version] for version in versions]


def page(rows: Sequence[Row], seconds: float) -> str:
    """docs/compatibility.md, releases that are alike on one line."""
    names = [cell.patch for cell in rows[0].cells]
    table = [f"| SGLang | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    for texts, group in groupby(rows, key=lambda row: [str(cell) for cell in row.cells]):
        alike = [row.version for row in group]
        span = alike[0] if len(alike) == 1 else f"{alike[0]} to {alike[-1]} ({len(alike)} releases)"
        table.append(f"| {span} | {' | '.join(texts)} |")
    broken = [f"- {row.version}: {problem}" for row in rows for problem in row.problems]
    return TEXT.format(
        date=time.strftime("%Y-%m-%d"),
        tool=__version__,
        python=platform.python_version(),
        count=len(rows),
        seconds=seconds,
        first=rows[0].version,
        last=rows[-1].version,
        table="\n".join(table),
        end="\n".join(["Promises that did not hold:", "", *broken]) if broken else "None crashed, none kept a byte.",
    )


def main() -> None:
    """Try every release and write the page and the picture; exit 1 if a promise did not hold."""
    start = time.monotonic()
    rows = all_tried([one.version for one in known_releases() if one.file])
    PAGE.write_text(page(rows, time.monotonic() - start))
    PICTURE.write_text(picture({row.version: {cell.patch: cell.state for cell in row.cells} for row in rows}))
    click.echo(f"{len(rows)} releases; {PAGE.relative_to(REPO)} and {PICTURE.relative_to(REPO)} are written")
    bad = [row.version for row in rows if row.problems]
    sys.exit(f"these releases broke a promise: {', '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main()
