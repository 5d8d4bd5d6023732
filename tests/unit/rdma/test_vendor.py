from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import BadConfig, NotSupported
from agent.host.files import LiveHostFiles
from agent.recording.host_source import HostSource
from agent.recording.tree import DeviceNodeEntry as NodeEntry
from agent.recording.tree import LinkEntry, TreeEntry
from agent.snapshot.device import DeviceNode, HealthState, VendorDevice
from agent.workers.selection import session_context
from plugins.vendors.rdma.session import RdmaSession
from plugins.vendors.rdma.settings import RdmaSettings
from plugins.vendors.rdma.vendor import RdmaVendor
from tests.captures import capture, needs_shared
from tests.unit.rdma import made
from tests.vendors import checked_settings, decode, open_session

PF = "0000:18:00.0"
CLASS = "/sys/class/infiniband"


def devices(entries: made.Entries, **settings: object) -> dict[str, VendorDevice]:
    inventory = open_session(
        RdmaVendor(), made.tree(entries), {"replay": True, **settings}
    ).discover()
    return {device.key: device for device in inventory.devices}


def fact(device: VendorDevice, name: str) -> str | None:
    return dict(device.facts).get(name)


@needs_shared
def test_a_soft_device_of_a_real_kernel_vector_70() -> None:
    result = (
        open_session(RdmaVendor(), capture("qemu"), {"soft": True, "replay": True})
        .discover()
        .devices
    )
    device = next(item for item in result if fact(item, "name") == "rxe_eth3")
    assert (device.bus_id, device.uuid, device.vendor) == (None, "soft-505400fffe000010", "rxe")
    assert fact(device, "parent_bus_id") == "0000:25:00.0"
    assert device.nodes[0].path == "/dev/infiniband/uverbs3"
    assert device.health.state is HealthState.HEALTHY
    (port,) = device.ports
    assert (port.gid_index, port.netdev, port.rate_mbps) == (1, "eth3", 2500)
    assert port.gid == "fec0:0000:0000:0000:5054:00ff:fe00:0010"
    assert sorted(item.minor for item in result if item.minor is not None) == [0, 1, 2, 3]


@needs_shared
def test_soft_devices_have_no_traffic_counters_vector_70() -> None:
    session = open_session(RdmaVendor(), capture("qemu"), {"replay": True})
    session.discover()
    names = {reading.family for sample in session.sample() for reading in sample.readings}
    assert "xpu_rdma_port_hw_total" in names
    assert "xpu_rdma_port_transmit_bytes_total" not in names


@needs_shared
def test_soft_devices_are_listed_and_not_published_by_default() -> None:
    result = open_session(RdmaVendor(), capture("qemu"), {"replay": True}).discover().devices
    assert len(result) == 4
    assert all(not item.managed and item.minor is None and not item.resources for item in result)
    assert {item.health.reason for item in result} == {"SoftDevice"}


@needs_shared
def test_the_node_for_applications_vector_71() -> None:
    result = open_session(RdmaVendor(), capture("qemu"), {"replay": True}).discover().devices
    device = next(item for item in result if fact(item, "name") == "rxe_eth0")
    assert device.nodes == (DeviceNode(path="/dev/infiniband/uverbs0", major=231, minor=192),)


@needs_shared
def test_an_old_infiniband_card_vector_72() -> None:
    (device,) = (
        open_session(RdmaVendor(), capture("40intel64"), {"replay": True}).discover().devices
    )
    assert (device.bus_id, device.minor, device.vendor) == ("0000:43:00.0", 0, "ib_qib")
    assert device.health.state is HealthState.HEALTHY
    (port,) = device.ports
    assert (port.lid, port.rate_mbps, port.state_name) == (0x12A, 40000, "ACTIVE")
    assert port.gid == "fe80:0000:0000:0000:0011:7500:0077:cfc8"
    assert device.resources == (("koordinator.sh/rdma", "100"),)


@needs_shared
def test_entries_that_lead_to_no_function_are_listed_only() -> None:
    result = open_session(RdmaVendor(), capture("procfs-mlx4"), {"replay": True}).discover().devices
    assert [(item.uuid, item.managed) for item in result] == [
        ("other-mlx4_0", False),
        ("other-mlx5_0", False),
    ]


@needs_shared
def test_functions_whose_module_is_not_loaded_are_listed_with_the_reason() -> None:
    result = open_session(RdmaVendor(), capture("32intel64"), {"replay": True}).discover().devices
    assert [(item.bus_id, item.managed, item.health.reason) for item in result] == [
        ("0000:1a:00.0", False, "NoRdmaDevice"),
        ("0000:3e:00.0", False, "NoRdmaDevice"),
    ]


@needs_shared
@pytest.mark.parametrize(("name", "keys"), [("qemu", 4), ("40intel64", 1), ("16em64t", 0)])
def test_what_is_sighted_is_what_is_found(name: str, keys: int) -> None:
    vendor = RdmaVendor()
    observations = {
        item.key for item in vendor.detect(capture(name), RdmaSettings()) if item.bus_id
    }
    result = open_session(vendor, capture(name), {"replay": True}).discover().devices
    assert observations == {item.key for item in result if item.bus_id}
    assert len(vendor.detect(capture(name), RdmaSettings())) == keys


@pytest.mark.skipif(
    any(
        LiveHostFiles().exists(path) for path in (CLASS, "/sys/module/mlx5_core", "/sys/module/efa")
    ),
    reason="this machine has RDMA devices",
)
def test_nothing_is_sighted_on_a_machine_without_rdma() -> None:
    assert RdmaVendor().detect(LiveHostFiles("/"), RdmaSettings()) == ()
    assert open_session(RdmaVendor(), LiveHostFiles("/"), {}).discover().devices == ()


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(BadConfig):
        checked_settings(RdmaVendor.description, RdmaSettings, {"port_policy": "some"})


def test_a_recorded_host_has_no_events() -> None:
    with pytest.raises(NotSupported):
        open_session(RdmaVendor(), made.tree({}), {"replay": True}).events(1)


def test_a_nic_as_it_is_published() -> None:
    entries = made.nic(PF, "mlx5_3") | {f"{made.place(PF)}/sriov_totalvfs": b"8\n"}
    rules = [{"match": PF, "role": "compute"}]
    device = devices(entries, roles=rules)[PF]
    assert (device.uuid, device.minor, device.vendor, device.model) == (
        PF,
        3,
        "mlx5_core",
        "MT4129",
    )
    assert device.labels == (("xpu-agent.io/role", "compute"),)
    assert fact(device, "sriov_totalvfs") == "8"
    assert fact(device, "missing") == "umad,issm,rdma_cm"
    assert fact(device, "node_guid") == "0c42:a103:0011:2233"
    assert device.vf_groups == ()


def test_numbers_follow_the_rule_vector_64() -> None:
    result = devices(
        made.nics((PF, "mlx4_0"), ("0000:40:00.0", "mlx5_0"), ("0000:41:00.0", "mlx5_1"))
    )
    assert [item.minor for item in result.values()] == [0, 2, 1]


def test_a_card_on_two_roots_is_two_devices_that_know_each_other() -> None:
    entries = made.nic(PF, "mlx5_0") | made.nic(
        "0000:9a:00.0", "mlx5_1", uverbs=1, root="pci0000:99"
    )
    result = devices(entries)
    assert fact(result[PF], "samecard") == "0000:9a:00.0"
    assert fact(result["0000:9a:00.0"], "samecard") == PF


def test_row_15_two_ports_of_one_card_share_their_guid_and_nothing_else() -> None:
    result = devices(made.nics((PF, "mlx5_0"), ("0000:18:00.1", "mlx5_1")))
    assert [item.minor for item in result.values()] == [0, 1]
    assert fact(result[PF], "samecard") is None


def test_row_15_software_devices_on_one_mac_address_have_distinct_ids() -> None:
    entries: made.Entries = {}
    for name in ("rxe_eth0", "rxe_eth0.7"):
        base = f"/sys/devices/virtual/infiniband/{name}"
        entries[f"{CLASS}/{name}"] = LinkEntry(f"../../devices/virtual/infiniband/{name}")
        entries[f"{base}/node_guid"] = b"5054:00ff:fe00:0010\n"
        entries[f"{base}/parent"] = b"../../etc\n"
        entries |= made.port(base)
    assert list(devices(entries, soft=True)) == [
        "soft-505400fffe000010",
        "soft-505400fffe000010-rxe_eth0.7",
    ]


def test_row_14_a_name_that_cannot_be_one_is_reported_escaped() -> None:
    entries = made.nic(PF, "mlx5_0") | {f"{CLASS}/a\nb": LinkEntry("../x")}
    inventory = open_session(RdmaVendor(), made.tree(entries), {"replay": True}).discover()
    assert [item.reason for item in inventory.problems] == ["RdmaNameRefused"]
    assert "\n" not in inventory.problems[0].message
    assert len(inventory.devices) == 1


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        pytest.param({"uverbs0": NodeEntry(231, 192)}, "DeviceHealthy", id="right"),
        pytest.param({"uverbs0": NodeEntry(231, 193)}, "DeviceNodeMissing", id="other-numbers"),
        pytest.param({"uverbs7": NodeEntry(231, 192)}, "DeviceNodeMissing", id="missing"),
        pytest.param({}, "DeviceHealthy", id="no-view-of-the-hosts-dev"),
    ],
)
def test_the_node_must_be_there_with_the_kernels_numbers(
    nodes: dict[str, TreeEntry], reason: str
) -> None:
    entries = made.nic(PF, "mlx5_0")
    entries |= {f"/dev/infiniband/{name}": entry for name, entry in nodes.items()}
    session = RdmaSession(made.tree(entries), RdmaSettings())
    health = session.discover().devices[0].health
    assert health.reason == reason
    assert reason == "DeviceHealthy" or "uverbs0" in health.message


def test_a_device_without_uverbs_is_out_of_service() -> None:
    entries = made.function(PF) | made.device(PF, "mlx5_0", uverbs=None)
    assert devices(entries)[PF].health.reason == "DeviceNodeMissing"


def test_a_recorded_host_keeps_nothing(tmp_path: Path) -> None:
    recorded = HostSource(files=made.tree(made.nic(PF, "mlx5_0")), source="made", spec="made")
    context = session_context(decode({"node": {"state_dir": str(tmp_path / "state")}}), recorded)
    RdmaVendor().open(recorded.files, RdmaSettings(), context).discover()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        pytest.param(
            {f"{made.place(PF)}/virtfn0": LinkEntry("../0000:99:00.0")},
            "StrayVirtualFunction",
            id="row-7-a-pf-that-names-nothing",
        ),
        pytest.param(
            made.function("0000:18:00.1", physfn="0000:99:00.0")
            | made.device("0000:18:00.1", "mlx5_1"),
            "OrphanVirtualFunction",
            id="row-7-a-vf-of-nothing",
        ),
        pytest.param(
            made.function("0000:18:00.1", physfn="0000:18:00.1"),
            "OrphanVirtualFunction",
            id="row-7-a-vf-of-itself",
        ),
    ],
)
def test_links_between_functions_that_do_not_meet_are_a_problem(
    extra: made.Entries, reason: str
) -> None:
    session = open_session(
        RdmaVendor(), made.tree(made.nic(PF, "mlx5_0") | extra), {"replay": True}
    )
    inventory = session.discover()
    assert [item.reason for item in inventory.problems] == [reason]
    assert [item.key for item in inventory.devices] == [PF]
