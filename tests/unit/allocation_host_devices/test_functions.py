"""RDMA functions as sysfs shows them now, and those that pods have in their namespaces."""

from __future__ import annotations

from pathlib import Path

from agent.clock import ManualClock
from agent.recording.tree import TreeFiles
from agent.snapshot.device import DeviceNode
from plugins.vendors.rdma.host_functions import REFRESH_S, RdmaFunctionReader
from tests.factory import nic
from tests.unit.allocation_host_devices.made import Living, here, link, reader, recorded

PCI = "/sys/bus/pci/devices"
PF, VF = "0000:18:00.0", "0000:18:00.1"
NIC = nic(0, vfs=1).info


def sysfs(*, vf: bool = True, driver: str = "mlx5_core") -> TreeFiles:
    files: dict[str, object] = {}
    rows = [
        ("mlx5_0", PF, 0),
        ("mlx5_1", PF, 1),
        ("smi1", PF, 9),
        *([("mlx5_7", VF, 7)] * vf),
    ]
    for name, address, number in rows:
        files[f"{PCI}/{address}/infiniband/{name}/node_type"] = "1: CA"
        files[f"/sys/class/infiniband/{name}/node_type"] = "1: CA"
        files[f"/sys/class/infiniband_verbs/uverbs{number}/ibdev"] = name
        files[f"/sys/class/infiniband_verbs/uverbs{number}/dev"] = f"231:{192 + number}"
        files[f"/sys/class/infiniband_mad/umad{number}/ibdev"] = name
        files[f"/sys/class/infiniband_mad/umad{number}/dev"] = f"231:{number}"
        files[f"/sys/class/infiniband_mad/issm{number}/ibdev"] = name
        files[f"/sys/class/infiniband_mad/issm{number}/dev"] = f"231:{64 + number}"
    for address in (PF, VF):
        files[f"{PCI}/{address}/driver"] = link(f"../../../bus/pci/drivers/{driver}")
    files[f"{PCI}/{PF}/net/ens1/mtu"] = "1500"
    return recorded(files)  # type: ignore[arg-type]  # texts and links


def verbs(number: int) -> DeviceNode:
    return DeviceNode(path=f"/dev/infiniband/uverbs{number}", major=231, minor=192 + number)


def test_a_function_has_its_devices_the_primary_first_and_no_switch_manager() -> None:
    whole, virtual = RdmaFunctionReader(sysfs()).read([NIC], 0.0)
    assert (whole.address, whole.names) == (PF, ("mlx5_0", "mlx5_1"))
    assert whole.verbs == (verbs(0), verbs(1))
    assert [node.path for node in whole.umad] == ["/dev/infiniband/umad0", "/dev/infiniband/umad1"]
    assert (whole.netdevs, whole.driver) == (("ens1",), "mlx5_core")
    assert (virtual.address, virtual.names, virtual.verbs) == (VF, ("mlx5_7",), (verbs(7),))


class Switching:
    """A host that is another one from now on."""

    def __init__(self, files: TreeFiles) -> None:
        self.now = files

    def __getattr__(self, name: str) -> object:
        return getattr(self.now, name)


def test_a_virtual_function_in_a_pods_namespace_is_as_it_was_last_read() -> None:
    host = Switching(sysfs())
    functions = RdmaFunctionReader(host)  # type: ignore[arg-type]  # reads as the host does
    before = functions.read([NIC], 0.0)
    host.now = sysfs(vf=False)
    assert functions.read([NIC], 1.0)[1] == before[1]
    host.now = sysfs(vf=False, driver="vfio-pci")
    function = functions.read([NIC], REFRESH_S + 1)[1]
    assert (function.verbs, function.driver) == ((), "vfio-pci")


def test_a_function_that_was_never_read_is_described_by_its_own_folder() -> None:
    folder = f"{PCI}/{VF}/infiniband_verbs"
    files = {f"{folder}/uverbs7/dev": "231:199", f"{folder}/abi_version": "1"}
    functions = RdmaFunctionReader(recorded(files)).read([NIC], 0.0)
    assert functions[1].verbs == (verbs(7),)
    assert functions[0].verbs == ()


def test_the_reader_reads_functions_of_rdma_only(tmp_path: Path) -> None:
    clock = ManualClock()
    view = reader(sysfs(), clock).read(here([NIC]))
    assert [function.address for function in view.vendors["rdma"].functions] == [PF, VF]
    host = Living(tmp_path)
    host.write("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0")
    host_devices, now = reader(host, clock), here([NIC])
    first = host_devices.read(now)
    host.reads.clear()
    assert host_devices.read(now) is first
    verbs_file = "/sys/class/infiniband_verbs/uverbs0/ibdev"
    assert verbs_file not in host.reads
    clock.advance(REFRESH_S)
    assert host_devices.read(now) is first
    assert verbs_file in host.reads  # names alone do not tell of everything
