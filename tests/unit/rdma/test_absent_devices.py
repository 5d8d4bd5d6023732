from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.recording.tree import LinkEntry
from agent.snapshot.device import HealthState, VendorDevice
from agent.snapshot.vendor import SessionContext
from plugins.vendors.rdma.session import RdmaSession
from plugins.vendors.rdma.settings import RdmaSettings
from tests.unit.rdma import made

PF = "0000:18:00.0"
CLASS = "/sys/class/infiniband"


def fact(device: VendorDevice, name: str) -> str | None:
    return dict(device.facts).get(name)


class Boot:
    """One machine on disk whose agent may be started again."""

    def __init__(self, folder: Path, entries: made.Entries) -> None:
        self.root = folder / "host"
        self.state = folder / "state"
        self.host = made.disk(self.root, entries)
        self.start()

    def start(self) -> None:
        self.session = RdmaSession(
            self.host, RdmaSettings(), SessionContext(state_dir=str(self.state))
        )

    def look(self) -> dict[str, VendorDevice]:
        return {item.key: item for item in self.session.discover().devices}

    def remove(self, path: str) -> None:
        target = self.root / path.lstrip("/")
        if target.is_symlink() or target.is_file():
            target.unlink()
        else:
            shutil.rmtree(target)

    def hide(self, name: str, address: str) -> None:
        """Take an RDMA device out of this namespace, as moving it into a pod's does."""
        self.remove(f"{CLASS}/{name}")
        self.remove(f"{made.place(address)}/infiniband")


@pytest.fixture
def boot(tmp_path: Path) -> Boot:
    result = Boot(
        tmp_path, made.nics((PF, "mlx5_3"), ("0000:40:00.0", "mlx5_4")) | made.exclusive()
    )
    result.look()
    return result


@pytest.mark.parametrize("restart", [False, True])
def test_a_device_in_a_pods_namespace_stays_as_it_was_vector_82(boot: Boot, restart: bool) -> None:
    boot.hide("mlx5_3", PF)
    if restart:
        boot.start()
    device = boot.look()[PF]
    assert (device.managed, device.minor, device.uuid) == (True, 3, PF)
    assert (fact(device, "in_namespace"), fact(device, "name")) == ("true", "mlx5_3")
    assert fact(device, "node_guid") == "0c42:a103:0011:2233"
    assert device.health.state is HealthState.HEALTHY
    assert device.ports == ()


def test_a_device_that_comes_back_from_a_pod_is_as_before(boot: Boot) -> None:
    before = boot.look()[PF]
    boot.hide("mlx5_3", PF)
    boot.look()
    made.disk(boot.root, made.nic(PF, "mlx5_3"))
    assert boot.look()[PF] == before


def test_an_agent_that_starts_late_knows_it_by_its_driver(boot: Boot) -> None:
    boot.hide("mlx5_3", PF)
    shutil.rmtree(boot.state)
    boot.start()
    device = boot.look()[PF]
    assert (fact(device, "in_namespace"), fact(device, "node_guid")) == ("true", None)
    assert device.managed


def test_in_shared_mode_a_device_that_vanishes_is_missed_twice_first(boot: Boot) -> None:
    boot.remove("/sys/module/ib_core/parameters/netns_mode")
    boot.look()
    boot.hide("mlx5_3", PF)
    assert boot.look()[PF].health.state is HealthState.HEALTHY
    assert [event.reason for event in boot.session.events(0)] == ["RdmaDeviceMissed"]
    device = boot.look()[PF]
    assert (device.health.state, device.health.reason) == (HealthState.FAILED, "NoRdmaDevice")
    assert device.health.since_s is not None
    assert boot.look()[PF] == device


def test_row_16_a_function_that_is_gone_stays_listed_as_failed(boot: Boot) -> None:
    boot.hide("mlx5_3", PF)
    boot.remove(f"{made.PCI}/{PF}")
    boot.remove(made.place(PF))
    boot.look()
    device = boot.look()[PF]
    assert (device.health.reason, device.minor, device.managed) == ("DeviceGone", 3, True)


@pytest.mark.parametrize("vendor", [b"0xffff", b"0x0000"])
def test_a_function_that_answers_nothing_is_gone(boot: Boot, vendor: bytes) -> None:
    made.disk(boot.root, {f"{made.place(PF)}/vendor": vendor})
    boot.look()
    device = boot.look()[PF]
    assert (device.health.reason, device.minor) == ("DeviceGone", 3)


def test_an_unbound_function_is_unmanaged_at_once(boot: Boot) -> None:
    boot.hide("mlx5_3", PF)
    boot.remove(f"{made.place(PF)}/driver")
    device = boot.look()[PF]
    assert (device.health.reason, device.managed) == ("DriverUnbound", False)


def test_a_function_given_to_a_virtual_machine_says_so(boot: Boot) -> None:
    boot.hide("mlx5_3", PF)
    made.disk(boot.root, {f"{made.place(PF)}/driver": LinkEntry("../../bus/pci/drivers/vfio-pci")})
    device = boot.look()[PF]
    assert (device.health.reason, device.managed, device.minor) == ("BoundToVFIO", False, None)


def test_a_renamed_device_is_the_same_vector_85(boot: Boot) -> None:
    before = boot.look()[PF]
    boot.hide("mlx5_3", PF)
    made.disk(boot.root, made.device(PF, "ibp24s0"))
    after = boot.look()[PF]
    assert (after.minor, after.health, after.uuid) == (before.minor, before.health, before.uuid)
    assert fact(after, "name") == "ibp24s0"


def test_numbers_survive_a_restart_with_other_names(boot: Boot) -> None:
    boot.hide("mlx5_3", PF)
    made.disk(boot.root, made.device(PF, "mlx5_9"))
    boot.start()
    assert [item.minor for item in boot.look().values()] == [3, 4]


def test_a_used_port_is_known_after_a_restart(boot: Boot) -> None:
    made.disk(boot.root, made.device(PF, "mlx5_3", states=(made.DOWN, made.DOWN)))
    made.disk(
        boot.root,
        made.port(f"{made.place(PF)}/infiniband/mlx5_3", 2, made.DOWN, physical="3: Disabled")
        | made.port(f"{made.place(PF)}/infiniband/mlx5_3", 1, made.DOWN, physical="3: Disabled"),
    )
    boot.start()
    assert boot.look()[PF].health.reason == "PortDisabled"


def test_a_bond_in_a_pod_is_one_device_as_it_was(tmp_path: Path) -> None:
    entries = made.exclusive() | made.device(PF, "mlx5_bond_0")
    for number in range(2):
        address = f"0000:18:00.{number}"
        entries |= made.function(address, net=f"eth{number}")
        entries[f"{made.place(address)}/net/eth{number}/master"] = LinkEntry(
            "../../../virtual/net/bond0"
        )
    boot = Boot(tmp_path, entries)
    assert list(boot.look()) == [PF]
    boot.hide("mlx5_bond_0", PF)
    assert list(boot.look()) == [PF]
    assert boot.look()[PF].minor == 0
