"""The strict kubelet asks as the real one did, call by call, and refuses in its words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.deviceplugin.resources import KubeletDevice, KubeletResource
from agent.snapshot.node import NodeSnapshot
from tests.captures import SHARED
from tests.fault.deviceplugin.stage import Stage, Table, on_stage
from tests.kubelet.admission import Container, Kind, NotAdmitted

RECORDED = SHARED / "oracle" / "kubelet-device-manager.json"
pytestmark = pytest.mark.skipif(
    not RECORDED.is_file(), reason="no record of a real kubelet: ../shared/oracle is not there"
)
A = "example.com/a"
IDS = ("a0", "a1", "a2", "a3")
Call = tuple[str, int, int, int]  # method, ids to choose from, ids to reuse, ids wanted


def container_of(name: str, count: int, kind: Kind = Kind.MAIN) -> Container:
    return Container(name, {A: count}, kind)


PODS = {
    "init-sidecar-main": (
        container_of("ini0", 2, Kind.INIT),
        container_of("side", 1, Kind.SIDECAR),
        container_of("ini1", 1, Kind.INIT),
        container_of("main", 1),
        container_of("main2", 1),
    ),
    "init-bigger-than-main": (
        container_of("ini0", 4, Kind.INIT),
        container_of("ini1", 3, Kind.INIT),
        container_of("main", 2),
    ),
    "init-smaller-than-main": (container_of("ini0", 1, Kind.INIT), container_of("main", 3)),
    "preferred-all": (container_of("main", 4),),
}


class Recording(Table):
    """Prefers the last ids, as the plug-in of the record did, and notes what it was asked."""

    def __init__(self) -> None:
        super().__init__(
            KubeletResource(name=A, vendor="a", devices=tuple(KubeletDevice(id=i) for i in IDS))
        )
        self.calls: list[Call] = []

    def select_preferred(
        self,
        resource: str,
        available: tuple[str, ...],
        required: tuple[str, ...],
        size: int,
        snapshot: NodeSnapshot,
        *,
        last: bool = False,
    ) -> tuple[str, ...]:
        del resource, snapshot, last
        self.calls.append(("GetPreferredAllocation", len(available), len(required), size))
        rest = sorted(set(available) - set(required), reverse=True)
        return (*required, *rest)[:size]


async def serving(stage: Stage) -> Recording:
    table = stage.table = Recording()
    stage.vendor = "ready"
    await stage.kubelet.start()
    await stage.start()
    await stage.kubelet.resource(A, healthy=4)
    return table


def recorded(scenario: str, run: int) -> list[dict[str, Any]]:
    scenarios = json.loads(RECORDED.read_text())["scenarios"]
    result: list[dict[str, Any]] = next(s["runs"][run] for s in scenarios if s["name"] == scenario)
    return result


def calls_of(events: list[dict[str, Any]]) -> list[Call]:
    """The calls of the first admission of a record."""
    calls: list[Call] = []
    for event in events:
        if event["what"] == "PreStartContainer":
            break
        for requests in event["data"].get("request", ()) if event["who"] == "plugin:a" else ():
            if event["what"] == "Allocate":
                calls.append(("Allocate", 0, 0, len(requests)))
            else:
                sizes = (
                    len(requests["available"]),
                    len(requests["must_include"]),
                    requests["size"],
                )
                calls.append((event["what"], *sizes))
    return calls


@pytest.mark.parametrize("scenario", PODS)
def test_it_requests_the_containers_of_a_pod_in_the_order_of_the_real_kubelet(
    scenario: str,
) -> None:
    async def test(stage: Stage) -> None:
        table = await serving(stage)
        count = len(table.asked)
        await stage.kubelet.admit_pod("pod", PODS[scenario])
        created = [("Allocate", 0, 0, len(ids)) for ids in table.asked[count:]]
        expected = calls_of(recorded(scenario, 0))
        assert [one for one in expected if one[0] == "Allocate"] == created
        assert [one for one in expected if one[0] != "Allocate"] == table.calls

    on_stage(test)


def test_it_refuses_in_the_words_of_the_real_one() -> None:
    async def test(stage: Stage) -> None:
        await serving(stage)
        with pytest.raises(NotAdmitted) as caught:
            await stage.kubelet.admit("pod", "main", {A: 5})
        failed = [
            event["data"]
            for event in recorded("over-allocatable", 0)
            if event["data"] and event["data"].get("phase") == "Failed"
        ]
        assert (caught.value.reason, str(caught.value)) == (
            failed[0]["reason"],
            failed[0]["message"],
        )

    on_stage(test)


def test_devices_of_an_ended_init_container_stay_the_pods() -> None:
    async def test(stage: Stage) -> None:
        await serving(stage)
        await stage.kubelet.admit_pod(
            "pod", (container_of("ini0", 3, Kind.INIT), container_of("main", 1))
        )
        with pytest.raises(NotAdmitted) as caught:
            await stage.kubelet.admit("other", "main", {A: 2})
        texts = [
            event["data"].get("message", "")
            for event in recorded("init-devices-kept", 0)
            if event["data"]
        ]
        assert str(caught.value) in texts

    on_stage(test)
