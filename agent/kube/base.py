"""What the rest of the agent sees of the API server: requests, answers, lines of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from agent.model.device import Pairs

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
MAX_BODY_BYTES = 16 << 20  # of one answer, and of one line of a stream; etcd takes 1.5 MB


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of object at the API server, in one version."""

    group: str  # "" is core
    version: str
    plural: str
    kind: str
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        """Return what objects carry as `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str = "", namespace: str = "", subresource: str = "") -> str:
        """Return the path of the collection, or of one object."""
        parts = ["", "apis", self.group, self.version] if self.group else ["", "api", self.version]
        if namespace:
            parts += ["namespaces", namespace]
        parts += [self.plural, *([name] if name else ()), *([subresource] if subresource else ())]
        return "/".join(parts)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call. The deadline is of the whole: connecting, sending, the last byte of the answer."""

    method: str  # GET, POST, PATCH, DELETE
    path: str
    query: Pairs = ()
    body: bytes = b""
    content_type: str = JSON
    deadline_s: float = 10.0

    def __str__(self) -> str:
        """Say what is asked, for messages."""
        return f"{self.method} {self.path}"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with a status of 2xx. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Api(Protocol):
    """The API server, authenticated. Belongs to the loop thread."""

    async def call(self, request: Request) -> Response:
        """Return the answer; raise an `ApiError` of the class that says what to do.

        A 401 was tried again once with a token read anew; nothing else is tried twice.
        """
        ...

    def stream(
        self, request: Request, idle_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Return the lines of a watch, without their ends; `deadline_s` is that of the first byte.

        A line longer than `MAX_BODY_BYTES` is a `BadAnswer`; `idle_s` seconds without a whole one,
        a reset or a broken chunk an `Unreachable`. The server closing the stream in order ends it.
        """
        ...
