"""Of grants that contradict each other: who keeps what, and that nothing is held twice."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocation.check import check_allocations
from agent.allocation.index import AllocationIndex
from agent.snapshot.allocation import AllocationView
from agent.snapshot.container import ContainerState
from agent.snapshot.device import Device, DeviceKind, DevicePartition, VendorDevice
from agent.snapshot.pod import PodView
from agent.snapshot.vendor import slicing_vendors
from agent.workers.load import load_vendor
from tests import factory
from tests.unit.allocation.made import (
    GPUS,
    HALF,
    NICS,
    WHOLE,
    box,
    container,
    entry,
    pod,
    snapshot,
    text,
    verdict,
    without_cluster,
)

VFS = [f"0000:18:00.{i}" for i in range(1, 5)]
PIECES = factory.gpu(
    0, partitions=tuple(DevicePartition(uuid=f"MIG-{i}", profile="1g.10gb") for i in range(2))
)
NPU = Device(
    info=VendorDevice(
        kind=DeviceKind.NPU,
        vendor="huawei",
        bus_id="0000:c1:00.0",
        uuid="die-0",
        minor=0,
        model="Ascend-310P3",
        resources=(
            ("koordinator.sh/gpu-memory", "24Gi"),
            ("koordinator.sh/gpu-memory-ratio", "100"),
            ("huawei.com/npu-core", "8"),
            ("huawei.com/npu-dvpp", "100"),
        ),
    )
)
MLUS = tuple(
    Device(
        info=VendorDevice(
            kind=DeviceKind.MLU,
            vendor="cambricon",
            bus_id=f"0000:{0x10 + index:02x}:00.0",
            uuid=f"MLU-{index}",
            minor=index,
            resources=GPUS[0].info.resources,
        )
    )
    for index in range(2)
)


def index() -> AllocationIndex:
    """An index with the vendor that has templates."""
    return AllocationIndex(slicing_vendors({"ascend": load_vendor("ascend")}).values())


def refusals(view: AllocationView, *pods: PodView) -> list[str]:
    return [verdict(view.pods.get(one.uid)) for one in pods]


def two(first: str, second: str, *devices: Device) -> list[str]:
    """Two pods, the first the older."""
    pods = pod(1, first), pod(2, second)
    return refusals(
        check_allocations(snapshot(pods, devices=devices or (*GPUS, *NICS)), index()), *pods
    )


def rdma(amount: int, *vfs: str, nic: Device = NICS[0]) -> str:
    return text(entry(nic, {"rdma": amount}, vfs=vfs), kind="rdma")


QUARTER = {"ratio": "25", "core": "75", "memory": "20389Mi"}


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (text(entry(GPUS[0], WHOLE)), text(entry(GPUS[1], WHOLE)), True),
        (text(entry(GPUS[0], WHOLE)), text(entry(0, HALF)), False),
        (text(entry(GPUS[0], HALF)), text(entry(GPUS[0], WHOLE)), False),
        (text(entry(GPUS[0], HALF)), text(entry(GPUS[0], HALF)), True),
        (text(entry(GPUS[0], QUARTER)), text(entry(GPUS[0], HALF)), False),
        (text(entry(GPUS[0], HALF)), text(entry(GPUS[0], {"memory": "41Gi"})), False),
        (text(entry(GPUS[0])), text(entry(GPUS[0], {"ratio": 1})), False),
        (rdma(50), rdma(50), True),
        (rdma(50), rdma(51), False),
        (rdma(100), rdma(1, VFS[0]), False),
        (rdma(1, VFS[0]), rdma(100), False),
        (rdma(1, VFS[0]), rdma(1, VFS[1]), True),
        (rdma(1, VFS[0], VFS[1]), rdma(1, VFS[1]), False),
    ],
)
def test_whole_cards_are_exclusive_and_shares_end_at_the_capacity(
    first: str, second: str, both: bool
) -> None:
    assert two(first, second) == ["held", "held" if both else "DeviceTaken"]


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (text(entry("MIG-0")), text(entry("MIG-1")), True),
        (text(entry("MIG-0")), text(entry("MIG-0")), False),
        (text(entry("MIG-0")), text(entry(PIECES, WHOLE)), False),
        (text(entry(PIECES, HALF)), text(entry("MIG-0")), False),
        (text(entry(f"{PIECES.info.uuid}::0")), text(entry(f"{PIECES.info.uuid}::1")), True),
        (text(entry(f"{PIECES.info.uuid}::0")), text(entry(f"{PIECES.info.uuid}::0")), False),
    ],
)
def test_a_slice_or_replica_has_one_holder_and_no_whole_card_beside_it(
    first: str, second: str, both: bool
) -> None:
    assert two(first, second, PIECES) == ["held", "held" if both else "DeviceTaken"]


def vnpu(template: str, cores: int, memory: str, dvpp: int = 50) -> str:
    created = entry(NPU, {"memory": memory, "npu": cores}, template=template)
    created["resources"] = {**created["resources"], "huawei.com/npu-dvpp": dvpp}  # type: ignore[dict-item]  # a mapping
    return text(created)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (vnpu("vir04", 4, "12Gi"), vnpu("vir04", 4, "12Gi"), ["held", "held"]),
        (vnpu("vir04", 4, "12Gi"), vnpu("vir04_4c_dvpp", 4, "12Gi", 100), ["held", "DeviceTaken"]),
        (vnpu("vir04", 4, "12Gi"), text(entry(NPU, {"ratio": 100})), ["held", "DeviceTaken"]),
        # the cores that a template takes count, whatever else is written
        (vnpu("vir04", 1, "1Gi", 1), vnpu("vir04", 1, "1Gi", 1), ["held", "held"]),
        (vnpu("vir04_3c", 1, "1Gi", 1), vnpu("vir16", 1, "1Gi", 1), ["held", "TemplateUnknown"]),
    ],
)
def test_templates_end_at_the_cores_of_the_chip(
    first: str, second: str, expected: list[str]
) -> None:
    assert two(first, second, NPU) == expected


@pytest.mark.parametrize(
    ("model", "template", "expected"),
    [
        ("Ascend-310P3-300I-DUO", "vir04", "held"),
        ("Ascend-310P3-300I-DUO", "vir16", "TemplateUnknown"),
        ("Ascend-of-tomorrow", "vir99", "held"),
        (None, "vir99", "held"),
    ],
)
def test_a_template_is_looked_up_for_models_whose_templates_are_known(
    model: str | None, template: str, expected: str
) -> None:
    chip = replace(NPU, info=replace(NPU.info, model=model))
    assert two(vnpu(template, 4, "12Gi"), "{}", chip)[0] == expected


def test_a_third_template_of_four_cores_does_not_fit_a_chip_of_eight() -> None:
    pods = [pod(index, vnpu("vir04", 1, "1Gi", 1)) for index in range(3)]
    view = check_allocations(snapshot(pods, devices=(NPU,)), index())
    assert refusals(view, *pods) == ["held", "held", "DeviceTaken"]


def test_a_pod_has_slices_of_one_card_or_whole_ones() -> None:
    both = text(entry(MLUS[0], HALF), entry(MLUS[1], HALF))
    assert two(both, text(entry(MLUS[0], HALF)), *MLUS) == ["MixedGrant", "held"]
    whole = text(entry(MLUS[0], WHOLE), entry(MLUS[1], WHOLE))
    assert two(whole, text(entry(MLUS[0], HALF)), *MLUS) == ["held", "DeviceTaken"]
    second = factory.gpu(1, kind=DeviceKind.NPU, vendor="huawei", model="Ascend-310P3")
    mixed = text(entry(NPU, {"npu": 4}, template="vir04"), entry(second, WHOLE))
    assert two(mixed, "{}", NPU, second) == ["MixedGrant", "held"]


def test_a_refused_grant_holds_nothing_at_all() -> None:
    pods = [
        pod(1, text(entry(GPUS[0], WHOLE))),
        pod(2, text(entry(GPUS[1], WHOLE), entry(GPUS[0], WHOLE))),
        pod(3, text(entry(GPUS[1], WHOLE))),
    ]
    view = check_allocations(snapshot(pods))
    assert refusals(view, *pods) == ["held", "DeviceTaken", "held"]
    assert view.held == {GPUS[0].key: (pods[0].uid,), GPUS[1].key: (pods[2].uid,)}
    assert "is held by team-a/train-1" in view.pods[pods[1].uid].message


CLAIM = text(entry(GPUS[0], WHOLE))


@pytest.mark.parametrize(
    ("second", "state", "expected"),
    [
        ({}, ContainerState.RUNNING, 1),
        ({}, ContainerState.CREATED, 1),
        ({}, ContainerState.PAUSED, 1),
        ({}, ContainerState.UNKNOWN, 0),  # it is being made: it was given nothing yet
        ({}, ContainerState.STOPPED, 0),
        ({"phase": "Running"}, None, 1),
        ({"created": "2026-01-02T03:04:00Z"}, None, 1),
        ({"created": ""}, None, 0),
        ({"created": "2026-01-02T03:04:01Z"}, None, 0),  # as old: by uid
    ],
)
def test_the_running_pod_keeps_it_then_the_older_then_the_first_by_uid(
    second: dict[str, object], state: ContainerState | None, expected: int
) -> None:
    pods = pod(1, CLAIM), pod(2, CLAIM, **second)
    boxes = [box(pods[1])] if state else []
    inside = [container(boxes[0], state)] if state else []
    view = check_allocations(snapshot(pods, boxes, inside))
    assert [one is pods[expected] for one in pods] == [
        word == "held" for word in refusals(view, *pods)
    ]


def test_a_sandbox_whose_pod_nobody_lists_holds_what_it_has_until_it_is_over() -> None:
    listed_pods, new = pod(9, CLAIM), pod(1, CLAIM)
    sandbox = box(listed_pods)

    def holders_of(state: ContainerState) -> tuple[str, ...]:
        inside = [container(sandbox, state)]
        return check_allocations(snapshot([new], [sandbox], inside)).held[GPUS[0].key]

    assert holders_of(ContainerState.RUNNING) == (listed_pods.uid,)
    assert holders_of(ContainerState.STOPPED) == (new.uid,)
    stopped = snapshot([new], [box(listed_pods, stopped=True)])
    assert check_allocations(stopped).held[GPUS[0].key] == (new.uid,)
    # an agent without a cluster knows of no deleted pods
    alone = snapshot([], [sandbox], [container(sandbox, ContainerState.STOPPED)])
    assert check_allocations(alone).held == {}
    assert check_allocations(without_cluster(alone)).held[GPUS[0].key] == (listed_pods.uid,)


devices = st.sampled_from((*GPUS[:2], *NICS, NPU, *MLUS[:1]))
amounts = st.dictionaries(
    st.sampled_from(("core", "ratio", "rdma", "npu")), st.sampled_from((0, 1, 33, 50, 67, 100))
)
entries = st.one_of(
    st.builds(entry, devices, amounts),
    st.builds(entry, devices, amounts, vfs=st.lists(st.sampled_from(VFS), max_size=2)),
    st.builds(entry, st.just(NPU), amounts, template=st.sampled_from(("vir01", "vir04", "vir99"))),
    st.builds(entry, st.sampled_from(("MIG-0", "GPU-x", "die-0")), amounts),
)
texts = st.builds(
    lambda gpus, nics: json.dumps({"gpu": gpus, "rdma": nics}),
    st.lists(entries, max_size=3),
    st.lists(entries, max_size=2),
)
claims = st.lists(st.tuples(texts, st.sampled_from(("Pending", "Running"))), max_size=6)


@given(made=claims, shuffled=st.randoms(use_true_random=False))
def test_no_device_is_ever_held_beyond_its_amount_whatever_the_order(
    made: list[tuple[str, str]], shuffled: object
) -> None:
    pods = [pod(i, annotation, phase=phase) for i, (annotation, phase) in enumerate(made)]
    there = (*GPUS, *NICS, NPU, *MLUS)
    view = check_allocations(snapshot(pods, devices=there), index())
    shuffled.shuffle(pods)  # type: ignore[attr-defined]  # a Random
    assert check_allocations(snapshot(pods, devices=there), index()) == view
    used: defaultdict[tuple[str, str], int] = defaultdict(int)
    functions: set[str] = set()
    for allocations in view.pods.values():
        for device in allocations.grant.devices:
            key = next(d.key for d in there if device.id in (d.info.uuid, d.info.bus_id))
            for name, amount in device.resources:
                used[key, name] += amount
            assert functions.isdisjoint(device.vfs)
            functions |= set(device.vfs)
    limits: Mapping[str, int] = {"npu-core": 8}
    for (key, name), amount in used.items():
        totals = dict(next(d.info.resources for d in there if d.key == key))
        if name in totals:
            assert amount <= limits.get(name.rpartition("/")[2], 100)
