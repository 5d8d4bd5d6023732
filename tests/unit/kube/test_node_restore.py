"""The rollout that restores all nodes: retries, progress, reasons of what is not restored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from agent.clock import ManualClock
from agent.kube.api import ApiRequest, ApiResponse, ObjectRequests
from agent.kube.errors import ApiError, Conflict, Forbidden, Unreachable
from agent.kube.node_restore import (
    DAEMON_SETS,
    MAX_ATTEMPTS,
    POLL_S,
    NotTheAgent,
    list_unrestored_nodes,
    parse_daemon_set_name,
    progress_of,
    restore_patch,
    start_restore,
    unrestored_nodes,
    wait_until_restored,
)

REQUESTS = ObjectRequests(resource=DAEMON_SETS, name="xpu-agent", namespace="xpu-agent")
Answer = dict[str, Any] | ApiError


class Answers:
    """An API server that gives these answers, one after the other; the last one again and again."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = list(answers)
        self.requests: list[ApiRequest] = []

    async def call(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, ApiError):
            raise answer
        return ApiResponse(status=200, headers={}, body=json.dumps(answer).encode())


def daemon_set(*, generation: int = 2, **status: int) -> dict[str, Any]:
    container = {"name": "agent", "image": "i", "args": ["run"], "ports": [{"containerPort": 1}]}
    return {
        "metadata": {"generation": generation, "resourceVersion": "7"},
        "spec": {
            "selector": {"matchLabels": {"b": "2", "a": "1"}},
            "template": {"spec": {"containers": [container]}},
        },
        "status": status,
    }


def waited(answers: Sequence[Answer], timeout_s: float = 3600.0) -> tuple[bool, list[str]]:
    clock = ManualClock()
    lines: list[str] = []

    async def sleep(seconds: float) -> None:
        assert seconds == POLL_S
        clock.advance(seconds)

    async def wait() -> bool:
        api: Any = Answers(answers)
        return await wait_until_restored(api, REQUESTS, clock, timeout_s, lines.append, sleep)

    return asyncio.run(wait()), lines


@pytest.mark.parametrize(
    ("status", "done"),
    [
        ({"observedGeneration": 1}, False),  # zero of zero nodes, as far as the status knows
        ({"observedGeneration": 2}, True),  # a cluster without nodes for it
        (
            {
                "observedGeneration": 2,
                "desiredNumberScheduled": 2,
                "updatedNumberScheduled": 1,
                "numberReady": 2,  # one of them is an agent that still runs
            },
            False,
        ),
        (
            {
                "observedGeneration": 2,
                "desiredNumberScheduled": 2,
                "updatedNumberScheduled": 2,
                "numberReady": 1,
            },
            False,
        ),
        (
            {
                "observedGeneration": 2,
                "desiredNumberScheduled": 2,
                "updatedNumberScheduled": 2,
                "numberReady": 2,
            },
            True,
        ),
    ],
)
def test_it_is_done_when_every_node_has_a_new_pod_that_is_ready(
    status: dict[str, int], *, done: bool
) -> None:
    assert progress_of(json.dumps(daemon_set(**status)).encode()).is_done is done


def test_while_the_server_is_away_it_waits_and_reports_each_change_once() -> None:
    away = Unreachable("GET x", "connection refused")
    half = daemon_set(
        observedGeneration=2, desiredNumberScheduled=2, updatedNumberScheduled=2, numberReady=1
    )
    full = daemon_set(
        observedGeneration=2, desiredNumberScheduled=2, updatedNumberScheduled=2, numberReady=2
    )
    done, lines = waited([half, half, away, away, half, full])
    assert done
    assert [line[:6] for line in lines] == ["1 of 2", "GET x:", "1 of 2", "2 of 2"]


def test_it_gives_up_after_the_time_and_at_once_without_the_right() -> None:
    assert waited([daemon_set(observedGeneration=1)], timeout_s=5)[0] is False
    with pytest.raises(Forbidden):
        waited([Forbidden("GET x", "no", code=403)])


def test_a_patch_that_meets_another_writer_is_made_again_from_what_is_there_now() -> None:
    conflict = Conflict("PATCH x", "the object has been modified", code=409)
    api: Any = Answers([daemon_set(), conflict, daemon_set(generation=3), {}])
    asyncio.run(start_restore(api, REQUESTS))
    assert [request.method for request in api.requests] == ["GET", "PATCH", "GET", "PATCH"]
    patch = json.loads(api.requests[-1].body)
    assert patch["metadata"] == {"resourceVersion": "7"}
    again: list[Answer] = [daemon_set(), conflict]
    api = Answers(again * MAX_ATTEMPTS)
    with pytest.raises(Conflict):
        asyncio.run(start_restore(api, REQUESTS))


def test_a_daemon_set_without_the_agent_is_not_touched() -> None:
    other = daemon_set()
    other["spec"]["template"]["spec"]["containers"][0]["name"] = "web"
    odd: tuple[dict[str, Any], ...] = ({}, {"spec": None}, {"spec": {"template": {"spec": 1}}})
    for body in (other, *odd):
        with pytest.raises(NotTheAgent):
            restore_patch(body)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({}, "its pod has not started"),
        (
            {"initContainerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]},
            "ErrImagePull",
        ),
        ({"initContainerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}, "exit status 3"),
        (
            {
                "initContainerStatuses": [
                    {"lastState": {"terminated": {"exitCode": 1, "message": "a\nb\n"}}}
                ]
            },
            "b",
        ),
    ],
)
def test_a_node_that_is_not_restored_has_a_reason(status: dict[str, Any], message: str) -> None:
    pods = {"items": [{"spec": {"nodeName": "n"}, "status": status}]}
    (node,) = unrestored_nodes(json.dumps(pods).encode())
    assert str(node) == f"n: {message}"


def test_pods_are_found_by_the_labels_of_the_daemon_set() -> None:
    api: Any = Answers([{"items": []}])
    assert asyncio.run(list_unrestored_nodes(api, "ns", daemon_set())) == ()
    (request,) = api.requests
    assert (request.path, dict(request.query)) == (
        "/api/v1/namespaces/ns/pods",
        {"labelSelector": "a=1,b=2"},
    )
    api = Answers([Forbidden("GET pods", "no", code=403)])
    assert asyncio.run(list_unrestored_nodes(api, "ns", daemon_set())) == ()


@pytest.mark.parametrize("text", ["", "a", "a/", "/b", "a/b/c", "a b/c", "a/../b", "a/b?c"])
def test_a_name_that_would_be_another_path_is_none(text: str) -> None:
    assert parse_daemon_set_name(text) is None
    assert parse_daemon_set_name("kube-system/xpu-agent") == ("kube-system", "xpu-agent")
