"""What changes between two discoveries: virtual functions, nodes, fabrics, thresholds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.devices.trend import TrendRecorder
from agent.errors import BadConfig
from agent.snapshot.device import HealthState
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.usage import NodeUsage
from plugins.vendors.rdma.settings import RdmaSettings
from plugins.vendors.rdma.vendor import RdmaVendor
from tests.unit.rdma import made
from tests.unit.rdma_watch.node import PF, PORT, Node, state, values
from tests.vendors import checked_settings


def machine(folder: Path, settings: RdmaSettings | None = None, **files: str) -> Node:
    entries = made.nic(PF, "mlx5_0")
    entries |= {f"{made.place(PF)}/{name}": f"{text}\n".encode() for name, text in files.items()}
    node = Node(folder, entries, settings or RdmaSettings())
    node.session.discover()
    return node


def test_a_pf_that_gets_virtual_functions_is_reported_once(tmp_path: Path) -> None:
    node = machine(tmp_path, sriov_numvfs="0", sriov_totalvfs="8")
    assert node.after(1) == ()
    node.change({f"{made.place(PF)}/sriov_numvfs": b"4\n"})
    (event,) = node.after(1)
    assert (event.key, event.reason, event.state) == (PF, "VirtualFunctionsChanged", None)
    assert event.message == "0 virtual functions before, now 4"
    assert node.after(1) == ()
    facts = dict(node.session.discover().devices[0].facts)
    assert facts["sriov_numvfs"] == "4"
    assert node.after(1) == ()
    node.change({f"{made.place(PF)}/sriov_numvfs": b"0\n"})
    assert [e.reason for e in node.after(1)] == ["VirtualFunctionsChanged"]


@pytest.mark.parametrize("text", ["", "x", "-1", "99999999"])
def test_a_count_that_is_none_is_no_change(tmp_path: Path, text: str) -> None:
    node = machine(tmp_path, sriov_numvfs="0")
    node.change({f"{made.place(PF)}/sriov_numvfs": f"{text}\n".encode()})
    assert node.after(1) == ()


def test_samples_carry_the_verdict_with_what_is_wrong_beside_the_ports(tmp_path: Path) -> None:
    node = machine(tmp_path)
    sample = node.sample()
    assert sample.health is not None
    assert sample.health.state is HealthState.HEALTHY
    entries = made.function(PF) | made.device(PF, "mlx5_0", uverbs=None)
    bare = Node(tmp_path / "bare", entries, RdmaSettings())
    (device,) = bare.session.discover().devices
    assert device.health.reason == "DeviceNodeMissing"
    assert bare.sample().health == device.health


def port_bytes(count: int) -> made.Entries:
    """Return counters of a port that has sent so many bytes, and received twice as many."""
    counters = {
        "port_xmit_data": count // 4,
        "port_rcv_data": count // 2,
        "unicast_xmit_packets": 1,
    }
    return {f"{PORT}/counters/{name}": f"{value}\n".encode() for name, value in counters.items()}


def test_steady_traffic_is_steady_in_the_trend_though_counters_are_read_seldom(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, made.nic(PF, "mlx5_0") | port_bytes(0), RdmaSettings())
    node.session.discover()
    description = RdmaVendor.description
    trend, views = TrendRecorder({"rdma": description.traffic}), []
    for second in range(120):
        node.change(port_bytes(second * 40_000_000))
        samples = SnapshotPart(node.session.sample(), node.clock.monotonic())
        vendor = VendorState(vendor="rdma", samples=samples)
        views.append(trend.add(node.clock.monotonic(), NodeUsage(), (vendor,)))
        node.clock.advance(1)
    (device,) = [view for view in views if view is not None][-1].devices.values()
    (link,) = device.links
    assert set(link.sent.values[-20:]) == {40_000_000.0}
    assert set(link.received.values[-20:]) == {80_000_000.0}


def test_a_rate_of_a_port_needs_two_counts_and_ends_with_a_reset(tmp_path: Path) -> None:
    node = Node(tmp_path, made.nic(PF, "mlx5_0") | port_bytes(4_000), RdmaSettings())
    node.session.discover()
    rates = []
    for count in (4_000, 4_000, 404_000, 8_000, 8_000):
        node.change(port_bytes(count))
        rates.append(values(node.sample(), "port_transmit_bytes_per_second"))
        node.clock.advance(10)
    assert rates == [[], [0.0], [40_000.0], [], [0.0]]


def test_a_counter_at_the_end_of_its_field_has_no_rate(tmp_path: Path) -> None:
    node = Node(tmp_path, made.nic(PF, "mlx5_0"), RdmaSettings())
    name = f"{PORT}/counters/port_xmit_data"
    node.change({name: b"4294967000\n"})
    node.session.discover()
    for count in (4_294_967_000, 4_294_967_295, 4_294_967_295):
        node.change({name: f"{count}\n".encode()})
        sample = node.sample()
        node.clock.advance(10)
        assert values(sample, "port_transmit_bytes_per_second") == []
    assert values(sample, "port_transmit_bytes_total") == [4 * 4_294_967_295.0]


def test_a_port_that_fails_says_so_in_samples_too(tmp_path: Path) -> None:
    node = machine(tmp_path)
    node.change(state("1: DOWN"))
    for _ in range(4):
        node.after(1)
    sample = node.sample()
    assert sample.health is not None
    assert sample.health.reason == "PortDown"


def test_fabric_and_partitions_are_facts_of_an_infiniband_device(tmp_path: Path) -> None:
    entries = {
        f"{PORT}/pkeys/{n}": f"{key}\n".encode()
        for n, key in enumerate(("0xffff", "0x8001", "0x0000", "0x8000", "junk"))
    }
    node = Node(tmp_path, made.nic(PF, "mlx5_0") | entries, RdmaSettings())
    facts = dict(node.session.discover().devices[0].facts)
    assert facts["subnet_prefix"] == "fe80:0000:0000:0000"
    assert facts["pkeys"] == "0x8001,0xffff"


def test_an_ethernet_port_is_on_no_fabric_of_that_kind(tmp_path: Path) -> None:
    entries = made.function(PF) | made.device(PF, "mlx5_0")
    entries |= made.port(f"{made.place(PF)}/infiniband/mlx5_0", layer="Ethernet")
    node = Node(tmp_path, entries, RdmaSettings())
    assert {"subnet_prefix", "pkeys"}.isdisjoint(dict(node.session.discover().devices[0].facts))


def test_thresholds_of_errors_are_settings(tmp_path: Path) -> None:
    limits = [
        {"counter": "port_rcv_errors", "limit": 1},
        {"counter": "link_error_recovery", "limit": 0},
    ]
    data = {"error_limits": limits, "counters_interval_s": 1}
    settings = checked_settings(RdmaVendor.description, RdmaSettings, data)
    files = {
        f"infiniband/mlx5_0/ports/1/counters/{name}": "0"
        for name in ("port_rcv_errors", "link_error_recovery", "symbol_error")
    }
    node = machine(tmp_path, settings, **files)
    node.sample()
    for name, value in (("port_rcv_errors", 2), ("link_error_recovery", 1), ("symbol_error", 9)):
        node.change({f"{PORT}/counters/{name}": f"{value}\n".encode()})
    node.clock.advance(1)
    node.sample()
    (event,) = node.session.events(0)
    assert event.reason == "PortErrors"
    assert event.message.endswith("port_rcv_errors +2, link_error_recovery +1")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"error_limits": [{"counter": "a/b", "limit": 1}]}, "error_limits[0].counter"),
        ({"error_limits": [{"counter": "a", "limit": -1}]}, "error_limits[0].limit"),
        ({"error_limits": [{"counter": "a", "limits": 1}]}, "error_limits[0]"),
        ({"counters_interval_s": 0}, "counters_interval_s"),
        ({"counters_interval_s": True}, "counters_interval_s"),
    ],
)
def test_a_threshold_that_is_none_is_refused_by_its_key(
    settings: dict[str, object], key: str
) -> None:
    with pytest.raises(BadConfig) as refused:
        checked_settings(RdmaVendor.description, RdmaSettings, settings)
    assert f"discovery.rdma.{key}" in str(refused.value)


def test_a_bond_that_loses_one_member_is_suspect_and_well_again_with_it(tmp_path: Path) -> None:
    second = "0000:18:00.1"
    entries = made.function(PF, net="ens1") | made.device(PF, "mlx5_bond_0")
    entries |= made.function(second, net="ens2")
    carriers = {
        address: f"{made.place(address)}/net/{name}/carrier"
        for address, name in ((PF, "ens1"), (second, "ens2"))
    }
    node = Node(tmp_path, entries | dict.fromkeys(carriers.values(), b"1\n"), RdmaSettings())
    (device,) = node.session.discover().devices
    assert (device.health.reason, dict(device.facts)["members"]) == (
        "DeviceHealthy",
        f"{PF},{second}",
    )
    node.change({carriers[second]: b"0\n"})
    (event,) = node.after(1)
    assert (event.key, event.reason, event.state) == (PF, "LagDegraded", HealthState.SUSPECT)
    node.change({carriers[second]: b"1\n"})
    assert [e.reason for e in node.after(1)] == ["DeviceHealthy"]


def test_a_virtual_function_in_a_pod_stays_one_that_can_be_granted(tmp_path: Path) -> None:
    address = "0000:18:00.2"
    entries = made.exclusive() | made.nic(PF, "mlx5_0")
    entries |= made.virtual(PF, 0, address, "mlx5_core", "mlx5_2")
    node = Node(tmp_path, entries, RdmaSettings())

    def granted() -> list[str]:
        (device,) = node.session.discover().devices
        return [vf.bus_id for group in device.vf_groups for vf in group.vfs]

    assert granted() == [address]
    node.remove("/sys/class/infiniband/mlx5_2")
    shutil.rmtree(tmp_path / f"{made.place(address)}/infiniband".lstrip("/"))
    assert granted() == [address]
    node.remove(f"{made.place(address)}/driver")
    assert granted() == []
