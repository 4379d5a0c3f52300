"""What the bytes of a target say about each patch. Nothing here writes, and nothing trusts the ledger alone."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property

from patcher.attempt import attempt
from patcher.catalog import Catalog
from patcher.hunks import find, line_of, take_out, take_out_found
from patcher.judgement import REPAIR, PatchStatus, advice, first_difference, in_place
from patcher.manifest import Application, FileRecord, Manifest, digest, sha256
from patcher.patch import Edit, Finding, Outcome, Params, Patch, Rewritten, State
from patcher.pristine import Oracle
from patcher.source import Source
from patcher.target import Target


def marked(data: bytes | None, patch_id: str) -> int | None:
    """The offset at which a comment names a patch as the one that its lines belong to, or None."""
    found = re.search(rb"# *sglang-patch: " + re.escape(patch_id.encode()) + rb"(?![\w:.-])", data or b"")
    return found.start() if found else None


class Survey:
    """A target's files, read at most once, judged against a catalog and what the ledger says.

    What an `earlier` survey has parsed is not parsed again where the bytes are still the same.
    """

    def __init__(self, target: Target, catalog: Catalog, manifest: Manifest, *, earlier: Survey | None = None) -> None:
        self.target = target
        self.catalog = catalog
        self.manifest = manifest
        self._earlier = earlier
        self._texts: dict[str, bytes | None] = {}
        self._sources: dict[str, Source] = {}

    def text(self, path: str) -> bytes | None:
        """The bytes of a file now, or None where there is none."""
        if path not in self._texts:
            self._texts[path] = self.target.read(path)
        return self._texts[path]

    def source(self, path: str) -> Source:
        """A file that exists, as it is now, parsed at most once."""
        if path not in self._sources:
            data, earlier = self.text(path) or b"", self._earlier._sources.get(path) if self._earlier else None
            self._sources[path] = earlier if earlier and earlier.data == data else Source(path, data)
        return self._sources[path]

    def as_recorded(self, path: str) -> bool:
        """Whether a file has the very bytes that were last written to it, with every recorded patch in it whole."""
        record, data = self.manifest.file(path), self.text(path)
        return record is not None and data is not None and sha256(data) == record.sha256

    @cached_property
    def oracle(self) -> Oracle:
        """What upstream shipped."""
        return Oracle(self.target)

    def names(self) -> list[str]:
        """Every patch that the catalog or the ledger knows: the catalog's order, then the ledger's."""
        plain = list(self.catalog)
        return [*plain, *(one.id for one in self.manifest.applications if one.id not in plain)]

    def statuses(self) -> list[PatchStatus]:
        """The state of every known patch."""
        return [self.status(patch_id) for patch_id in self.names()]

    def status(self, patch_id: str, params: Params | None = None) -> PatchStatus:
        """The state of one patch; with `params`, of that patch as it would be with them."""
        application, patch = self.manifest.application(patch_id), self.catalog.get(patch_id)
        if application is None:
            if patch is None or patch.family:
                raise KeyError(patch_id)
            return self._unrecorded(patch, params)
        known = PatchStatus(
            patch_id,
            State.APPLIED,
            application.revision,
            application.summary,
            application.profile,
            application.params,
            application.overrides,
            files=self._files([file.path for file in application.files]),
        )
        if patch_id in self.whole:
            return in_place(known, application, patch, params)
        return self._gone(known, application, patch)

    @cached_property
    def whole(self) -> frozenset[str]:
        """The recorded patches whose every hunk is in its file, unchanged and in its class or function."""
        broken = set().union(*self._broken.values())
        return frozenset(one.id for one in self.manifest.applications if one.id not in broken)

    @cached_property
    def _broken(self) -> dict[str, set[str]]:
        """The patches that are not whole, by file, for the files that are not as they were last written."""
        paths = [record.path for record in self.manifest.files]
        return {path: self._broken_in(path) for path in paths if not self.as_recorded(path)}

    def _broken_in(self, path: str) -> set[str]:
        """The patches that are not whole in one file: each is looked for with the later ones taken out."""
        data, broken = self.text(path), set()
        for application in reversed(self.manifest.applications):
            hunks = application.hunks_in(path)
            without = take_out(data, hunks) if data is not None else None
            if without is not None:
                data = without
            elif hunks:
                broken.add(application.id)
        return broken

    def orphans(self) -> list[str]:
        """The patches whose code is in place and that the ledger does not record."""
        found = []
        for patch in self.catalog.values():
            places = [self.place(edit) for edit in patch.edits] if not self.manifest.application(patch.id) else []
            if any(isinstance(path, str) and marked(self.text(path), patch.id) is not None for path in places):
                found.append(patch.id)
        return found

    def _gone(self, known: PatchStatus, application: Application, patch: Patch | None) -> PatchStatus:
        """The status of a recorded patch that is not whole: lost, drifted, or upstream by now."""
        broken = [file.path for file in application.files if known.id in self._broken.get(file.path, ())]
        reasons = [self._why_lost(record, application) for path in broken if (record := self.manifest.file(path))]
        traces = any(marked(self.text(path), known.id) is not None for path in broken)
        if traces or not all(reasons):
            return self._drifted(known, application, broken[0])
        outcome = self._outcome(patch, self.wanted(patch)[1]) if patch else None
        if isinstance(outcome, Finding) and outcome.state is State.UPSTREAM:
            return replace(
                known,
                state=State.UPSTREAM,
                reason=f"{outcome.reason}; it was applied to SGLang {application.sglang}, its record can go",
                hint=f"sglang-patch revert {known.id}",
            )
        reason, hint = str(reasons[0]), f"sglang-patch apply {known.id}"
        if isinstance(outcome, Finding) and outcome.state is State.ABSENT:
            reason, hint = f"{reason}; {outcome.reason}", f"sglang-patch revert {known.id}   # drops its record"
            known = replace(known, no_place=True)
        return replace(known, state=State.LOST, where=broken[0], reason=reason, hint=hint)

    def _why_lost(self, record: FileRecord, application: Application) -> str | None:
        """Why the absence of a patch means that SGLang was installed anew, or None if it does not."""
        data, before, now = self.text(record.path), application.sglang, self.target.version
        if before != now:
            return f"SGLang {before} was patched, and this is {now}"
        if data is None:
            return None
        if sha256(data) == record.base_sha256:
            return "the file is what it was before the patch: SGLang was reinstalled, or the file was put back"
        if self.oracle.is_pristine(record.path, data):
            return f"the file is what SGLang {now} shipped: SGLang was reinstalled since the patch"
        return None

    def _drifted(self, known: PatchStatus, application: Application, path: str) -> PatchStatus:
        data = self.text(path)
        if data is None:
            return replace(known, state=State.DRIFTED, where=path, reason="the patched file is not there any more")
        hunks = application.hunks_in(path)
        without = data
        for later in reversed(self.manifest.applications[self.manifest.applications.index(application) + 1 :]):
            without = take_out_found(without, later.hunks_in(path))
        hunk = next((hunk for hunk in hunks if find(without, hunk) is None), hunks[0])
        line, expected, found = first_difference(without, hunk)
        if line is not None and without != data:  # its number in the file, where the later patches are too
            texts = [text.strip().decode("utf-8", "replace") for text in data.splitlines()]
            line = next((n for n, text in enumerate(texts, 1) if n >= line and text == found), line)
        if found is None:
            reason = f"the patched lines were taken out of {hunk.scope or 'the file'}, and not by sglang-patch"
            hint = f"sglang-patch apply {known.id}   # puts them back"
        else:
            reason = "the patched lines were edited since"
            hint = f"sglang-patch diff {known.id}, and undo the edit or take over what you want"
        where = f"{path}:{line}" if line else path
        return replace(
            known, state=State.DRIFTED, where=where, reason=reason, expected=expected, found=found, hint=hint
        )

    def _unrecorded(self, patch: Patch, params: Params | None) -> PatchStatus:
        profile, default = patch.resolve(None, {})
        wanted = default if params is None else params
        known = PatchStatus(patch.id, State.NOT_APPLIED, patch.revision, patch.summary, profile, wanted)
        outcome = self._outcome(patch, wanted)
        if isinstance(outcome, Rewritten):
            return replace(known, hint=f"sglang-patch apply {patch.id}")
        where = f"{outcome.path}:{outcome.line}" if outcome.path and outcome.line else outcome.path
        return replace(
            known,
            state=outcome.state,
            reason=outcome.reason,
            where=where,
            expected=outcome.expected,
            found=outcome.found,
            hint=outcome.hint or advice(patch, outcome),
        )

    def wanted(self, patch: Patch) -> tuple[str | None, Params]:
        """The profile and parameters that a patch should have: those of its record under today's catalog.

        Raises UsageError if the catalog does not have that profile or parameter any more.
        """
        application = self.manifest.application(patch.id)
        if application is None:
            return patch.resolve(None, {})
        return patch.resolve(application.profile, application.overrides)

    def _outcome(self, patch: Patch, params: Params) -> Outcome:
        """What a patch would do to the files as they are: one outcome for all its edits."""
        outcomes = [self._outcome_of(patch, edit, params) for edit in patch.edits]
        findings = [outcome for outcome in outcomes if isinstance(outcome, Finding)]
        if not findings:
            return outcomes[0]
        worst = max(findings, key=lambda finding: _GRAVITY.index(finding.state))
        if worst.state in (State.CONFLICT, State.PARTIAL) or (
            all(one.state is worst.state for one in findings) and len(findings) == len(outcomes)
        ):
            return worst
        return replace(worst, state=State.PARTIAL, reason=f"some of its edits fit and others do not: {worst.reason}")

    def _outcome_of(self, patch: Patch, edit: Edit, params: Params) -> Outcome:
        path = self.place(edit)
        if isinstance(path, Finding):
            return path
        at = marked(self.text(path), patch.id)
        if at is not None and self.manifest.application(patch.id) is None:
            line = line_of(self.text(path) or b"", at)
            return Finding(
                State.PARTIAL,
                "its code is there, but the ledger does not record it (was the ledger deleted, or the file copied?)",
                line=line,
                path=path,
                hint=REPAIR,
            )
        outcome = attempt(edit, self.source(path), params)
        if isinstance(outcome, Finding) and outcome.state is State.UPSTREAM and self.manifest.file(path):
            return replace(outcome, reason=outcome.reason + self._by_another(patch, edit, path, params))
        return outcome

    def _by_another(self, patch: Patch, edit: Edit, path: str, params: Params) -> str:
        """A clause naming the applied patches of a file that brought what a patch finds to be there already."""
        others = [one for one in self.manifest.applications if one.id != patch.id and one.hunks_in(path)]
        data = self.text(path) or b""
        for one in reversed(others):
            data = take_out_found(data, one.hunks_in(path))
        without = attempt(edit, Source(path, data), params)
        upstream = isinstance(without, Finding) and without.state is State.UPSTREAM
        return "" if upstream else f"; not SGLang's own, but put there by {', '.join(one.id for one in others)}"

    def place(self, edit: Edit) -> str | Finding:
        """The file that an edit is for: the first of its paths that has its anchor, else wherever the anchor is."""
        there = [path for path in edit.paths if self.text(path) is not None]
        if edit.anchor is None:
            return there[0] if there else Finding(State.ABSENT, edit.missing or f"this SGLang has no {edit.paths[0]}")
        anchor = edit.anchor.encode()
        with_anchor = [path for path in there if anchor in (self.text(path) or b"")]
        elsewhere = with_anchor or list(self.target.containing(anchor))
        if len(elsewhere) > 1:
            reason, found = (
                f"{edit.anchor!r} is in more than one file, and which one counts is not certain",
                ", ".join(elsewhere),
            )
            return Finding(
                State.CONFLICT, reason, path=elsewhere[0], expected=f"{edit.anchor!r} in one file", found=found
            )
        if not elsewhere:
            reason = edit.missing or f"this SGLang has no {edit.anchor!r}"
            return Finding(State.ABSENT, reason, path=there[0] if there else None)
        return elsewhere[0]

    def _files(self, paths: list[str]) -> tuple[tuple[str, str], ...]:
        return tuple((path, sha256(data)) for path in paths if (data := self.text(path)) is not None)

    def digest(self) -> str:
        """The digest of what is applied now, over the bytes now; see `manifest.digest`."""
        whole = sorted((one for one in self.manifest.applications if one.id in self.whole), key=lambda one: one.id)
        return digest(
            self.target.version,
            [
                {
                    "id": one.id,
                    "revision": one.revision,
                    "params": dict(one.params),
                    "files": dict(self._files([file.path for file in one.files])),
                }
                for one in whole
            ],
        )


_GRAVITY = [State.ABSENT, State.UPSTREAM, State.PARTIAL, State.CONFLICT]
