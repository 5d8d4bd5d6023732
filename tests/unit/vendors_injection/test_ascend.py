from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.snapshot.allocation import AllocatedDevice, AllocationRefused, DeviceAllocation
from agent.snapshot.device import DeviceKind, DevicePartition, VendorDevice
from agent.snapshot.edits import NO_EDITS
from agent.snapshot.host_devices import CdiDevice, CdiSpec, HostDevices
from plugins.vendors.ascend.injection import SOURCES, edits
from plugins.vendors.ascend.settings import AscendSettings
from tests.unit.vendors_injection.made import POD, allocation_of, env, names_of, nodes, reasons

MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc", "dvpp_cmdlist")
COMMON, DRIVER = (f"/usr/local/Ascend/driver/lib64/{name}" for name in ("common", "driver"))
RUNTIME = replace(POD, runtime_handler="ascend-docker-runtime")
VNPU = DevicePartition(uuid="die-3-116", profile="vir05_1c_16g", instance=116)


def npu(phy: int, **changes: object) -> VendorDevice:
    device = VendorDevice(
        kind=DeviceKind.NPU,
        vendor="huawei",
        bus_id=f"0000:{0xC0 + phy:02x}:00.0",
        uuid=f"die-{phy}",
        minor=phy,
        vendor_minor=phy,
    )
    return replace(device, **changes)


CHIPS = tuple(npu(phy) for phy in range(8))


def host(*names: str, paths: tuple[str, ...] = (), **changes: object) -> HostDevices:
    """A host with these nodes below /dev, or with those of eight chips."""
    node_names = names or (*(f"davinci{phy}" for phy in range(8)), *MANAGERS, "vdavinci116")
    devices = HostDevices(
        nodes=nodes(*(f"/dev/{name}" for name in node_names)), paths=frozenset(paths)
    )
    return replace(devices, **changes)


def template(name: str, partition: str = "") -> DeviceAllocation:
    entry = AllocatedDevice(type="gpu", id="die-3", template=name, partition=partition)
    return DeviceAllocation(devices=(entry,))


@pytest.mark.parametrize("ids", [pytest.param(("die-3", "die-1"), id="46")])
def test_whole_chips_come_ascending_with_all_managers(ids: tuple[str, ...]) -> None:
    result = edits(CHIPS, allocation_of(*ids), POD, host())
    assert names_of(result) == ["davinci1", "davinci3", *MANAGERS]
    assert {item.permissions for item in result.nodes} == {"rw"}
    assert env(result) == {"ASCEND_VISIBLE_DEVICES": "1,3"}


@pytest.mark.parametrize("number", [pytest.param(116, id="47")])
def test_a_vnpu_is_shown_under_a_chips_name(number: int) -> None:
    chip = npu(3, partitions=(VNPU,))
    result = edits((chip,), template("vir05_1c_16g", VNPU.uuid), POD, host())
    assert (result.nodes[0].host_path, result.nodes[0].path) == (
        f"/dev/vdavinci{number}",
        f"/dev/davinci{number}",
    )
    assert names_of(result)[1:] == list(MANAGERS)
    assert env(result) == {
        "ASCEND_VISIBLE_DEVICES": str(number),
        "ASCEND_RUNTIME_OPTIONS": "VIRTUAL",
    }


@pytest.mark.parametrize(
    ("own", "exist", "path"),
    [
        pytest.param(f"/a:{DRIVER}", (COMMON, DRIVER), f"{COMMON}:/a:{DRIVER}", id="48"),
        ("", (COMMON, DRIVER), f"{COMMON}:{DRIVER}"),
        (f"{DRIVER}:{COMMON}", (COMMON, DRIVER), None),
        ("/a", (), None),
        ("/a", (DRIVER,), f"{DRIVER}:/a"),
    ],
)
def test_the_drivers_folders_come_before_the_containers_own(
    own: str, exist: tuple[str, ...], path: str | None
) -> None:
    pod = replace(POD, env=(("LD_LIBRARY_PATH", own),))
    result = edits(CHIPS, allocation_of("die-1"), pod, host(paths=exist))
    assert env(result).get("LD_LIBRARY_PATH") == path


@pytest.mark.parametrize(
    ("policy", "default", "variable", "has_note"),
    [
        pytest.param("void", "ascend", "void", True, id="49"),
        ("warn", "ascend", None, True),
        ("off", "ascend", None, False),
        ("void", "runc", None, False),
    ],
)
def test_an_image_that_requests_chips_without_a_grant_gets_none(
    policy: str, default: str, variable: str | None, has_note: bool
) -> None:
    pod = replace(POD, env=(("ASCEND_VISIBLE_DEVICES", "0"),), unallocated_policy=policy)
    result = edits(CHIPS, DeviceAllocation(), pod, host(default_handler=default))
    assert env(result).get("ASCEND_VISIBLE_DEVICES") == variable
    assert bool(reasons(result)) is has_note


def test_with_the_makers_runtime_the_environment_is_all() -> None:
    assert edits(CHIPS, allocation_of("die-3", "die-1"), RUNTIME, host()) == replace(
        NO_EDITS, env=(("ASCEND_VISIBLE_DEVICES", "1,3"),)
    )
    result = edits(CHIPS, template("vir05_1c_16g"), RUNTIME, host())
    assert env(result) == {
        "ASCEND_VISIBLE_DEVICES": "3",
        "ASCEND_VNPU_SPECS": "vir05_1c_16g",
    }


@pytest.mark.parametrize(
    ("grant", "chips", "missing", "words"),
    [
        (allocation_of("die-1"), CHIPS, "davinci1", "DeviceNodeMissing: /dev/davinci1"),
        (
            allocation_of("die-1"),
            CHIPS,
            "davinci_manager",
            "DeviceNodeMissing: /dev/davinci_manager",
        ),
        (template("vir05_1c_16g"), CHIPS, "", "PartitionMissing"),
        (template("vir05_1c_16g", "other"), CHIPS, "", "PartitionMissing"),
        (
            replace(
                allocation_of("die-1"),
                devices=(*allocation_of("die-1", "die-2").devices, *template("x").devices),
            ),
            CHIPS,
            "",
            "MixedGrant",
        ),
        (
            replace(
                allocation_of("die-1"),
                devices=(*allocation_of("die-1").devices, *template("x").devices),
            ),
            CHIPS,
            "",
            "MixedGrant",
        ),
    ],
)
def test_what_the_container_could_not_use_is_refused(
    grant: DeviceAllocation, chips: tuple[VendorDevice, ...], missing: str, words: str
) -> None:
    complete = host()
    remaining = tuple(item for item in complete.nodes if item.path != f"/dev/{missing}")
    with pytest.raises(AllocationRefused, match=words):
        edits(chips, grant, POD, replace(complete, nodes=remaining))


@pytest.mark.parametrize(
    ("facts", "there", "expected"),
    [
        (
            (("family", "A5"),),
            (*MANAGERS, "uburma/u0", "ummu/m0"),
            ["davinci_manager", "hisi_hdc", "u0", "m0"],
        ),
        (
            (("family", "310B"),),
            (*MANAGERS, "davinci_manager_docker", "svm0", "hdmi"),
            ["davinci_manager", "svm0", "hdmi", "dvpp_cmdlist"],
        ),
        ((("product", "Atlas 200 Model 3000"),), MANAGERS, ["davinci_manager", "dvpp_cmdlist"]),
    ],
)
def test_each_family_has_its_managers(
    facts: tuple[tuple[str, str], ...], there: tuple[str, ...], expected: list[str]
) -> None:
    result = edits((npu(1, facts=facts),), allocation_of("die-1"), POD, host("davinci1", *there))
    assert names_of(result)[1:] == expected


def test_the_manager_for_containers_is_shown_under_the_usual_name() -> None:
    chip = npu(1, facts=(("family", "310B"),))
    with_docker = host("davinci1", "davinci_manager", "davinci_manager_docker")
    result = edits((chip,), allocation_of("die-1"), POD, with_docker)
    assert result.nodes[1].host_path == "/dev/davinci_manager_docker"


def test_driver_files_that_exist_are_mounted_unless_the_container_has_them() -> None:
    pod = replace(POD, mounts=("/usr/local/bin/npu-smi",))
    everything = host(paths=SOURCES)
    result = edits(CHIPS, allocation_of("die-1"), pod, everything)
    paths = {mount.path: mount.options[0] for mount in result.mounts}
    assert "/usr/local/bin/npu-smi" not in paths
    assert "/usr/local/Ascend/driver/topo" not in paths
    assert paths["/usr/local/Ascend/driver/lib64"] == "rbind"
    assert paths["/etc/ascend_install.info"] == "bind"
    assert "/etc/hccl_rootinfo.json" not in paths
    chip = npu(1, facts=(("super_pod_id", "0"),))
    result = edits((chip,), allocation_of("die-1"), pod, everything)
    assert "/usr/local/Ascend/driver/topo" in {mount.path for mount in result.mounts}


def test_the_nodes_own_list_of_mounts_replaces_the_default() -> None:
    host_devices = replace(
        host(paths=(*SOURCES, "/etc/hdcBasic.cfg")), mount_list=("/etc/hdcBasic.cfg", "/gone")
    )
    result = edits(CHIPS, allocation_of("die-1"), POD, host_devices)
    assert [mount.path for mount in result.mounts] == ["/etc/hdcBasic.cfg"]


def test_cdi_names_are_the_makers_or_the_agents_and_never_of_a_vnpu() -> None:
    spec = CdiSpec(path="/etc/cdi/a", kind="ascend.com/npu", devices=(CdiDevice(name="1"),))
    on = host(cdi=(spec,), cdi_enabled=True, settings=AscendSettings(injection="cdi"))
    assert edits(CHIPS, allocation_of("die-1"), POD, on).cdi == ("ascend.com/npu=1",)
    with pytest.raises(AllocationRefused, match="CDINameMissing"):
        edits(CHIPS, allocation_of("die-2"), POD, on)
    chip = npu(3, partitions=(VNPU,))
    with pytest.raises(AllocationRefused, match="CDINameMissing"):
        edits((chip,), template("vir05_1c_16g", VNPU.uuid), POD, on)
