"""What a failed call means for an object, and the event that reports it."""

from __future__ import annotations

import msgspec

from agent.kube.errors import (
    ApiError,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    TooLarge,
)
from agent.snapshot.publications import WriterPhase

CONFLICT = "WriteConflict"
TAKEN_OVER = "WriteTakenOver"
UNDONE = "WriteUndone"
FORBIDDEN = "WriteForbidden"
REFUSED = "WriteRefused"
NO_RESOURCE = "ResourceMissing"
NOT_KEPT = "FieldsNotKept"
ONE_WRITER = (
    "Only one program should write these fields: stop the other one (for koordlet see "
    "docs/cluster.md, Coming from koordlet), or switch this agent's off (publish.device, "
    "publish.node_metric, publish.node_resource_topology)"
)
MAX_CAUSES = 8  # named in a message

RECOVERABLE_REASONS = (FORBIDDEN, REFUSED, NO_RESOURCE)  # reported again if they return


class WriteFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The reaction to a failure.

    Without a `reason` no event is reported: the failure is temporary.
    """

    phase: WriterPhase
    message: str
    reason: str = ""
    key: str = ""  # identifies the failure if the server's text differs each time
    slow: bool = False  # retry after the slow pause instead of the back-off
    until_content: bool = False  # retry at once for other content


def classify_write_error(error: ApiError, resource: str) -> WriteFailure:
    """Return the reaction to a failure that repeating with other fields cannot solve."""
    if isinstance(error, Forbidden):
        by_rbac = " cannot " in str(
            error
        )  # else an admission webhook refused it, with its own text
        message = f"{error}; grant it in the agent's ClusterRole" if by_rbac else str(error)
        return WriteFailure(
            phase=WriterPhase.FORBIDDEN, message=message, reason=FORBIDDEN, key=FORBIDDEN, slow=True
        )
    if isinstance(error, NotFound):
        message = f"the server has no {resource}: its CRD is not installed; the rest goes on"
        return WriteFailure(
            phase=WriterPhase.ABSENT, message=message, reason=NO_RESOURCE, slow=True
        )
    if isinstance(error, Invalid | TooLarge) or is_schema_mismatch(error):
        fields = ", ".join(
            dict.fromkeys(cause.field for cause in error.causes[:MAX_CAUSES] if cause.field)
        )
        message = (
            f"{error} (fields: {fields})" if fields and fields not in str(error) else str(error)
        )
        return WriteFailure(
            phase=WriterPhase.REFUSED,
            message=message,
            reason=REFUSED,
            key=f"{error.code} {fields}",
            slow=True,
            until_content=True,
        )
    return WriteFailure(phase=WriterPhase.PENDING, message=str(error))


def may_name_fields(error: ApiError) -> bool:
    """Return whether the message may name fields that the schema of the server lacks."""
    return isinstance(error, Invalid | ServerError)


def is_schema_mismatch(error: ApiError) -> bool:
    """Return whether a server-side apply failed because the schema lacks a field of the body."""
    return may_name_fields(error) and "typed patch object" in str(error)
