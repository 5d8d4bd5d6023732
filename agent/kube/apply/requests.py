"""Calls that read and write one object."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.errors import ParseError
from agent.kube.base import APPLY, MERGE, Request, Resource

MANAGER = "xpu-agent"  # the one field manager of all our writes
Json = Mapping[str, object]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One object at the server, and how long a call about it may take."""

    resource: Resource
    name: str
    namespace: str = ""
    subresource: str = ""  # of writes; reads and deletions are of the whole object
    deadline_s: float = 10.0

    def _path(self, subresource: str = "") -> str:
        return self.resource.path(self.name, self.namespace, subresource)

    def read(self) -> Request:
        """Ask for the object as it is now."""
        return Request(method="GET", path=self._path(), deadline_s=self.deadline_s)

    def apply(self, body: Json, *, force: bool = False) -> Request:
        """Say all that is ours of the object; it is made if it is not there.

        Without `force` a field of somebody else with another value is a 409.
        """
        query = (("fieldManager", MANAGER),)
        return Request(
            method="PATCH",
            path=self._path(self.subresource),
            query=(*query, ("force", "true")) if force else query,
            body=msgspec.json.encode(body),
            content_type=APPLY,
            deadline_s=self.deadline_s,
        )

    def merge(self, patch: Json, *, subresource: str | None = None) -> Request:
        """Change what the patch names; `None` removes a member, lists are replaced whole."""
        return Request(
            method="PATCH",
            path=self._path(self.subresource if subresource is None else subresource),
            query=(("fieldManager", MANAGER),),
            body=msgspec.json.encode(patch),
            content_type=MERGE,
            deadline_s=self.deadline_s,
        )

    def create(self, body: Json) -> Request:
        """Make the object; one that is there is a 409."""
        return Request(
            method="POST",
            path=self.resource.path(namespace=self.namespace),
            query=(("fieldManager", MANAGER),),
            body=msgspec.json.encode(body),
            deadline_s=self.deadline_s,
        )

    def delete(self, uid: str, version: str) -> Request:
        """Remove exactly the object that was seen: another one, or a newer state, is a 409."""
        preconditions = {"uid": uid, "resourceVersion": version}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        return Request(
            method="DELETE",
            path=self._path(),
            body=msgspec.json.encode(options),
            deadline_s=self.deadline_s,
        )


def decode_object(body: bytes) -> dict[str, object]:
    """Return an object as JSON data; raise `ParseError` for anything else."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ParseError("object of the API server", str(error)) from error
    if not isinstance(found, dict):
        raise ParseError("object of the API server", type(found).__name__)
    return found
