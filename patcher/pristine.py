"""What upstream shipped, known without the ledger: the wheel's RECORD, or the HEAD commit of the checkout."""

from __future__ import annotations

import base64
import csv
import hashlib
from functools import cached_property

from patcher.target import PACKAGE, Target


class Oracle:
    """Answers whether a file of the target is as it was shipped."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def is_pristine(self, relative: str, data: bytes) -> bool | None:
        """Whether these bytes are what was shipped as `relative`; None where nobody can tell."""
        if self._target.kind == "wheel":
            recorded = self._record.get(f"{PACKAGE}/{relative}")
            return None if recorded is None else recorded == _record_hash(data)
        if self._target.work_tree:
            from patcher.git import head_blob

            blob = head_blob(self._target.work_tree, self._target.path / relative)
            return None if blob is None else blob == data
        return None

    @cached_property
    def _record(self) -> dict[str, str]:
        """RECORD's `algorithm=hash` by path (https://packaging.python.org/specifications/recording-installed-packages)."""
        if self._target.dist_info is None:
            return {}
        text = (self._target.dist_info / "RECORD").read_text("utf-8", "replace")
        return {row[0]: row[1] for row in csv.reader(text.splitlines()) if len(row) > 1 and row[1]}


def _record_hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
