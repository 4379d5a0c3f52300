"""The manifest: what the ledger says is applied, as frozen data and as JSON. It knows neither git nor the disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from patcher.errors import LedgerDamaged, LedgerTooNew
from patcher.hunks import Hunk
from patcher.patch import Params

SCHEMA = 1


@dataclass(frozen=True)
class AppliedFile:
    """What one applied patch changed in one file."""

    path: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Application:
    """One applied patch: its revision, the parameters that were asked for and those that resulted, its changes.

    `sglang` is the version of SGLang that it was applied to.
    """

    id: str
    revision: int
    summary: str
    profile: str | None
    overrides: Params
    params: Params
    files: tuple[AppliedFile, ...]
    sglang: str | None = None

    def hunks_in(self, path: str) -> tuple[Hunk, ...]:
        """Its hunks in one file."""
        return next((file.hunks for file in self.files if file.path == path), ())


@dataclass(frozen=True)
class FileRecord:
    """One patched file: sha256 (hexadecimal) and modification time of its base, sha256 of its patched bytes.

    `base_mtime_ns` is nanoseconds since the epoch; a revert gives it back, so that bytecode of the base is valid again.
    `local_changes` says whether the base differed from what upstream shipped (None: not known). `link` is the text of
    the symbolic link that stood there before, if one did.
    """

    path: str
    base_sha256: str
    base_mtime_ns: int
    sha256: str
    local_changes: bool | None
    link: str | None = None


@dataclass(frozen=True)
class Manifest:
    """Everything that is applied to one target, and the SGLang that it was applied to."""

    version: str | None
    applications: tuple[Application, ...] = ()
    files: tuple[FileRecord, ...] = ()

    def application(self, patch_id: str) -> Application | None:
        """The application of a patch, or None."""
        return next((one for one in self.applications if one.id == patch_id), None)

    def file(self, path: str) -> FileRecord | None:
        """The record of a file, or None."""
        return next((one for one in self.files if one.path == path), None)

    def to_json(self) -> str:
        """The manifest as indented JSON, stable for equal manifests."""
        document = {"schema": SCHEMA, **asdict(self)}
        return json.dumps(document, indent=1, default=_text, sort_keys=True) + "\n"


EMPTY = Manifest(version=None)


def from_json(text: str | bytes, where: str) -> Manifest:
    """The manifest in a JSON text; raises LedgerDamaged, naming `where`, if it is none."""
    try:
        document = json.loads(text, object_hook=_bytes)
        if document["schema"] != SCHEMA:
            raise LedgerTooNew(
                f"the record has schema {document['schema']}, which this version does not know",
                where=where,
                expected=f"schema {SCHEMA}",
                hint="upgrade sglang-patch: pip install --upgrade sglang-patch",
            )
        return Manifest(
            version=document["version"],
            applications=tuple(_application(one) for one in document["applications"]),
            files=tuple(FileRecord(**one) for one in document["files"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerDamaged(
            "the record cannot be read",
            where=where,
            found=f"{type(error).__name__}: {error}",
            hint="sglang-patch repair",
        ) from error


def _application(fields: Mapping[str, object]) -> Application:
    files = tuple(
        AppliedFile(file["path"], tuple(Hunk(**hunk) for hunk in file["hunks"]))
        for file in fields["files"]  # type: ignore[attr-defined]
    )
    return Application(**{**fields, "files": files})  # type: ignore[arg-type]


def _text(value: object) -> object:
    """Bytes as text, losslessly: what is not UTF-8 becomes lone surrogates, which JSON escapes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    raise TypeError(f"{type(value).__name__} in a manifest")


def _bytes(fields: dict[str, object]) -> dict[str, object]:
    """The reverse of `_text` for the fields of a hunk that hold bytes."""
    for name in ("before", "after", "above", "below"):
        value = fields.get(name)
        if isinstance(value, str):
            fields[name] = value.encode("utf-8", "surrogateescape")
    return fields


def sha256(data: bytes) -> str:
    """The sha256 of some bytes, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest(version: str | None, patches: Sequence[Mapping[str, object]]) -> str:
    """The digest of a patch set: `sha256:` and one hash over the SGLang version and, per patch in order, its id,
    revision, parameters and the sha256 of each file as patched.
    """
    document = {"sglang": version, "patches": list(patches)}
    return "sha256:" + sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
