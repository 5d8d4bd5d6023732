from __future__ import annotations

import pytest

from agent.recording.tree import LinkEntry
from agent.snapshot.device import VirtualFunction
from plugins.vendors.rdma.discovery.nics import (
    Nic,
    VirtualFunctions,
    nics_of,
    virtual_functions,
    without_device,
)
from plugins.vendors.rdma.settings import PoolRule, RdmaSettings
from plugins.vendors.rdma.sysfs.classes import (
    ClassKind,
    DeviceOrigin,
    netns_mode,
    origin_of,
    primary_name,
    read_nodes,
)
from plugins.vendors.rdma.sysfs.functions import PCI, RdmaScan, read_function, read_scan
from plugins.vendors.rdma.sysfs.pod_cgroups import pod_limits
from tests.unit.rdma import made
from tests.vendors import section

PF = "0000:18:00.0"


@pytest.mark.parametrize(
    ("link", "origin"),
    [
        pytest.param(
            "../../devices/pci0000:17/0000:17:01.0/0000:18:00.0/infiniband/mlx5_0",
            DeviceOrigin(ClassKind.HARDWARE, PF),
            id="hardware",
        ),
        pytest.param(
            "../../devices/pci0000:17/0000:18:00.0/mlx5_core.sf.4/infiniband/mlx5_10",
            DeviceOrigin(ClassKind.SUBFUNCTION, PF),
            id="subfunction",
        ),
        pytest.param(
            "../../devices/virtual/infiniband/rxe_eth0", DeviceOrigin(ClassKind.SOFT), id="soft"
        ),
        pytest.param(
            "../../devices/scif_dma_0/infiniband/scif0", DeviceOrigin(ClassKind.OTHER), id="scif"
        ),
        pytest.param("../../../etc/passwd", DeviceOrigin(ClassKind.OTHER), id="row-6-outside"),
        pytest.param("/" * 10_000, DeviceOrigin(ClassKind.OTHER), id="row-6-long"),
        pytest.param(
            "..//devices//0000:18:00.0//infiniband/mlx5_0/",
            DeviceOrigin(ClassKind.HARDWARE, PF),
            id="row-6-slashes",
        ),
    ],
)
def test_what_stands_behind_a_class_entry(link: str, origin: DeviceOrigin) -> None:
    assert origin_of(link) == origin


@pytest.mark.parametrize(
    ("names", "primary"),
    [
        pytest.param(["mlx5_10", "mlx5_2"], "mlx5_2", id="69-shortest"),
        pytest.param(["mlx5_3", "mlx5_2"], "mlx5_2", id="then-by-bytes"),
    ],
)
def test_the_name_that_stands_for_a_function(names: list[str], primary: str) -> None:
    assert primary_name(names) == primary


def scanned_nics(entries: made.Entries) -> tuple[RdmaScan, tuple[Nic, ...]]:
    scan = read_scan(made.tree(entries))
    return scan, nics_of(scan)


def test_switch_management_shares_the_function_and_is_no_nic_vector_69() -> None:
    _, nics = scanned_nics(made.nic(PF, "mlx5_0") | made.device(PF, "smi1", uverbs=1))
    assert [(nic.primary.name, nic.others) for nic in nics] == [("mlx5_0", ("smi1",))]


@pytest.mark.parametrize("node_type", ["2: switch", "3: router"])
def test_switches_and_routers_are_no_nics(node_type: str) -> None:
    _, nics = scanned_nics(made.function(PF) | made.device(PF, "mlx5_0", node_type=node_type))
    assert nics == ()


def test_a_subfunction_is_listed_with_its_function() -> None:
    sub: made.Entries = {
        "/sys/class/infiniband/mlx5_9": LinkEntry(
            f"../../devices/pci0000:10/{PF}/mlx5_core.sf.4/infiniband/mlx5_9"
        ),
        f"{made.place(PF)}/mlx5_core.sf.4/infiniband/mlx5_9/node_type": b"1: CA\n",
    }
    _, nics = scanned_nics(made.nic(PF, "mlx5_10") | sub)
    assert [(nic.primary.name, nic.subfunctions) for nic in nics] == [("mlx5_10", ("mlx5_9",))]


def test_a_virtual_function_on_its_host_is_no_nic() -> None:
    _, nics = scanned_nics(
        made.nic(PF, "mlx5_0") | made.virtual(PF, 0, "0000:18:00.1", "mlx5_core", "mlx5_1")
    )
    assert [nic.function.address for nic in nics] == [PF]


def test_nics_come_in_pci_order() -> None:
    entries = made.nics((PF, "b"), ("10000:00:00.0", "a")) | made.nics(("0001:00:00.0", "c"))
    _, nics = scanned_nics(entries)
    assert [nic.primary.name for nic in nics] == ["b", "c", "a"]


def bond(name: str, *masters: str) -> made.Entries:
    """Two functions of one card, the second without RDMA device."""
    entries = made.function(PF, net="eth0") | made.device(PF, name)
    entries |= made.function("0000:18:00.1", net="eth1")
    for number, master in enumerate(masters):
        base = made.place(f"0000:18:00.{number}")
        entries[f"{base}/net/eth{number}/master"] = LinkEntry(
            f"../../../../../virtual/net/{master}"
        )
    return entries


@pytest.mark.parametrize(
    ("entries", "members"),
    [
        pytest.param(bond("mlx5_bond_0"), (PF, "0000:18:00.1"), id="by-name"),
        pytest.param(bond("rocep24s0", "bond0", "bond0"), (PF, "0000:18:00.1"), id="by-master"),
        pytest.param(bond("rocep24s0", "bond0", "bond1"), (), id="two-bonds"),
        pytest.param(bond("mlx5_bond_0", "bond0", "bond1"), (PF,), id="named-but-other-master"),
        pytest.param(bond("mlx5_0"), (), id="no-bond"),
    ],
)
def test_members_of_a_bond(entries: made.Entries, members: tuple[str, ...]) -> None:
    scan, nics = scanned_nics(entries)
    assert nics[0].members == members
    assert [item.address for item in without_device(scan, nics)] == (
        [] if len(members) == 2 else ["0000:18:00.1"]
    )


def virtuals(entries: made.Entries, pools: tuple[PoolRule, ...] = ()) -> VirtualFunctions:
    scan = read_scan(made.tree(entries))
    pf = scan.functions[PF]
    return virtual_functions(
        pf, "mlx5_0", scan.functions, pools, exclusive=scan.has_exclusive_netns
    )


VFS = made.nic(PF, "mlx5_0") | {
    path: entry
    for index, address in ((0, "0000:18:00.1"), (10, "0000:18:01.3"), (2, "0000:18:00.3"))
    for path, entry in made.virtual(PF, index, address, "mlx5_core", f"mlx5_{index + 1}").items()
}


def test_virtual_functions_are_one_group_by_address_vector_73() -> None:
    result = virtuals(VFS)
    assert len(result.groups) == 1
    assert result.groups[0].labels == ()
    assert result.groups[0].vfs == (
        VirtualFunction(bus_id="0000:18:00.1", minor=-1),
        VirtualFunction(bus_id="0000:18:00.3", minor=-1),
        VirtualFunction(bus_id="0000:18:01.3", minor=-1),
    )


def test_a_virtual_machines_function_is_left_out_vector_74() -> None:
    entries = made.nic(PF, "mlx5_0")
    for index in range(4):
        driver = "vfio-pci" if index == 1 else "mlx5_core"
        name = None if index == 1 else f"mlx5_{index + 1}"
        entries |= made.virtual(PF, index, f"0000:18:00.{index + 1}", driver, name)
    result = virtuals(entries)
    assert [vf.bus_id for vf in result.groups[0].vfs] == [
        "0000:18:00.1",
        "0000:18:00.3",
        "0000:18:00.4",
    ]
    assert (result.enabled, result.usable) == (4, 3)


def test_a_function_in_a_pod_stays_where_devices_have_one_namespace() -> None:
    vf = made.virtual(PF, 0, "0000:18:00.1", "mlx5_core", None)
    assert virtuals(made.nic(PF, "mlx5_0") | vf).groups == ()
    assert virtuals(made.nic(PF, "mlx5_0") | vf | made.exclusive()).usable == 1


def test_pools_make_groups_in_their_order_and_the_rest_comes_last() -> None:
    rules = [
        {"pf": PF, "vfs": "10", "labels": {"pool": "b"}},
        {"pf": "mlx5_0", "vfs": "2-9", "driver": "mlx5_core", "labels": {"pool": "a"}},
        {"pf": "mlx5_7", "labels": {"pool": "never"}},
        {"pf": PF, "driver": "other"},
    ]
    groups = virtuals(VFS, section(RdmaSettings, {"vf_pools": rules}).pool_rules).groups
    assert [(dict(group.labels), [vf.bus_id for vf in group.vfs]) for group in groups] == [
        ({"pool": "b"}, ["0000:18:01.3"]),
        ({"pool": "a"}, ["0000:18:00.3"]),
        ({}, ["0000:18:00.1"]),
    ]


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({f"{made.place(PF)}/virtfn3": LinkEntry(f"../{PF}")}, id="itself"),
        pytest.param({f"{made.place(PF)}/virtfn3": LinkEntry("../0000:99:00.0")}, id="nothing"),
        pytest.param(
            made.nic("0000:40:00.0", "mlx5_9")
            | {f"{made.place(PF)}/virtfn3": LinkEntry("../0000:40:00.0")},
            id="no-virtual-function",
        ),
        pytest.param({f"{made.place(PF)}/sriov_numvfs": b"-1\n"}, id="a-number-that-is-none"),
        pytest.param({f"{made.place(PF)}/sriov_numvfs": b"44\n"}, id="a-number-that-lies"),
        pytest.param({f"{made.place(PF)}/virtfnX": LinkEntry("../0000:18:00.1")}, id="no-index"),
    ],
)
def test_row_7_links_that_lead_nowhere_cost_nobody_else(extra: made.Entries) -> None:
    assert virtuals(VFS | extra).usable == 3


def test_row_7_of_two_pfs_that_name_one_function_its_own_keeps_it() -> None:
    other = made.nic("0000:40:00.0", "mlx5_9") | {
        f"{made.place('0000:40:00.0')}/virtfn0": LinkEntry("../0000:18:00.1")
    }
    scan = read_scan(made.tree(VFS | other))
    result = virtual_functions(
        scan.functions["0000:40:00.0"], "mlx5_9", scan.functions, (), exclusive=False
    )
    assert (result.groups, result.strays) == ((), ("0000:18:00.1",))


@pytest.mark.parametrize(
    ("link", "root"),
    [
        (f"../../../devices/pci0000:10/{PF}", "pci0000:10"),
        (f"../../../devices/pci0000:10/{PF}/", "pci0000:10"),
        ("../../../devices/pci0000:10/0000:19:00.0", None),
    ],
)
def test_row_6_a_link_that_names_another_function_gives_no_root(
    link: str, root: str | None
) -> None:
    entries = made.function(PF) | made.function("0000:19:00.0")
    entries[f"{PCI}/{PF}"] = LinkEntry(link)
    assert read_function(made.tree(entries), PF).root == root


@pytest.mark.parametrize(
    ("mode", "name"), [(b"N\n", "exclusive"), (b"Y\n", "shared"), (b"\0\n", "shared")]
)
def test_the_namespace_mode(mode: bytes, name: str) -> None:
    path = "/sys/module/ib_core/parameters/netns_mode"
    assert netns_mode(made.tree({path: mode})) == name


def test_device_nodes_of_one_device_with_several_ports() -> None:
    mad = "/sys/class/infiniband_mad"
    entries: made.Entries = {
        f"{mad}/{kind}{number}/{file}": text
        for number in range(2)
        for kind, minor in (("umad", 0), ("issm", 64))
        for file, text in (("ibdev", b"mlx5_0\n"), ("dev", f"231:{minor + number}\n".encode()))
    }
    entries |= {
        "/sys/class/misc/rdma_cm/dev": b"10:122\n",
        "/sys/class/infiniband_verbs/abi_version": b"6\n",
        "/sys/class/infiniband_verbs/xuverbs0/ibdev": b"mlx5_0\n",
        "/sys/class/infiniband_verbs/xuverbs0/dev": b"1:1\n",
    }
    nodes = read_nodes(made.tree(entries))
    assert sorted(node.path.rpartition("/")[2] for node in nodes.mad["mlx5_0"]) == [
        "issm0",
        "issm1",
        "umad0",
        "umad1",
    ]
    assert nodes.rdma_cm is not None
    assert nodes.rdma_cm.minor == 122
    assert not nodes.uverbs


def test_limits_of_all_pods_are_shown_where_there_are_some() -> None:
    path = "/sys/fs/cgroup/kubepods.slice/rdma.max"
    content = b"mlx5_0 hca_handle=2 hca_object=max \nmlx5_1 hca_handle=max hca_object=max\n"
    assert pod_limits(made.tree({path: content})) == {"mlx5_0": "handles=2 objects=max"}
