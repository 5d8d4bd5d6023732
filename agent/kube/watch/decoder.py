"""Decodes pages of lists and lines of watch streams.

A page is decoded in one go; only one that holds something odd is taken apart, so that the odd
object costs itself only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import GenericAlias
from typing import Final, Generic, Protocol, TypeVar, cast

import msgspec

from agent.kube.api import ApiResource
from agent.kube.errors import ApiError, BadResponse
from agent.kube.watch.cache import DecodedObject
from agent.kube.watch.machine import WatchEvent, WatchFailure, WatchFailureReason
from agent.wire_formats.foreign_text import repair_json
from agent.wire_formats.json_values import JSON_ERRORS

MAX_RETRY_AFTER_S = 300.0

_EXPIRED: Final = ("Expired", "Gone")
_TOO_LARGE = "ResourceVersionTooLarge"  # a cause of a 504: the server has not come so far
_BY_CODE = {
    403: WatchFailureReason.FORBIDDEN,
    404: WatchFailureReason.ABSENT,
    400: WatchFailureReason.REFUSED,
    422: WatchFailureReason.REFUSED,
}
_BROKEN = JSON_ERRORS


class HasObjectMeta(Protocol):
    """What the watch itself reads of an object."""

    @property
    def name(self) -> str:
        """Of the object."""
        ...

    @property
    def namespace(self) -> str:
        """Empty for cluster-scoped ones."""
        ...

    @property
    def uid(self) -> str:
        """Of this very object, not of its namesakes."""
        ...

    @property
    def resource_version(self) -> str:
        """Opaque."""
        ...


class WatchedObject(Protocol):
    """A struct that msgspec decodes from an object's JSON."""

    @property
    def metadata(self) -> HasObjectMeta:
        """Who it is."""
        ...


W = TypeVar("W", bound=WatchedObject)
T = TypeVar("T")


class WatchedKind(msgspec.Struct, Generic[W, T], frozen=True, kw_only=True):
    """How objects of one kind are read: into `wire`, and from there into a value."""

    resource: ApiResource
    body_type: type[W]
    convert: Callable[[W], T]  # raises `ParseError` for what cannot be used
    node_field: str = "metadata.name"  # the field that holds this node's name
    version: Callable[[], str] | None = (
        None  # of the API, where servers differ; None: the resource's
    )

    def node_selector(self, name: str) -> str:
        """Return the field selector of what belongs to a node."""
        return f"{self.node_field}={name}"


class ListPage(msgspec.Struct, Generic[W], frozen=True, kw_only=True):
    """One page. `nameless` says why, for each object of which not even the name can be read."""

    version: str
    token: str
    objects: list[DecodedObject[W]]
    unreadable: list[str] = []


class WatchLine(msgspec.Struct, Generic[W], frozen=True, kw_only=True):
    """One line: an event with its object, if it has one, or the server's word that it is over."""

    event: WatchEvent
    item: DecodedObject[W] | None = None
    unreadable: str = ""
    failure: WatchFailure | None = None
    error: str = ""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str
    token: str = msgspec.field(default="", name="continue")


class _TypedPage(msgspec.Struct, Generic[W]):
    metadata: _ListMeta
    items: list[W] | None = None


class _RawPage(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _WatchLineJson(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ObjectHeadMeta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _ObjectHead(msgspec.Struct):
    metadata: _ObjectHeadMeta


class _StatusDetails(msgspec.Struct, rename="camel"):
    retry_after_seconds: float | None = None


class _StatusJson(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _StatusDetails | None = None


_RAW_PAGE = msgspec.json.Decoder(_RawPage)
_LINE = msgspec.json.Decoder(_WatchLineJson)
_HEAD = msgspec.json.Decoder(_ObjectHead)
_STATUS = msgspec.json.Decoder(_StatusJson)


class WatchDecoder(Generic[W]):
    """Decodes one kind of object. `what` is that of `BadAnswer`."""

    def __init__(self, what: str, wire: type[W]) -> None:
        """Prepare the decoders."""
        self._what = what
        page = cast("type[_TypedPage[W]]", GenericAlias(_TypedPage, (wire,)))
        self._page = msgspec.json.Decoder(page)
        self._object = msgspec.json.Decoder(wire)

    def decode_page(self, data: bytes) -> ListPage[W]:
        """Return a page; raise `BadAnswer` for what is none."""
        try:
            found = self._page.decode(data)
        except _BROKEN:
            return self._apart(repair_json(data))
        objects = [_with_identity(body) for body in found.items or ()]
        return self._checked(found.metadata, objects, [])

    def decode_line(self, data: bytes) -> WatchLine[W]:
        """Return a line of a stream; raise `BadAnswer` for what is none."""
        line = self._line(data)
        if line.type == "ERROR":
            return _decode_error(line.object)
        try:
            if line.type in ("ADDED", "MODIFIED"):
                found = self._found(line.object)
            else:
                found = _identity_only(line.object, "")
        except _BROKEN as error:
            return WatchLine(
                event=WatchEvent(type=line.type, version=""), unreadable=str(error)[:120]
            )
        return WatchLine(event=WatchEvent(type=line.type, version=found.version), item=found)

    def _line(self, data: bytes) -> _WatchLineJson:
        with contextlib.suppress(*_BROKEN):
            return _LINE.decode(data)
        try:
            return _LINE.decode(repair_json(data))
        except _BROKEN as error:
            raise BadResponse(self._what, f"no event: {error}") from error

    def _apart(self, data: bytes) -> ListPage[W]:
        try:
            raw = _RAW_PAGE.decode(data)
        except _BROKEN as error:
            raise BadResponse(self._what, f"no list: {error}") from error
        objects, nameless = [], []
        for item in raw.items or ():
            try:
                objects.append(self._found(item))
            except _BROKEN as error:
                nameless.append(str(error)[:120])
        return self._checked(raw.metadata, objects, nameless)

    def _checked(
        self, meta: _ListMeta, objects: list[DecodedObject[W]], nameless: list[str]
    ) -> ListPage[W]:
        if not meta.resource_version:
            raise BadResponse(self._what, "a list without resourceVersion")
        return ListPage(
            version=meta.resource_version, token=meta.token, objects=objects, unreadable=nameless
        )

    def _found(self, data: msgspec.Raw) -> DecodedObject[W]:
        try:
            return _with_identity(self._object.decode(data))
        except _BROKEN as error:
            return _identity_only(data, f"{type(error).__name__}: {str(error)[:120]}")


def classify_failure(error: ApiError, lasted_s: float = 0.0) -> WatchFailure:
    """Say what an error of the API asks for."""
    why = _failure_reason(error.code, error.reason)
    if isinstance(error, BadResponse):
        why = WatchFailureReason.ANSWERED
    elif any(cause.reason == _TOO_LARGE for cause in error.causes):
        why = WatchFailureReason.REFUSED
    return WatchFailure(reason=why, retry_after_s=error.retry_after_s, lasted_s=lasted_s)


def _failure_reason(code: int | None, reason: str) -> WatchFailureReason:
    if code is None:
        return WatchFailureReason.UNREACHABLE
    if code == 410 or reason in _EXPIRED:
        return WatchFailureReason.EXPIRED
    return _BY_CODE.get(code, WatchFailureReason.ANSWERED)


def _decode_error(data: msgspec.Raw) -> WatchLine[W]:
    """Read the Status of an ERROR; one that cannot be read is an error all the same."""
    try:
        status = _STATUS.decode(data)
    except _BROKEN:
        status = _StatusJson()
    asked_s = status.details.retry_after_seconds if status.details else None
    failure = WatchFailure(
        reason=_failure_reason(status.code, status.reason),
        retry_after_s=None if asked_s is None else max(0.0, min(asked_s, MAX_RETRY_AFTER_S)),
    )
    error = f"{status.code} {status.reason}: {status.message[:200]}"
    return WatchLine(event=WatchEvent(type="ERROR", version=""), failure=failure, error=error)


def _with_identity(body: W) -> DecodedObject[W]:
    meta = body.metadata
    key = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
    return DecodedObject(key=key, uid=meta.uid, version=meta.resource_version, body=body)


def _identity_only(data: msgspec.Raw, error: str) -> DecodedObject[W]:
    meta = _HEAD.decode(data).metadata
    key = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
    return DecodedObject(
        key=key, uid=meta.uid, version=meta.resource_version, body=None, error=error
    )
