"""What was asked of the server."""

from __future__ import annotations

from typing import Any

import msgspec


class Logged(msgspec.Struct, kw_only=True):
    """One request. `status` is 0 until the answer starts, and where none was given."""

    time_s: float
    method: str
    path: str
    query: dict[str, str]
    verb: str  # get, list, watch, create, update, patch, delete; "" where it is no resource
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    user: str = ""
    user_agent: str = ""
    content_type: str = ""
    accept: str = ""
    body_bytes: int = 0
    body: Any = None  # decoded; None where there was none, or it is long ago
    status: int = 0
    answer_bytes: int = 0
    dropped: tuple[str, ...] = ()  # fields of the body that the schema does not know
    changed: bool = False  # something was stored or removed
    faults: tuple[str, ...] = ()  # names of the faults that struck
    connection: int = 0  # the client's port: the same number, the same connection
    took_s: float = 0.0

    @property
    def resource_path(self) -> str:
        """Return the resource as RBAC names it, with its subresource."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


MAX_LOGGED = 50_000
MAX_BODIES = 1_000  # of the latest requests; older ones keep the rest
