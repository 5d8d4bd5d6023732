"""Pages of lists and lines of streams, decoded straight into what is read of the objects.

A page is decoded in one go; only one that holds something odd is taken apart, so that the odd
object costs itself only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import GenericAlias
from typing import Final, Generic, Protocol, TypeVar, cast

import msgspec

from agent.kube.base import Resource
from agent.kube.errors import ApiError, BadAnswer
from agent.kube.watch.state import Event, Failure, Why
from agent.kube.watch.view import Found
from agent.model.foreign.text import mended

MAX_RETRY_AFTER_S = 300.0

_EXPIRED: Final = ("Expired", "Gone")
_TOO_LARGE = "ResourceVersionTooLarge"  # a cause of a 504: the server has not come so far
_BY_CODE = {403: Why.FORBIDDEN, 404: Why.ABSENT, 400: Why.REFUSED, 422: Why.REFUSED}
_BROKEN = (msgspec.MsgspecError, UnicodeError, RecursionError)


class Metadata(Protocol):
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


class Body(Protocol):
    """A struct that msgspec decodes from an object's JSON."""

    @property
    def metadata(self) -> Metadata:
        """Who it is."""
        ...


W = TypeVar("W", bound=Body)
T = TypeVar("T")


class Kind(msgspec.Struct, Generic[W, T], frozen=True, kw_only=True):
    """How objects of one kind are read: into `wire`, and from there into a value."""

    resource: Resource
    wire: type[W]
    make: Callable[[W], T]  # raises `ParseError` for what cannot be used
    selected_by: str = "metadata.name"  # the field that holds this node's name
    version: Callable[[], str] | None = (
        None  # of the API, where servers differ; None: the resource's
    )

    def of_node(self, name: str) -> str:
        """Return the field selector of what belongs to a node."""
        return f"{self.selected_by}={name}"


class ListPage(msgspec.Struct, Generic[W], frozen=True, kw_only=True):
    """One page. `nameless` says why, for each object of which not even the name can be read."""

    version: str
    token: str
    objects: list[Found[W]]
    nameless: list[str] = []


class Line(msgspec.Struct, Generic[W], frozen=True, kw_only=True):
    """One line: an event with its object, if it has one, or the server's word that it is over."""

    event: Event
    found: Found[W] | None = None
    nameless: str = ""
    failure: Failure | None = None
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


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _HeadMeta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Head(msgspec.Struct):
    metadata: _HeadMeta


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: float | None = None


class _Status(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


_RAW_PAGE = msgspec.json.Decoder(_RawPage)
_LINE = msgspec.json.Decoder(_Line)
_HEAD = msgspec.json.Decoder(_Head)
_STATUS = msgspec.json.Decoder(_Status)


class Reader(Generic[W]):
    """Decodes one kind of object. `what` is that of `BadAnswer`."""

    def __init__(self, what: str, wire: type[W]) -> None:
        """Prepare the decoders."""
        self._what = what
        page = cast("type[_TypedPage[W]]", GenericAlias(_TypedPage, (wire,)))
        self._page = msgspec.json.Decoder(page)
        self._object = msgspec.json.Decoder(wire)

    def page(self, data: bytes) -> ListPage[W]:
        """Return a page; raise `BadAnswer` for what is none."""
        try:
            found = self._page.decode(data)
        except _BROKEN:
            return self._apart(mended(data))
        objects = [_found(body) for body in found.items or ()]
        return self._checked(found.metadata, objects, [])

    def line(self, data: bytes) -> Line[W]:
        """Return a line of a stream; raise `BadAnswer` for what is none."""
        line = self._line(data)
        if line.type == "ERROR":
            return _error(line.object)
        try:
            if line.type in ("ADDED", "MODIFIED"):
                found = self._found(line.object)
            else:
                found = _head(line.object, "")
        except _BROKEN as error:
            return Line(event=Event(type=line.type, version=""), nameless=str(error)[:120])
        return Line(event=Event(type=line.type, version=found.version), found=found)

    def _line(self, data: bytes) -> _Line:
        with contextlib.suppress(*_BROKEN):
            return _LINE.decode(data)
        try:
            return _LINE.decode(mended(data))
        except _BROKEN as error:
            raise BadAnswer(self._what, f"no event: {error}") from error

    def _apart(self, data: bytes) -> ListPage[W]:
        try:
            raw = _RAW_PAGE.decode(data)
        except _BROKEN as error:
            raise BadAnswer(self._what, f"no list: {error}") from error
        objects, nameless = [], []
        for item in raw.items or ():
            try:
                objects.append(self._found(item))
            except _BROKEN as error:
                nameless.append(str(error)[:120])
        return self._checked(raw.metadata, objects, nameless)

    def _checked(
        self, meta: _ListMeta, objects: list[Found[W]], nameless: list[str]
    ) -> ListPage[W]:
        if not meta.resource_version:
            raise BadAnswer(self._what, "a list without resourceVersion")
        return ListPage(
            version=meta.resource_version, token=meta.token, objects=objects, nameless=nameless
        )

    def _found(self, data: msgspec.Raw) -> Found[W]:
        try:
            return _found(self._object.decode(data))
        except _BROKEN as error:
            return _head(data, f"{type(error).__name__}: {str(error)[:120]}")


def failure_of(error: ApiError, lasted_s: float = 0.0) -> Failure:
    """Say what an error of the API asks for."""
    why = _why(error.code, error.reason)
    if isinstance(error, BadAnswer):
        why = Why.ANSWERED
    elif any(cause.reason == _TOO_LARGE for cause in error.causes):
        why = Why.REFUSED
    return Failure(why=why, retry_after_s=error.retry_after_s, lasted_s=lasted_s)


def _why(code: int | None, reason: str) -> Why:
    if code is None:
        return Why.UNREACHABLE
    if code == 410 or reason in _EXPIRED:
        return Why.EXPIRED
    return _BY_CODE.get(code, Why.ANSWERED)


def _error(data: msgspec.Raw) -> Line[W]:
    """Read the Status of an ERROR; one that cannot be read is an error all the same."""
    try:
        status = _STATUS.decode(data)
    except _BROKEN:
        status = _Status()
    asked_s = status.details.retry_after_seconds if status.details else None
    failure = Failure(
        why=_why(status.code, status.reason),
        retry_after_s=None if asked_s is None else max(0.0, min(asked_s, MAX_RETRY_AFTER_S)),
    )
    error = f"{status.code} {status.reason}: {status.message[:200]}"
    return Line(event=Event(type="ERROR", version=""), failure=failure, error=error)


def _found(body: W) -> Found[W]:
    meta = body.metadata
    key = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
    return Found(key=key, uid=meta.uid, version=meta.resource_version, body=body)


def _head(data: msgspec.Raw, error: str) -> Found[W]:
    meta = _HEAD.decode(data).metadata
    key = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
    return Found(key=key, uid=meta.uid, version=meta.resource_version, body=None, error=error)
