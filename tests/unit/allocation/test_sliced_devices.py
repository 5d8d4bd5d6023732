"""Cards twice in a grant, and chips that are cut already."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.allocation.check import check_allocations
from agent.snapshot.device import DevicePartition
from tests.unit.allocation.made import GPUS, HALF, entry, pod, snapshot, text
from tests.unit.allocation.test_overlap import NPU, QUARTER, refusals


@pytest.mark.parametrize("second", [entry(GPUS[0], QUARTER), entry(0, HALF), entry(GPUS[0], HALF)])
def test_a_card_is_in_a_grant_once(second: dict[str, object]) -> None:
    """A second share would move the limits of the cards behind it to their neighbours."""
    one = pod(1, text(entry(GPUS[0], HALF), second))
    assert refusals(check_allocations(snapshot([one])), one) == ["BadGrant"]


@pytest.mark.parametrize(
    ("owner", "annotation", "expected"),
    [
        ("", text(entry(NPU, {"ratio": 100})), "DeviceTaken"),
        ("another", text(entry(NPU, {"ratio": 100})), "DeviceTaken"),
        ("another", text(entry(NPU)), "DeviceTaken"),
        (pod(1).uid, text(entry(NPU, {"ratio": 100})), "held"),
        ("another", text(entry(NPU, {"ratio": 25, "npu": 2}, template="vir02")), "held"),
    ],
)
def test_a_chip_that_is_cut_for_others_is_not_granted_whole(
    owner: str, annotation: str, expected: str
) -> None:
    slices = (DevicePartition(uuid="vnpu-100", profile="vir02", owner=owner),)
    chip = replace(NPU, info=replace(NPU.info, partitions=slices))
    one = pod(1, annotation)
    assert refusals(check_allocations(snapshot([one], devices=[chip])), one) == [expected]
