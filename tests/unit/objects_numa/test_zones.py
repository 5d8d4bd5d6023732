"""Zones where the Node wants what the kubelet reserves to be missing in each of them."""

from __future__ import annotations

from typing import cast

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.objects.node_resource_topology import render_topology
from agent.objects.numa_zones import NUMA_RESERVATION_LABEL, numa_zones
from agent.snapshot.cluster import NodeView
from agent.snapshot.cpu import NumaNode, NumaNodeKind, NumaTopology
from agent.wire_formats.annotations import RESERVATION, SYSTEM_QOS
from tests import nrt
from tests.clustered import GIB, machine, memory, node, snapshot

Triple = tuple[str, str, str]


def reserving(cpu: str = "7500m", wish: str = "true", **allocatable: str) -> NodeView:
    return node(
        labels={NUMA_RESERVATION_LABEL: wish},
        capacity={"cpu": "8", "memory": "32Gi"},
        allocatable={"cpu": cpu, "memory": "31Gi", **allocatable},
    )


def zone_rows(owner: NodeView, numa: NumaTopology | None = None) -> list[dict[str, Triple]]:
    rows = []
    for zone in numa_zones(numa or memory(machine()), owner):
        listed = cast(list[dict[str, str]], zone["resources"])
        rows.append({r["name"]: (r["capacity"], r["allocatable"], r["available"]) for r in listed})
    return rows


def test_capacity_stays_and_the_rest_is_reduced_by_an_equal_part() -> None:
    for zone in zone_rows(reserving()):
        assert zone["cpu"] == ("4", "3750m", "3750m")
        assert zone["memory"] == ("16Gi", "15872Mi", "15872Mi")
        assert zone["hugepages-1Gi"] == ("0", "0", "0")


def test_a_part_is_rounded_up() -> None:
    (zone, _) = zone_rows(reserving(cpu="7999m"))
    assert zone["cpu"] == ("4", "3999m", "3999m")


def test_nothing_falls_below_zero() -> None:
    (zone, _) = zone_rows(reserving(cpu="0", memory="0"))
    assert (zone["cpu"], zone["memory"]) == (("4", "0", "0"), ("16Gi", "0", "0"))


@pytest.mark.parametrize("wish", ["false", "", "True", "yes"])
def test_the_label_must_say_true(wish: str) -> None:
    assert zone_rows(reserving(wish=wish))[0]["cpu"] == ("4", "4", "4")


@pytest.mark.parametrize("odd", [{"cpu": "many"}, {"cpu": ""}, {"cpu": "12"}])
def test_an_unknown_reservation_reduces_nothing(odd: dict[str, str]) -> None:
    assert zone_rows(reserving(**odd))[0]["cpu"] == ("4", "4", "4")


def test_a_memory_node_without_cpus_gives_up_no_cpu() -> None:
    cpus = machine(1, 4, 2)
    first = replace(memory(cpus).nodes[0], distances=None)
    expander = NumaNode(id=1, cpus=frozenset(), memory_bytes=16 * GIB, kind=NumaNodeKind.MEMORY)
    with_cpus, without = zone_rows(reserving(), NumaTopology(nodes=(first, expander)))
    assert (with_cpus["cpu"][1], without["cpu"][1]) == ("7500m", "0")
    assert (with_cpus["memory"][1], without["memory"][1]) == ("15872Mi", "15872Mi")


@pytest.mark.parametrize(("wish", "copied"), [("true", "true"), ("false", "false"), ("", None)])
def test_the_label_is_copied_as_it_is_and_taken_back_with_the_nodes(
    wish: str, copied: str | None
) -> None:
    desired = render_topology(snapshot(owner=reserving(wish=wish)), "v1alpha1", reads_kubelet=True)
    metadata = cast(dict[str, dict[str, str]], desired.body["metadata"])
    assert metadata["labels"].get(NUMA_RESERVATION_LABEL) == copied


QUANTITY = st.from_regex(r"[+-]?[0-9.]{0,30}(m|k|Ki|Ei|e[+-]?[0-9]{1,3})?", fullmatch=True)
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "x"]), QUANTITY | st.text(max_size=9))
TEXTS = st.dictionaries(
    st.sampled_from([NUMA_RESERVATION_LABEL, RESERVATION, SYSTEM_QOS, "a"]),
    st.sampled_from(["true", "", '{"resources":{"cpu":"3"},"reservedCPUs":"0-99"}']) | st.text(),
)


@given(annotations=TEXTS, labels=TEXTS, capacity=AMOUNTS, allocatable=AMOUNTS)
def test_whatever_the_node_says_the_object_fits_its_schema(
    annotations: dict[str, str],
    labels: dict[str, str],
    capacity: dict[str, str],
    allocatable: dict[str, str],
) -> None:
    owner = node(annotations, {**labels, NUMA_RESERVATION_LABEL: "true"}, capacity=capacity)
    owner = replace(owner, allocatable=allocatable)
    desired = render_topology(snapshot(owner=owner), "v1alpha1", reads_kubelet=True)
    jsonschema.validate(desired.body, nrt.SCHEMA)
