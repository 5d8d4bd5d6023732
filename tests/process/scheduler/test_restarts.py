"""Replicas that are killed, and Device objects that are deleted and come back."""

from __future__ import annotations

import contextlib
import http.client
import signal
from pathlib import Path
from threading import Thread
from typing import Any

from agent.wire_formats.device_allocated import ANNOTATION
from tests.apiserver import ApiServer, Fault
from tests.patience import PATIENCE_S
from tests.process import test_scheduler
from tests.process.test_scheduler import Replica, bind, put_pod, replica

api = test_scheduler.api
CORE = "koordinator.sh/gpu-core"


def used_core(one: Replica, node: str) -> str:
    summary = one.call("GET", f"/apis/v1/nodes/{node}")[1]
    return str(summary["deviceUsed"].get(CORE, "0"))


def fitting(one: Replica, pod: Any, *nodes: str) -> list[str]:
    arguments = {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
    return list(one.call("POST", "/filter", arguments)[1]["NodeNames"])


def bind_in_vain(one: Replica, pod: Any) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        bind(one, pod, "h100-0")


def test_a_replica_that_is_killed_before_its_binding_arrives_leaves_nothing_in_use(
    api: ApiServer, tmp_path: Path
) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        lost = api.faults.add(Fault(subresource="binding", hang=True))
        pod = put_pod(api, "p", 8)
        call = Thread(target=bind_in_vain, args=(one, pod))
        call.start()
        api.wait_until(lambda: api.faults.hits(lost) == 1)
        one.process.send_signal(signal.SIGKILL)
        one.process.wait()
        call.join()
    api.delete("lease", "xpu-scheduler", "default")  # else the new one waits for its end
    with replica(api, tmp_path, "b") as other:
        other.wait_ready()
        assert used_core(other, "h100-0") == "0"
        stored = api.get("pod", "p", "default")
        assert stored is not None
        assert not stored["spec"].get("nodeName")
        assert ANNOTATION not in (stored["metadata"].get("annotations") or {})
        assert bind(other, pod, "h100-0") == (200, {"Error": ""})
        assert used_core(other, "h100-0") == "800"


def test_no_event_is_written_where_they_are_off(api: ApiServer, tmp_path: Path) -> None:
    with replica(api, tmp_path, more="events: false\n") as one:
        one.wait_ready()
        api.faults.add(Fault(subresource="binding", status=403))
        assert "403" in bind(one, put_pod(api, "p", 1), "h100-0")[1]["Error"]
        one.process.terminate()
        assert one.process.wait(PATIENCE_S) == 0
    assert api.requests(resource="events") == []


def test_a_binding_that_the_server_refuses_is_an_event_of_the_pod(
    api: ApiServer, tmp_path: Path
) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        api.faults.add(Fault(subresource="binding", status=403, message="no right"))
        error = bind(one, put_pod(api, "p", 1), "h100-0")[1]["Error"]
        api.wait_until(lambda: any(e["reason"] == "BindingRefused" for e in api.list("events")))
        (event,) = (one for one in api.list("events") if one["reason"] == "BindingRefused")
        assert (event["regarding"]["name"], event["note"]) == ("p", error)
        assert "no right" in error


def test_a_term_begins_with_lists_of_the_most_recent_state(api: ApiServer, tmp_path: Path) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        lists = {request.resource: request.query for request in api.requests(verb="list")[::-1]}
    assert lists.keys() >= {"pods", "nodes", "devices", "noderesourcetopologies", "reservations"}
    for resource, query in lists.items():
        assert query.get("resourceVersion", "") == "", resource  # 0: from a cache, perhaps old


def test_no_running_pods_share_is_offered_while_its_device_object_is_away_and_back(
    api: ApiServer, tmp_path: Path
) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        assert bind(one, put_pod(api, "first", 8), "h100-0") == (200, {"Error": ""})
        other = put_pod(api, "other", 1)
        device = api.get("device", "h100-0")
        assert device is not None
        healthy = {name: device[name] for name in ("apiVersion", "kind", "spec")}
        metadata = {key: device["metadata"][key] for key in ("name", "labels", "annotations")}
        api.delete("device", "h100-0")
        free = 'xpu_scheduler_device_free{node="h100-0",type="gpu"'

        def is_listed() -> bool:
            return free in one.call("GET", "/metrics")[1]

        test_scheduler.wait(lambda: not is_listed())
        assert fitting(one, other, "h100-0") == []
        api.put({**healthy, "metadata": metadata})
        test_scheduler.wait(is_listed)
        assert fitting(one, other, "h100-0", "a100-0") == ["a100-0"]
        assert used_core(one, "h100-0") == "800"
