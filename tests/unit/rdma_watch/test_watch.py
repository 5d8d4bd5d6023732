from __future__ import annotations

from pathlib import Path

import pytest

from agent.snapshot.device import HealthState
from agent.snapshot.vendor import LIVE_CONTEXT
from plugins.vendors.rdma.metrics import FAMILIES
from plugins.vendors.rdma.settings import RdmaSettings
from plugins.vendors.rdma.sysfs.counters import CountedDevice
from plugins.vendors.rdma.watch import RdmaWatch, WatchTarget
from tests.unit.rdma import made
from tests.unit.rdma_watch.node import PF, PORT, Node, state, values


@pytest.fixture
def node(tmp_path: Path) -> Node:
    entries = made.nic(PF, "mlx5_0") | {
        f"{PORT}/counters/symbol_error": b"0\n",
        f"{PORT}/counters/link_downed": b"0\n",
    }
    result = Node(tmp_path, entries, RdmaSettings())
    result.session.discover()
    return result


def test_a_port_that_stays_down_is_reported_within_two_seconds(node: Node) -> None:
    assert node.after(1) == ()
    node.change(state("1: DOWN"))
    assert node.after(1) == ()
    assert node.after(1) == ()
    (event,) = node.after(1)
    assert (event.key, event.reason, event.state) == (PF, "PortDown", HealthState.FAILED)
    assert node.session.discover().devices[0].health.reason == "PortDown"


def test_a_port_that_is_back_at_once_is_not_reported_vector_77(node: Node) -> None:
    node.after(1)
    node.change(state("1: DOWN"))
    assert node.after(1) == ()
    node.change(state("4: ACTIVE"))
    assert node.after(1) == ()
    assert node.after(30) == ()


def test_a_port_is_reported_as_healthy_after_ten_seconds(node: Node) -> None:
    node.change(state("1: DOWN"))
    for _ in range(4):
        node.after(1)
    node.change(state("4: ACTIVE"))
    reports = [node.after(1) for _ in range(11)]
    assert [len(events) for events in reports] == [0] * 10 + [1]
    assert reports[-1][0].state is HealthState.HEALTHY


def test_ports_are_read_once_a_second_and_no_more(node: Node) -> None:
    node.after(1)
    node.change(state("1: DOWN"))
    for _ in range(5):
        assert node.after(0.1) == ()
    assert values(node.sample(), "port_flaps_total") == [1]


def test_a_device_that_leaves_the_class_is_reported_after_two_readings(node: Node) -> None:
    node.remove("/sys/class/infiniband/mlx5_0")
    assert node.after(1) == ()
    (event,) = node.after(1)
    assert (event.key, event.reason, event.state) == ("", "RdmaDevicesChanged", None)
    assert node.after(1) == ()


def test_an_added_device_is_reported(node: Node) -> None:
    node.change(made.nic("0000:40:00.0", "mlx5_1", uverbs=1))
    assert node.after(1) == ()
    (event,) = node.after(1)
    assert event.reason == "RdmaDevicesChanged"


def test_a_listing_that_is_as_before_is_nothing_to_tell(node: Node) -> None:
    node.remove("/sys/class/infiniband/mlx5_0")
    node.after(1)
    node.change(made.nic(PF, "mlx5_0"))
    assert node.after(1) == ()
    assert node.after(1) == ()


def test_errors_of_a_link_are_reported_and_change_no_health(node: Node) -> None:
    node.sample()
    node.change({f"{PORT}/counters/symbol_error": b"50\n"})
    node.clock.advance(10)
    node.sample()
    (event,) = node.after(0)
    assert (event.reason, event.state) == ("PortErrors", None)
    assert "symbol_error +50" in event.message


def test_the_ports_own_counter_shows_flapping(node: Node) -> None:
    node.sample()
    node.change({f"{PORT}/counters/link_downed": b"3\n"})
    node.clock.advance(10)
    node.sample()
    (event,) = node.after(1)
    assert (event.reason, event.state) == ("LinkFlapping", HealthState.SUSPECT)


def test_counters_are_read_each_ten_seconds_and_states_each_time(node: Node) -> None:
    assert values(node.sample(), "port_symbol_errors_total") == [0]
    node.change({f"{PORT}/counters/symbol_error": b"5\n"} | state("3: ARMED"))
    node.clock.advance(9)
    sample = node.sample()
    assert values(sample, "port_symbol_errors_total") == [0]
    assert values(sample, "port_state") == [3]
    node.clock.advance(1)
    assert values(node.sample(), "port_symbol_errors_total") == [5]


def test_the_rate_of_a_port_that_is_down_is_absent(node: Node) -> None:
    assert values(node.sample(), "port_rate_bytes_per_second") == [400_000 * 125_000]
    node.change(state("1: DOWN"))
    node.clock.advance(10)
    assert values(node.sample(), "port_rate_bytes_per_second") == []


def test_lids_belong_to_infiniband(node: Node) -> None:
    assert values(node.sample(), "port_lid") == [0x12]
    node.change({f"{PORT}/link_layer": b"Ethernet\n"})
    node.clock.advance(10)
    assert values(node.sample(), "port_lid") == []


def test_a_device_that_left_has_no_sample(node: Node) -> None:
    node.remove("/sys/class/infiniband/mlx5_0")
    assert node.session.sample() == ()


def test_a_device_that_is_removed_during_a_reading_is_not_judged(node: Node) -> None:
    watch = RdmaWatch(node.host, RdmaSettings(), LIVE_CONTEXT, node.clock)
    target = WatchTarget(key=PF, device=CountedDevice(name="mlx5_0", ports=(1,)))
    assert watch.judge(target) is not None
    node.remove("/sys/class/infiniband/mlx5_0")
    assert watch.judge(target) is None


def test_info_carries_what_a_device_is(node: Node) -> None:
    (info,) = [item for item in node.sample().readings if item.family == "xpu_rdma_info"]
    assert info.labels == (
        "mlx5_0",
        "",
        "28.39.1002",
        "MT4129",
        "0c42:a103:0011:2233",
        "mlx5_core",
        "InfiniBand",
        "",
    )


def test_every_reading_belongs_to_a_declared_family(node: Node) -> None:
    families = {family.name: family for family in FAMILIES}
    for reading in node.sample().readings:
        assert len(reading.labels) == len(families[reading.family].labels)


def test_waiting_ends_when_the_session_does(node: Node) -> None:
    node.session.close()
    assert node.session.events(60) == ()


def test_a_member_of_a_bond_without_carrier_makes_it_suspect(tmp_path: Path) -> None:
    entries = made.function(PF, net="eth0") | made.device(PF, "mlx5_bond_0")
    entries |= made.function("0000:18:00.1", net="eth1")
    carrier = f"{made.place('0000:18:00.1')}/net/eth1/carrier"
    node = Node(tmp_path, entries | {carrier: b"1\n"}, RdmaSettings())
    (device,) = node.session.discover().devices
    facts = dict(device.facts)
    assert facts["lag"] == "true"
    assert facts["members"] == f"{PF},0000:18:00.1"
    assert facts["netdevs"] == "eth0,eth1"
    assert device.health.state is HealthState.HEALTHY
    node.change({carrier: b"0\n"})
    (event,) = node.after(1)
    assert (event.reason, event.state) == ("LagDegraded", HealthState.SUSPECT)
