"""Evicts pods through the API server (`policy/v1` Eviction), which respects disruption budgets."""

from __future__ import annotations

from typing import Protocol

import msgspec

from agent.kube.api import ApiClient, ApiRequest
from agent.kube.errors import (
    ApiError,
    BadResponse,
    Conflict,
    NotFound,
    ServerError,
    Throttled,
    Unreachable,
)
from agent.kube.resources import PODS
from agent.snapshot.cluster import WritePermission
from agent.snapshot.eviction import EvictionOutcome, EvictionRequest, EvictionResult

EVICTION = "eviction"  # subresource of a pod
API_VERSION, KIND = "policy/v1", "Eviction"
DISRUPTION_BUDGET = "DisruptionBudget"  # cause of a 429
UID_PRECONDITION = "UID in precondition"  # in the message of a 409


class PermissionSource(Protocol):
    """Knows whether the Node of this name is this machine."""

    def write_permission(self) -> WritePermission:
        """Return whether anything may be written for the Node now."""
        ...


class PodEvictor:
    """Requests evictions one at a time. Belongs to the loop thread."""

    def __init__(
        self, api: ApiClient, permissions: PermissionSource, deadline_s: float = 10.0
    ) -> None:
        """No pod is evicted before `permissions` says that the Node is this machine."""
        self._api = api
        self._permissions = permissions
        self._deadline_s = deadline_s

    async def evict(self, request: EvictionRequest) -> EvictionResult:
        """Request the eviction of this very pod, with its own grace period; raise nothing."""
        permission = self._permissions.write_permission()
        if not permission.is_allowed:
            outcome = EvictionOutcome.REFUSED
            return EvictionResult(request=request, outcome=outcome, message=permission.message)
        try:
            response = await self._api.call(eviction_request(request, self._deadline_s))
        except ApiError as error:
            return EvictionResult(
                request=request,
                outcome=outcome_of_error(error),
                message=str(error),
                retry_after_s=error.retry_after_s,
            )
        failure = failure_in(response.body)
        if failure:
            outcome = EvictionOutcome.BLOCKED
            return EvictionResult(request=request, outcome=outcome, message=failure)
        return EvictionResult(request=request, outcome=EvictionOutcome.EVICTED)


def eviction_request(request: EvictionRequest, deadline_s: float) -> ApiRequest:
    """Return the call. The uid is a precondition: another pod of that name is not evicted."""
    pod = request.pod
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
    return ApiRequest(
        method="POST",
        path=PODS.path(pod.name, pod.namespace, EVICTION),
        body=msgspec.json.encode(body),
        deadline_s=deadline_s,
    )


class _Status(msgspec.Struct):
    status: str = ""
    message: str = ""


def failure_in(body: bytes) -> str:
    """Return why a response of 2xx is a refusal; empty if it is none.

    The API server answers 201 with a failed Status for a pod that has several disruption budgets.
    """
    try:
        status = msgspec.json.decode(body, type=_Status)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""
    return status.message or "the API server refuses" if status.status == "Failure" else ""


def outcome_of_error(error: ApiError) -> EvictionOutcome:
    """Return what an error means for the pod."""
    if isinstance(error, NotFound):
        return EvictionOutcome.GONE
    if isinstance(error, Conflict):  # another pod has the name, or the pod changed meanwhile
        is_other = UID_PRECONDITION in str(error)
        return EvictionOutcome.GONE if is_other else EvictionOutcome.REFUSED
    if isinstance(error, Throttled):
        is_budget = any(cause.reason == DISRUPTION_BUDGET for cause in error.causes)
        return EvictionOutcome.BLOCKED if is_budget else EvictionOutcome.THROTTLED
    if isinstance(error, (ServerError, Unreachable, BadResponse)):
        return EvictionOutcome.UNKNOWN  # the pod may be deleted already
    return EvictionOutcome.REFUSED
