from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.snapshot.allocation import AllocatedDevice, AllocationRefused, DeviceAllocation
from agent.snapshot.device import DeviceKind, DevicePort, VendorDevice
from agent.snapshot.edits import NO_EDITS
from agent.snapshot.host_devices import HostDevices, RdmaFunction
from plugins.vendors.rdma.injection import edits
from plugins.vendors.rdma.settings import RdmaSettings
from tests.unit.vendors_injection.made import POD, allocation_of, env, names_of, node, reasons
from tests.vendors import section

PF, VF = "0000:18:00.0", "0000:18:00.2"
MANAGER = node("/dev/infiniband/rdma_cm", 10, 123)


def function(address: str, number: int, *more: int, **changes: object) -> RdmaFunction:
    numbers = (number, *more)
    rdma_function = RdmaFunction(
        address=address,
        names=tuple(f"mlx5_{n}" for n in numbers),
        verbs=tuple(node(f"/dev/infiniband/uverbs{n}", 231, 192 + n) for n in numbers),
        umad=(node(f"/dev/infiniband/umad{number}", 231, number),),
        driver="mlx5_core",
    )
    return replace(rdma_function, **changes)


def nic(address: str = PF, **changes: object) -> VendorDevice:
    device = VendorDevice(
        kind=DeviceKind.RDMA, vendor="mlx5", bus_id=address, uuid=address, minor=0
    )
    return replace(device, **changes)


def host(*functions: RdmaFunction, manager: bool = True, **settings: object) -> HostDevices:
    return HostDevices(
        nodes=(MANAGER,) if manager else (),
        functions=functions,
        settings=section(RdmaSettings, settings),
    )


def vfs(*addresses: str) -> DeviceAllocation:
    return DeviceAllocation(devices=(AllocatedDevice(type="rdma", id=PF, vfs=addresses),))


WHOLE = allocation_of(PF, kind="rdma")


def test_a_device_is_shown_with_the_numbers_of_its_nodes() -> None:
    """V78 of the hooks' vectors."""
    address = "0000:3b:00.0"
    there = HostDevices(
        nodes=(node("/dev/infiniband/rdma_cm", 10, 58),), functions=(function(address, 0),)
    )
    result = edits((nic(address),), allocation_of(address, kind="rdma"), POD, there)
    assert [(item.path, item.major, item.minor, item.file_mode) for item in result.nodes] == [
        ("/dev/infiniband/rdma_cm", 10, 58, 0o666),
        ("/dev/infiniband/uverbs0", 231, 192, 0o666),
    ]


@pytest.mark.parametrize("grant", [pytest.param(WHOLE, id="80")])
def test_without_the_connection_manager_only_verbs_are_shown_and_that_is_reported(
    grant: DeviceAllocation,
) -> None:
    result = edits((nic(),), grant, POD, host(function(PF, 0), manager=False))
    assert names_of(result) == ["uverbs0"]
    assert reasons(result) == ["RdmaManagerMissing"]


@pytest.mark.parametrize("grant", [pytest.param(vfs(VF), id="81")])
def test_a_virtual_function_without_verbs_refuses_with_its_address(grant: DeviceAllocation) -> None:
    empty = function(VF, 2, names=(), verbs=())
    with pytest.raises(AllocationRefused, match=f"VerbsMissing: {VF}"):
        edits((nic(),), grant, POD, host(function(PF, 0), empty))


def test_a_whole_nic_comes_with_manager_memlock_and_names() -> None:
    result = edits((nic(),), WHOLE, POD, host(function(PF, 0)))
    assert names_of(result) == ["rdma_cm", "uverbs0"]
    assert {(item.file_mode, item.permissions) for item in result.nodes} == {(0o666, "rw")}
    (limit,) = result.rlimits
    assert (limit.name, limit.soft, limit.hard) == ("RLIMIT_MEMLOCK", 2**64 - 1, 2**64 - 1)
    assert env(result) == {
        "XPU_RDMA_DEVICES": "mlx5_0",
        "XPU_RDMA_PCI": PF,
        "PCIDEVICE_KOORDINATOR_SH_RDMA": PF,
    }


def test_virtual_functions_come_in_grant_order_without_the_cards_own_verbs() -> None:
    other = "0000:18:00.1"
    result = edits(
        (nic(),), vfs(VF, other), POD, host(function(PF, 0), function(VF, 2), function(other, 1))
    )
    assert names_of(result) == ["rdma_cm", "uverbs2", "uverbs1"]
    assert env(result)["XPU_RDMA_PCI"] == f"{VF},{other}"
    assert env(result)["XPU_RDMA_DEVICES"] == "mlx5_2,mlx5_1"


@pytest.mark.parametrize(("every", "expected"), [(True, [0, 1, 7]), (False, [0])])
def test_all_ports_of_a_bond_are_injected_unless_only_the_first_is_requested(
    every: bool, expected: list[int]
) -> None:
    member = "0000:18:00.1"
    bond = nic(facts=(("members", f"{PF},{member}"),))
    there = host(function(PF, 0, 1), function(member, 7), inject_all_ports=every)
    assert names_of(edits((bond,), WHOLE, POD, there))[1:] == [f"uverbs{n}" for n in expected]


@pytest.mark.parametrize("members", [(), (function("0000:18:00.1", 1, names=(), verbs=()),)])
def test_a_bond_whose_other_functions_have_no_device_of_their_own_is_shown_by_its_first(
    members: tuple[RdmaFunction, ...],
) -> None:
    bond = nic(facts=(("members", f"{PF},0000:18:00.1"),))
    result = edits((bond,), WHOLE, POD, host(function(PF, 0), *members))
    assert names_of(result) == ["rdma_cm", "uverbs0"]


def test_a_device_that_moved_into_a_pod_is_shown_by_what_was_known() -> None:
    stored = nic(
        nodes=(node("/dev/infiniband/uverbs4", 231, 196), node("/dev/infiniband/umad4", 231, 4)),
        facts=(("name", "mlx5_4"),),
    )
    result = edits((stored,), WHOLE, POD, host(function(PF, 0, names=(), verbs=())))
    assert names_of(result) == ["rdma_cm", "uverbs4"]
    assert env(result)["XPU_RDMA_DEVICES"] == "mlx5_4"
    assert "umad4" in names_of(edits((stored,), WHOLE, POD, host(inject_umad=True)))


@pytest.mark.parametrize(
    ("grant", "there", "words"),
    [
        (WHOLE, host(function(PF, 0, verbs=(), driver="vfio-pci")), f"BoundToVFIO: {PF}"),
        (vfs(VF), host(function(VF, 0, verbs=(), driver="vfio-pci")), f"BoundToVFIO: {VF}"),
        (WHOLE, host(), f"VerbsMissing: {PF}"),
        (vfs(VF), host(function(PF, 0)), f"VerbsMissing: {VF} is not on this host"),
        (WHOLE, host(function(PF, 0), manager=False, require_rdma_cm=True), "rdma_cm"),
        (vfs("0000:18:00.2,all"), host(), "BadDeviceId"),
    ],
)
def test_what_the_container_could_not_use_is_refused(
    grant: DeviceAllocation, there: HostDevices, words: str
) -> None:
    with pytest.raises(AllocationRefused, match=words):
        edits((nic(),), grant, POD, there)


@pytest.mark.parametrize(
    ("layer", "host_network", "netdevs", "expected"),
    [
        ("Ethernet", False, ("eth4",), ["RdmaWithoutNetdev"]),
        ("Ethernet", True, ("eth4",), []),
        ("Ethernet", False, (), []),  # it is in the pod
        ("InfiniBand", False, ("ib0",), []),  # which needs none
    ],
)
def test_a_pod_without_the_network_device_of_its_roce_function_is_reported(
    layer: str, host_network: bool, netdevs: tuple[str, ...], expected: list[str]
) -> None:
    card = nic(ports=(DevicePort(number=1, state=4, link_layer=layer),))
    there = host(function(PF, 0, netdevs=netdevs))
    result = edits((card,), WHOLE, replace(POD, host_network=host_network), there)
    assert reasons(result) == expected
    assert names_of(result) == ["rdma_cm", "uverbs0"]


def test_one_path_with_other_numbers_in_the_container_is_a_conflict() -> None:
    has = replace(POD, nodes=(node("/dev/infiniband/uverbs0", 1, 1),))
    with pytest.raises(AllocationRefused, match="DeviceConflict"):
        edits((nic(),), WHOLE, has, host(function(PF, 0)))
    same = replace(POD, nodes=(MANAGER,))
    assert names_of(edits((nic(),), WHOLE, same, host(function(PF, 0)))) == ["uverbs0"]


@pytest.mark.parametrize(("own", "value"), [((), "=mlx5_0:1"), ((("NCCL_IB_HCA", "mlx5"),), None)])
def test_nccl_gets_its_variable_unless_the_pod_sets_it(
    own: tuple[tuple[str, str], ...], value: str | None
) -> None:
    there = host(function(PF, 0), nccl_env=True)
    assert env(edits((nic(),), WHOLE, replace(POD, env=own), there)).get("NCCL_IB_HCA") == value
    assert "NCCL_IB_HCA" not in env(edits((nic(),), WHOLE, POD, host(function(PF, 0))))


def test_nothing_granted_changes_nothing() -> None:
    assert edits((nic(),), DeviceAllocation(), POD, host(function(PF, 0))) == NO_EDITS


@given(st.lists(st.text(st.characters(), max_size=30), max_size=3).map(tuple), st.text(max_size=20))
def test_hostile_names_of_functions_and_devices_never_break_a_list(
    addresses: tuple[str, ...], name: str
) -> None:
    functions = tuple(function(a, i, names=(name,)) for i, a in enumerate(addresses))
    try:
        variables = env(edits((nic(),), vfs(*addresses), POD, host(function(PF, 9), *functions)))
    except AllocationRefused:
        return
    assert variables["XPU_RDMA_PCI"] == ",".join(dict.fromkeys(addresses)) or not addresses
