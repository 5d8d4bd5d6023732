"""Decodes pages of lists and lines of watch streams.

A page is decoded at once. If that fails, its objects are decoded one by one, so that only an
invalid object is lost.
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
from agent.wire_formats.json_values import JSON_ERRORS, repair_json

MAX_RETRY_AFTER_S = 300.0

_EXPIRED: Final = ("Expired", "Gone")
_TOO_LARGE = "ResourceVersionTooLarge"  # a cause of a 504: the server has not reached that version
_BY_CODE = {
    403: WatchFailureReason.FORBIDDEN,
    404: WatchFailureReason.ABSENT,
    400: WatchFailureReason.REFUSED,
    422: WatchFailureReason.REFUSED,
    401: WatchFailureReason.UNAVAILABLE,
    429: WatchFailureReason.UNAVAILABLE,
    502: WatchFailureReason.UNAVAILABLE,
    503: WatchFailureReason.UNAVAILABLE,
}
_BROKEN = JSON_ERRORS


class HasObjectMeta(Protocol):
    """The metadata that the watch itself reads."""

    @property
    def name(self) -> str:
        """Return the object's name."""
        ...

    @property
    def namespace(self) -> str:
        """Return the namespace; empty for cluster-scoped objects."""
        ...

    @property
    def uid(self) -> str:
        """Return the uid, which differs for a later object of the same name."""
        ...

    @property
    def resource_version(self) -> str:
        """Return the version, an opaque text."""
        ...


class WatchedObject(Protocol):
    """A struct that msgspec decodes from an object's JSON."""

    @property
    def metadata(self) -> HasObjectMeta:
        """Return the object's metadata."""
        ...


W = TypeVar("W", bound=WatchedObject)
T = TypeVar("T")


class WatchedKind(msgspec.Struct, Generic[W, T], frozen=True, kw_only=True):
    """How objects of one kind are decoded into `body_type`, and converted into a value."""

    resource: ApiResource
    body_type: type[W]
    convert: Callable[[W], T]  # raises `ParseError` for an object that cannot be used
    node_field: str = "metadata.name"  # the field that holds this node's name
    version: Callable[[], str] | None = (
        None  # API version, where servers differ; None: that of `resource`
    )

    def node_selector(self, name: str) -> str:
        """Return the field selector for the objects of a node."""
        return f"{self.node_field}={name}"


class ListPage(msgspec.Struct, Generic[W], frozen=True, kw_only=True):
    """One page. `unreadable` has an error for each object without a readable name."""

    version: str
    token: str
    objects: list[DecodedObject[W]]
    unreadable: list[str] = []


class WatchLine(msgspec.Struct, Generic[W], frozen=True, kw_only=True):
    """One line: an event with its object, if it has one, or the error that ends the stream."""

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
    """Decodes one kind of object. `what` describes the request for `BadResponse`."""

    def __init__(self, description: str, wire: type[W]) -> None:
        """Build the decoders."""
        self._description = description
        page = cast("type[_TypedPage[W]]", GenericAlias(_TypedPage, (wire,)))
        self._page = msgspec.json.Decoder(page)
        self._object = msgspec.json.Decoder(wire)

    def decode_page(self, data: bytes) -> ListPage[W]:
        """Return a page; raise `BadResponse` if it is invalid."""
        try:
            page = self._page.decode(data)
        except _BROKEN:
            return self._decode_one_by_one(repair_json(data))
        objects = [_with_identity(body) for body in page.items or ()]
        return self._list_page(page.metadata, objects, [])

    def decode_line(self, data: bytes) -> WatchLine[W]:
        """Return a line of a stream; raise `BadResponse` if it is invalid."""
        line = self._decode_raw_line(data)
        if line.type == "ERROR":
            return _decode_error(line.object)
        try:
            if line.type in ("ADDED", "MODIFIED"):
                item = self._decode_object(line.object)
            else:
                item = _identity_only(line.object, "")
        except _BROKEN as error:
            return WatchLine(
                event=WatchEvent(type=line.type, version=""), unreadable=str(error)[:120]
            )
        return WatchLine(event=WatchEvent(type=line.type, version=item.version), item=item)

    def _decode_raw_line(self, data: bytes) -> _WatchLineJson:
        with contextlib.suppress(*_BROKEN):
            return _LINE.decode(data)
        try:
            return _LINE.decode(repair_json(data))
        except _BROKEN as error:
            raise BadResponse(self._description, f"no event: {error}") from error

    def _decode_one_by_one(self, data: bytes) -> ListPage[W]:
        try:
            raw = _RAW_PAGE.decode(data)
        except _BROKEN as error:
            raise BadResponse(self._description, f"no list: {error}") from error
        objects, unreadable = [], []
        for item in raw.items or ():
            try:
                objects.append(self._decode_object(item))
            except _BROKEN as error:
                unreadable.append(str(error)[:120])
        return self._list_page(raw.metadata, objects, unreadable)

    def _list_page(
        self, meta: _ListMeta, objects: list[DecodedObject[W]], unreadable: list[str]
    ) -> ListPage[W]:
        if not meta.resource_version:
            raise BadResponse(self._description, "a list without resourceVersion")
        return ListPage(
            version=meta.resource_version, token=meta.token, objects=objects, unreadable=unreadable
        )

    def _decode_object(self, data: msgspec.Raw) -> DecodedObject[W]:
        try:
            return _with_identity(self._object.decode(data))
        except _BROKEN as error:
            return _identity_only(data, f"{type(error).__name__}: {str(error)[:120]}")


def classify_failure(error: ApiError, lasted_s: float = 0.0) -> WatchFailure:
    """Return what an error of the API means for the watch."""
    reason = _failure_reason(error.code, error.reason)
    if isinstance(error, BadResponse):
        reason = WatchFailureReason.ANSWERED
    elif any(cause.reason == _TOO_LARGE for cause in error.causes):
        reason = WatchFailureReason.REFUSED
    return WatchFailure(reason=reason, retry_after_s=error.retry_after_s, lasted_s=lasted_s)


def _failure_reason(code: int | None, reason: str) -> WatchFailureReason:
    if code is None:
        return WatchFailureReason.UNREACHABLE
    if code == 410 or reason in _EXPIRED:
        return WatchFailureReason.EXPIRED
    return _BY_CODE.get(code, WatchFailureReason.ANSWERED)


def _decode_error(data: msgspec.Raw) -> WatchLine[W]:
    """Return the failure of an ERROR line; an invalid Status is a failure too."""
    try:
        status = _STATUS.decode(data)
    except _BROKEN:
        status = _StatusJson()
    retry_after_s = status.details.retry_after_seconds if status.details else None
    failure = WatchFailure(
        reason=_failure_reason(status.code, status.reason),
        retry_after_s=None
        if retry_after_s is None
        else max(0.0, min(retry_after_s, MAX_RETRY_AFTER_S)),
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
