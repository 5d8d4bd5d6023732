from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.snapshot.allocation import AllocatedDevice, AllocationRefused, DeviceAllocation
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import DeviceKind, VendorDevice
from agent.snapshot.edits import NO_EDITS, ContainerEdits
from agent.snapshot.host_devices import HostDevices
from plugins.vendors.nvidia.injection.edits import edits
from tests.unit.vendors_injection.made import (
    POD,
    UUIDS,
    allocation_of,
    env,
    gpu,
    mig,
    names_of,
    node,
    nvidia_host,
    reasons,
)

CARDS = tuple(gpu(minor) for minor in range(8))
ENV: dict[str, object] = {"injection": "env"}
NODES: dict[str, object] = {"injection": "nodes"}
CONTROL = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"]


def refused(
    grant: DeviceAllocation,
    host: HostDevices,
    cards: tuple[VendorDevice, ...] = CARDS,
    pod: ContainerSpec = POD,
) -> str:
    with pytest.raises(AllocationRefused) as caught:
        edits(cards, grant, pod, host)
    return str(caught.value)


@pytest.mark.parametrize(
    ("upstream", "visible"),
    [
        pytest.param(False, f"{UUIDS[1]},{UUIDS[0]}", id="V45"),
        pytest.param(True, "1,0", id="V45 upstreamCompatible"),
    ],
)
def test_the_environment_names_cards_by_uuid_in_pci_order(upstream: bool, visible: str) -> None:
    cards = (gpu(0, bus=0x40), gpu(1, bus=0x20))  # NVML's index 0 has minor 1
    host = nvidia_host(settings={**ENV, "upstream_compatible": upstream})
    result = edits(cards, allocation_of(UUIDS[1], UUIDS[0]), POD, host)
    assert result == ContainerEdits(env=(("NVIDIA_VISIBLE_DEVICES", visible),))


@pytest.mark.parametrize("pod", [pytest.param(POD, id="V46")])
def test_nodes_without_modeset_are_three_and_the_cards(pod: ContainerSpec) -> None:
    host = nvidia_host(settings=NODES, without=["/dev/nvidia-modeset"])
    result = edits(CARDS, allocation_of(UUIDS[2]), pod, host)
    assert names_of(result) == ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia2"]
    assert {item.permissions for item in result.nodes} == {"rw"}
    assert reasons(result) == ["NoDriverInjection"]
    assert result.env == ()


@pytest.mark.parametrize(
    "slices", [pytest.param((mig(1, 12, 13),), id="V47"), ((mig(1, 12, 13), mig(2, 12, 14)))]
)
def test_a_mig_container_gets_the_parent_and_both_capabilities_once(
    slices: tuple[object, ...],
) -> None:
    card = gpu(0, partitions=slices, facts=(("unschedulable", "MIGEnabled"),))
    uuids = [part.uuid for part in card.partitions]
    result = edits((card,), allocation_of(*uuids), POD, nvidia_host(settings=NODES))
    caps = [f"nvidia-cap{cap}" for cap in ((12, 13) if len(slices) == 1 else (12, 13, 14))]
    assert names_of(result) == [*CONTROL, "nvidia0", *caps]
    result = edits((card,), allocation_of(*uuids), POD, nvidia_host(settings=ENV))
    assert env(result) == {"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)}


def test_cards_come_by_pci_order_whatever_the_order_of_the_grant() -> None:
    result = edits(CARDS, allocation_of(UUIDS[5], UUIDS[3]), POD, nvidia_host(settings=NODES))
    assert names_of(result)[4:] == ["nvidia3", "nvidia5"]


def test_replicas_of_a_card_show_it_once() -> None:
    grant = allocation_of(f"{UUIDS[3]}::1", f"{UUIDS[3]}::0", f"{UUIDS[2]}::4")
    result = edits(CARDS, grant, POD, nvidia_host(settings=ENV))
    assert env(result) == {"NVIDIA_VISIBLE_DEVICES": f"{UUIDS[2]},{UUIDS[3]}"}
    result = edits(CARDS, grant, POD, nvidia_host(settings=NODES))
    assert names_of(result)[4:] == ["nvidia2", "nvidia3"]


def test_a_grant_without_id_means_the_minor_and_one_with_an_unknown_id_no_device() -> None:
    host = nvidia_host(settings=ENV)
    by_minor = DeviceAllocation(devices=(AllocatedDevice(type="gpu", minor=4),))
    assert env(edits(CARDS, by_minor, POD, host)) == {"NVIDIA_VISIBLE_DEVICES": UUIDS[4]}
    unknown = DeviceAllocation(devices=(AllocatedDevice(type="gpu", id="GPU-else", minor=4),))
    assert edits(CARDS, unknown, POD, host) == NO_EDITS
    assert edits(CARDS, allocation_of(UUIDS[0], kind="rdma"), POD, host) == NO_EDITS


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (["/dev/nvidia-uvm"], "UVMMissing"),
        (["/dev/nvidia2"], "DeviceNodeMissing: /dev/nvidia2"),
    ],
)
def test_a_needed_node_that_is_missing_refuses_the_grant(missing: list[str], words: str) -> None:
    assert words in refused(allocation_of(UUIDS[2]), nvidia_host(settings=NODES, without=missing))


def test_a_slice_whose_capability_nodes_are_missing_is_refused() -> None:
    card = gpu(0, partitions=(mig(1, 12, 99), mig(2), mig(3, 12)))
    host = nvidia_host(settings=NODES)
    for part in card.partitions:
        assert "MIGNodeMissing" in refused(allocation_of(part.uuid), host, (card,))


def test_a_card_that_is_cut_up_cannot_be_granted_whole() -> None:
    card = gpu(0, partitions=(mig(1, 12, 13),), facts=(("unschedulable", "MIGEnabled"),))
    assert "MIGEnabled" in refused(allocation_of(UUIDS[0]), nvidia_host(settings=ENV), (card,))


@pytest.mark.parametrize(
    "odd", [node("/dev/nvidia2", 195, 3), node("/dev/nvidia2", 196, 2)], ids=["minor", "major"]
)
def test_a_node_with_another_drivers_numbers_is_refused(odd: object) -> None:
    host = nvidia_host(settings=NODES)
    changed_nodes = tuple(odd if item.path == "/dev/nvidia2" else item for item in host.nodes)
    assert "NodeMismatch" in refused(allocation_of(UUIDS[2]), replace(host, nodes=changed_nodes))


def test_majors_that_cannot_be_read_or_have_an_old_name_do_not_stop_a_grant() -> None:
    host = nvidia_host(settings=NODES)
    for majors in ((), (("nvidia-frontend", 195),)):
        assert edits(CARDS, allocation_of(UUIDS[2]), POD, replace(host, majors=majors)).nodes


def test_nodes_below_the_root_of_a_driver_container_win() -> None:
    host = nvidia_host(settings={**NODES, "driver_root": "/run/nvidia/driver"})
    inside = node("/run/nvidia/driver/dev/nvidia2", 195, 2)
    result = edits(CARDS, allocation_of(UUIDS[2]), POD, replace(host, nodes=(*host.nodes, inside)))
    (card,) = (item for item in result.nodes if item.path == "/dev/nvidia2")
    assert card.host_path == inside.path
    assert {item.host_path for item in result.nodes if item is not card} >= {"/dev/nvidiactl"}


def test_nodes_that_the_container_has_are_not_added_again_and_others_numbers_are_refused() -> None:
    host = nvidia_host(settings=NODES)
    has = replace(POD, nodes=(node("/dev/nvidiactl", 195, 255),))
    assert "nvidiactl" not in names_of(edits(CARDS, allocation_of(UUIDS[2]), has, host))
    other = replace(POD, nodes=(node("/dev/nvidia2", 240, 7),))
    assert "DeviceConflict: /dev/nvidia2" in refused(allocation_of(UUIDS[2]), host, pod=other)


def test_imex_channels_come_as_variable_or_as_nodes() -> None:
    grant = replace(allocation_of(UUIDS[2]), channels=(0, 3))
    assert env(edits(CARDS, grant, POD, nvidia_host(settings=ENV))) == {
        "NVIDIA_VISIBLE_DEVICES": UUIDS[2],
        "NVIDIA_IMEX_CHANNELS": "0,3",
    }
    host = nvidia_host(settings=NODES)
    assert "channel0 does not exist" in refused(grant, host)
    channels = tuple(node(f"/dev/nvidia-caps-imex-channels/channel{n}", 234, n) for n in (0, 3))
    result = edits(CARDS, grant, POD, replace(host, nodes=(*host.nodes, *channels)))
    assert names_of(result)[-2:] == ["channel0", "channel3"]


@pytest.mark.parametrize(
    ("handler", "default", "way"),
    [
        ("nvidia", "", "env"),
        ("nvidia-legacy", "runc", "env"),
        ("", "nvidia", "env"),
        ("runc", "nvidia", "nodes"),
    ],
)
def test_left_to_itself_the_way_follows_the_runtime_handler(
    handler: str, default: str, way: str
) -> None:
    pod = replace(POD, runtime_handler=handler)
    result = edits(CARDS, allocation_of(UUIDS[0]), pod, nvidia_host(default_handler=default))
    assert bool(result.env) is (way == "env")
    assert bool(result.nodes) is (way == "nodes")


@pytest.mark.parametrize(
    ("policy", "pod", "variable", "has_note"),
    [
        ("void", {}, "void", True),
        ("warn", {}, None, True),
        ("off", {}, None, False),
        ("void", {"privileged": True}, None, True),
        ("void", {"protected": True}, None, True),
        ("void", {"given_elsewhere": True}, None, False),
        (
            "void",
            {"env": (("NVIDIA_VISIBLE_DEVICES", "all"), ("NVIDIA_VISIBLE_DEVICES", " "))},
            None,
            False,
        ),
        ("void", {"env": (("NVIDIA_VISIBLE_DEVICES", "none"),)}, None, False),
        ("void", {"runtime_handler": "runc"}, None, False),
    ],
)
def test_a_container_that_requests_devices_by_itself_is_reported_or_gets_nothing(
    policy: str, pod: dict[str, object], variable: str | None, has_note: bool
) -> None:
    asks = replace(POD, runtime_handler="nvidia", env=(("NVIDIA_VISIBLE_DEVICES", "all"),))
    container = replace(asks, unallocated_policy=policy, **pod)
    result = edits(CARDS, DeviceAllocation(), container, nvidia_host())
    assert env(result).get("NVIDIA_VISIBLE_DEVICES") == variable
    assert reasons(result) == (["UngrantedDevices"] if has_note else [])


@pytest.mark.parametrize("uuid", ["GPU-a,all", "all", "none", "0", "GPU a", "../GPU-a", "GPU-ä"])
def test_an_odd_uuid_never_reaches_the_environment(uuid: str) -> None:
    card = VendorDevice(
        kind=DeviceKind.GPU, vendor="nvidia", bus_id="0000:10:00.0", uuid=uuid, minor=0
    )
    assert "BadDeviceId" in refused(allocation_of(uuid), nvidia_host(settings=ENV), (card,))
