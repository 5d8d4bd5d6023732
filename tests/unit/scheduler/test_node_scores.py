"""Scores of nodes in the worked vectors of Koordinator's unit tests."""

from __future__ import annotations

import pytest

from agent.snapshot.allocation import AllocatedDevice
from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    RDMA,
    Amounts,
    DeviceTable,
    NodeDevice,
)
from plugins.scheduler.devices.device_usage import sum_usage
from plugins.scheduler.devices.requests import device_request
from plugins.scheduler.devices.scores import ScoringStrategy, node_score

GIB = 1 << 30
CARD = {GPU_CORE: 100, GPU_MEMORY: 16 * GIB, GPU_MEMORY_RATIO: 100}
QUARTER = {GPU_CORE: 25, GPU_MEMORY: 4 * GIB, GPU_MEMORY_RATIO: 25}
WHOLE = {GPU_CORE: 100, GPU_MEMORY_RATIO: 100}
HALF = {GPU_CORE: 50, GPU_MEMORY_RATIO: 50}
BYTES = {GPU_CORE: 50, GPU_MEMORY: 8 * GIB}
LEAST, MOST = ScoringStrategy(), ScoringStrategy(type="MostAllocated")
NIC = "koordinator.sh/rdma"


def score(cards: int, used: Amounts, amounts: Amounts, strategy: ScoringStrategy) -> int:
    devices = tuple(NodeDevice(kind=GPU, minor=minor, total=CARD) for minor in range(cards))
    table = DeviceTable(node="n", devices={GPU: devices})
    allocated_devices = [AllocatedDevice(type=GPU, minor=0, resources=tuple(used.items()))]
    request = device_request(amounts)
    assert request is not None
    return node_score(table, sum_usage([allocated_devices]), request, strategy)


@pytest.mark.parametrize(
    ("cards", "used", "asked", "strategy", "expected"),
    [
        (1, {}, WHOLE, LEAST, 50),
        (2, {}, HALF, LEAST, 87),
        (1, QUARTER, HALF, LEAST, 50),
        (1, QUARTER, BYTES, LEAST, 50),
        (1, QUARTER, HALF, MOST, 50),
        (1, QUARTER, BYTES, MOST, 50),
    ],
    ids=["S02", "S03", "S04", "S05", "S06", "S07"],
)
def test_the_score_of_the_vector(
    cards: int, used: Amounts, asked: Amounts, strategy: ScoringStrategy, expected: int
) -> None:
    assert score(cards, used, asked, strategy) == expected


def test_scores_of_kinds_are_added() -> None:
    total = {GPU_CORE: 1000, GPU_MEMORY: 160 * GIB, GPU_MEMORY_RATIO: 1000}
    table = DeviceTable(
        node="n",
        devices={
            GPU: (NodeDevice(kind=GPU, minor=0, total=total),),
            RDMA: (NodeDevice(kind=RDMA, minor=0, total={NIC: 1000}),),
        },
    )
    allocated_devices = [
        AllocatedDevice(type=GPU, minor=0, resources=tuple(QUARTER.items())),
        AllocatedDevice(type=RDMA, minor=0, resources=((NIC, 50),)),
    ]
    request = device_request({**HALF, NIC: 25})
    assert request is not None
    assert node_score(table, sum_usage([allocated_devices]), request, LEAST) == 186


def test_resources_that_the_node_does_not_have_do_not_count() -> None:
    assert score(0, {}, WHOLE, LEAST) == 0
