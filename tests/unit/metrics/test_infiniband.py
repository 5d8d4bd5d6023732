"""RDMA ports under node_exporter's names: the same values, where a setting asks for them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.exposition import MetricsRenderer
from agent.metrics.infiniband import infiniband_families, infiniband_table
from agent.snapshot.inventory import DeviceSample
from agent.snapshot.node import NodeIdentity, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.vendor import AliasMatch
from plugins.vendors.rdma.vendor import RdmaVendor
from tests.unit.rdma import made
from tests.vendors import open_session

VENDORS = {"rdma": RdmaVendor.description.families}


PF = "0000:18:00.0"
COUNTERS = f"{made.place(PF)}/infiniband/mlx5_0/ports/1/counters"
DRIVER_COUNTERS = f"{made.place(PF)}/infiniband/mlx5_0/ports/1/hw_counters"


def samples() -> tuple[DeviceSample, ...]:
    entries = made.nic(PF, "mlx5_0") | {
        f"{COUNTERS}/port_xmit_data": b"26509113295\n",
        f"{COUNTERS}/symbol_error": b"N/A (no PMA)\n",
        f"{DRIVER_COUNTERS}/np_cnp_sent": b"21\n",
        f"{DRIVER_COUNTERS}/roce_slow_restart_trans": b"22\n",
        f"{DRIVER_COUNTERS}/roce_slow_restart": b"23\n",
        f"{DRIVER_COUNTERS}/rx_bytes": b"24\n",
    }
    session = open_session(RdmaVendor(), made.tree(entries), {"replay": True})
    session.discover()
    return session.sample()


def page(
    device_samples: tuple[DeviceSample, ...], *aliases: str
) -> dict[str, dict[tuple[str, ...], float]]:
    state = VendorState(vendor="rdma", samples=SnapshotPart(device_samples, 1.0))
    snapshot = NodeSnapshot(node=NodeIdentity(name="n"), vendors=(state,))
    text = MetricsRenderer(VENDORS, aliases=aliases).render(snapshot, 2.0).decode()
    return {
        family.name: {tuple(s.labels.values()): s.value for s in family.samples}
        for family in text_string_to_metric_families(text)
        if family.name.startswith("node_infiniband_")
    }


def test_a_port_has_node_exporters_names_and_our_values() -> None:
    result = page(samples(), "node_exporter")
    port = ("mlx5_0", "1")
    assert result["node_infiniband_port_data_transmitted_bytes"] == {port: 106036453180}
    assert result["node_infiniband_state_id"] == {port: 4}
    assert result["node_infiniband_physical_state_id"] == {port: 5}
    assert result["node_infiniband_rate_bytes_per_second"] == {port: 50_000_000_000}
    assert "node_infiniband_symbol_error" not in result
    assert [labels[0] for labels in result["node_infiniband_info"]] == ["mlx5_0"]


def test_counters_of_the_driver_have_node_exporters_names() -> None:
    result = page(samples(), "node_exporter")
    port = ("mlx5_0", "1")
    assert result["node_infiniband_np_cnp_packets_sent"] == {port: 21}
    assert result["node_infiniband_roce_slow_restart"] == {port: 22}
    assert result["node_infiniband_roce_slow_restart_used"] == {port: 23}
    assert not [values for values in result.values() if 24 in values.values()]


def test_the_reference_has_every_exported_name_and_reasons_for_others() -> None:
    exported = {one.name for one in infiniband_families(("node_exporter",))}
    table = infiniband_table().metrics
    absent = {one.name for one in table if one.match is AliasMatch.ABSENT}
    assert {one.name for one in table} - absent == exported
    assert len(table) == len(exported) + len(absent)
    assert all(one.note for one in table if one.name in absent)


def test_without_the_alias_there_are_no_families() -> None:
    assert page(samples()) == {}
    assert page(samples(), "hami") == {}


def test_every_alias_is_of_a_family_that_the_vendor_declares() -> None:
    declared = {family.name for family in RdmaVendor.description.families}
    renderer = MetricsRenderer(VENDORS, aliases=("node_exporter",))
    aliases = [f for f in renderer.families if f.name.startswith("node_infiniband_")]
    assert {family.alias_of for family in aliases} <= declared
    assert all(family.name.endswith("_total") == (family.type == "counter") for family in aliases)
