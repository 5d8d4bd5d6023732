"""What is read of every object's metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from agent.errors import ParseError
from agent.model.device import Pairs

MAX_PAIRS_CHARS = 512 * 1024  # Kubernetes' limit of all annotations, twice

_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,127}")


class Metadata(msgspec.Struct, rename="camel", kw_only=True):
    """`metadata` of a cluster-scoped object."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None


class LabelledMetadata(Metadata, rename="camel", kw_only=True):
    """The same, of an object whose labels and annotations are read."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


def checked_uid(uid: str) -> str:
    """Return a uid that may be repeated in objects of ours; raise `ParseError` for any other."""
    if not _UID.fullmatch(uid):
        raise ParseError("uid", uid)
    return uid


def pairs(what: str, found: Mapping[str, str] | None) -> Pairs:
    """Return labels or annotations in order; raise `ParseError` when they are far too many."""
    found = found or {}
    if sum(map(len, found)) + sum(map(len, found.values())) > MAX_PAIRS_CHARS:
        raise ParseError(f"{what}: more than {MAX_PAIRS_CHARS} characters", "")
    return tuple(sorted(found.items()))
