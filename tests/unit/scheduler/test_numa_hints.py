"""Hints of devices and their merge under the policies of the NUMA topology."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.scheduler.devices.allocator import NodeRefused, NodeState
from plugins.scheduler.devices.device_table import GPU, DeviceTable
from plugins.scheduler.devices.device_usage import NO_USAGE, NodeDeviceUsage
from plugins.scheduler.devices.requests import DeviceRequest, device_request
from plugins.scheduler.numa.alignment import device_hints
from plugins.scheduler.numa.hints import (
    Exclusive,
    NumaAffinity,
    NumaHint,
    align,
    node_sets,
    prefer_smallest,
)
from tests.unit.scheduler.vectors import NODES, WHOLE

BOTH = frozenset((0, 1))
ONE = frozenset((0,))
TWO = frozenset((1,))


def request_for(amounts: dict[str, int], hint: str = "{}") -> DeviceRequest:
    annotations = {"scheduling.koordinator.sh/device-allocate-hint": hint}
    request = device_request(amounts, annotations)
    assert request is not None
    return request


def hints_of(
    request: DeviceRequest, table: DeviceTable = NODES["A"], usage: NodeDeviceUsage = NO_USAGE
) -> set[tuple[tuple[int, ...], bool, int]]:
    """Return (NUMA nodes, preferred, score); all requested kinds have the same hints."""
    hints = device_hints(NodeState(name="node", table=table, usage=usage), request)
    assert set(hints) == {kind.kind for kind in request.kinds}
    first, *others = hints.values()
    assert all(other == first for other in others)
    return {(tuple(sorted(one.nodes or ())), one.is_preferred, one.score) for one in first}


AS_COUNT = '{"rdma": {"allocateStrategy": "RequestsAsCount"}}'
AS_COUNT_WITH_FUNCTIONS = (
    '{"rdma": {"allocateStrategy": "RequestsAsCount", "vfSelector": {}, "exclusivePolicy": "%s"}}'
)


def test_u01_one_card_and_a_nic_prefer_the_numa_node_of_the_cards_of_the_whole_node() -> None:
    request = request_for({"nvidia.com/gpu": 1, "koordinator.sh/rdma": 2})
    assert hints_of(request) == {((0,), True, 500), ((1,), True, 0), ((0, 1), False, 500)}


def test_u02_more_cards_than_the_node_has_are_refused() -> None:
    with pytest.raises(NodeRefused):
        hints_of(request_for({"nvidia.com/gpu": 17}))


def test_u03_cards_in_use_leave_the_other_numa_node() -> None:
    usage = NodeDeviceUsage({(GPU, 0): dict(WHOLE)}, {})
    request = request_for({"nvidia.com/gpu": 4})
    assert hints_of(request, usage=usage) == {((1,), True, 500), ((0, 1), False, 500)}


def test_u04_a_kind_that_the_node_lacks_is_refused() -> None:
    with pytest.raises(NodeRefused):
        hints_of(request_for({"koordinator.sh/fpga": 100}))


def test_u05_without_cards_every_set_has_the_full_score() -> None:
    request = request_for({"koordinator.sh/rdma": 2}, AS_COUNT)
    assert hints_of(request) == {((0,), True, 500), ((1,), True, 500), ((0, 1), False, 500)}


def test_u06_nics_of_both_numa_nodes_need_both() -> None:
    request = request_for({"koordinator.sh/rdma": 4}, AS_COUNT_WITH_FUNCTIONS % "")
    assert hints_of(request) == {((0, 1), True, 500)}


def test_devices_without_a_place_give_no_hint() -> None:
    request = request_for({"nvidia.com/gpu": 1})
    assert device_hints(NodeState(name="node", table=NODES["A0"]), request) == {}
    assert device_hints(NodeState(name="node"), request) == {}


NO_EXCLUSION = Exclusive()


def aligned(policy: str, *lists: Any, exclusive: Exclusive = NO_EXCLUSION) -> Any:
    providers = [{f"r{number}": tuple(hints)} for number, hints in enumerate(lists)]
    alignment = align(policy, providers, BOTH, exclusive)
    return alignment.affinity if alignment.affinity is not None else alignment.reasons


EACH = prefer_smallest([(ONE, 10), (TWO, 20), (BOTH, 5)])


def test_the_smallest_common_set_with_the_highest_score_wins() -> None:
    assert aligned("BestEffort", EACH, EACH) == NumaAffinity(nodes=TWO)
    assert aligned("SingleNUMANode", EACH, [NumaHint(ONE)]) == NumaAffinity(nodes=ONE)


def test_the_smaller_of_two_preferred_sets_wins_whatever_their_scores() -> None:
    hints = [NumaHint(BOTH, score=90), NumaHint(TWO, score=1)]
    assert aligned("Restricted", hints, hints) == NumaAffinity(nodes=TWO)


def test_a_resource_that_no_node_has_is_refused_unless_alignment_is_best_effort() -> None:
    assert aligned("Restricted", EACH, ()) == ("Unsatisfied NUMA r1",)
    assert aligned("SingleNUMANode", (), ()) == ("Unsatisfied NUMA r0", "Unsatisfied NUMA r1")
    assert aligned("BestEffort", EACH, ()) == NumaAffinity(nodes=BOTH)


def test_sets_that_do_not_agree_are_refused_unless_alignment_is_best_effort() -> None:
    one, two = [NumaHint(ONE)], [NumaHint(TWO)]
    assert aligned("Restricted", one, two) == (
        "Unaligned NUMA Hint cause r0 prefer [01] among [01],r1 prefer [10] among [10]",
    )
    assert aligned("BestEffort", one, two) == NumaAffinity(nodes=BOTH)


def test_best_effort_gives_up_when_a_resource_needs_more_nodes_than_are_common() -> None:
    both = prefer_smallest([(BOTH, 5)])
    assert aligned("BestEffort", EACH, both) == NumaAffinity(nodes=BOTH)


def test_a_single_numa_node_that_is_the_whole_machine_is_no_constraint() -> None:
    alignment = align("SingleNUMANode", [{"cpu": (NumaHint(ONE),)}], ONE, Exclusive())
    assert alignment.affinity == NumaAffinity(nodes=None)


def test_required_exclusion_keeps_pods_of_one_and_of_several_nodes_apart() -> None:
    shared = Exclusive(is_required=True, shared=TWO)
    assert aligned("SingleNUMANode", EACH, exclusive=shared) == NumaAffinity(nodes=ONE)
    single = Exclusive(is_required=True, single=TWO)
    assert aligned("Restricted", prefer_smallest([(BOTH, 1)]), exclusive=single) == (
        "Unaligned NUMA Hint cause r0 prefer [11] among [11]",
    )


def test_preferred_exclusion_is_decided_before_the_score() -> None:
    shared = Exclusive(is_preferred=True, shared=TWO)
    assert aligned("BestEffort", EACH, exclusive=shared) == NumaAffinity(nodes=ONE)
    assert aligned("BestEffort", EACH) == NumaAffinity(nodes=TWO)


def test_of_many_numa_nodes_only_single_ones_and_all_are_tried() -> None:
    assert len(list(node_sets(range(8)))) == 255
    assert list(map(len, node_sets(range(64)))) == [1] * 64 + [64]
