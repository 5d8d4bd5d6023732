"""A sysfs tree of PCI functions on tmpfs: an eight-card server, and as many VFs as asked for."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BASE_FUNCTIONS = 136
ROOTS = 8
_BUS = "sys/bus/pci/devices"
_FACTS = {
    "ari_enabled": "1",
    "broken_parity_status": "0",
    "consistent_dma_mask_bits": "64",
    "current_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "d3cold_allowed": "1",
    "dma_mask_bits": "64",
    "enable": "1",
    "irq": "24",
    "local_cpulist": "0-47,96-143",
    "local_cpus": "0000ffff,ffffffff,00000000,0000ffff,ffffffff",
    "max_link_speed": "32.0 GT/s PCIe",
    "max_link_width": "16",
    "modalias": "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00",
    "msi_bus": "1",
    "power_state": "D0",
    "resource": "0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 13,
    "revision": "0xa1",
    "subsystem_device": "0x16c1",
    "subsystem_vendor": "0x10de",
    "uevent": "DRIVER=x\nPCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SLOT_NAME=0000:00:00.0",
}


class _Writer:
    def __init__(self, top: Path) -> None:
        self.top = top
        self.count = 0
        (top / _BUS).mkdir(parents=True)
        for name in ("nvidia", "mlx5_core", "pcieport"):
            (top / "sys/bus/pci/drivers" / name).mkdir(parents=True)

    def function(self, path: str, code: str, ids: str, **more: str) -> str:
        """Write one function; texts that start with > are links."""
        address = path.rpartition("/")[2]
        directory = self.top / "sys/devices" / path
        directory.mkdir(parents=True, exist_ok=True)
        vendor, device = ids.split(":")
        node = str(int(address[5:7], 16) >> 7)
        facts = {"class": code, "vendor": vendor, "device": device, "numa_node": node}
        for name, text in {**_FACTS, **facts, **more}.items():
            if text.startswith(">"):
                (directory / name).symlink_to(text[1:])
            else:
                (directory / name).write_text(f"{text}\n", "ascii")
        if "physfn" not in more:
            (directory / "config").write_bytes(_config(code == "0x060400"))
        (self.top / _BUS / address).symlink_to(f"../../../devices/{path}")
        self.count += 1
        return path


def _config(is_bridge: bool) -> bytes:
    data = bytearray(4096)
    data[0x06], data[0x34] = 0x10, 0x40
    data[0x40:0x44] = bytes([0x10, 0, 0x62 if is_bridge else 0x02, 0])
    data[0x100:0x108] = bytes([0x0D, 0, 1, 0, 0, 0, 0x1D, 0])
    return bytes(data)


def _fill(writer: _Writer, functions: int) -> None:
    """Each root: port, switch with four ports, GPU, NIC, NVSwitch or NVMe; then odds and ends."""
    virtual = max(0, functions - BASE_FUNCTIONS)
    for number in range(ROOTS):
        bus = 0x10 + number * 0x1C
        port = writer.function(
            f"pci0000:{bus:02x}/0000:{bus:02x}:01.0", "0x060400", "0x8086:0x352a"
        )
        switch = writer.function(f"{port}/0000:{bus + 1:02x}:00.0", "0x060400", "0x1000:0xc030")
        downs = [
            writer.function(f"{switch}/0000:{bus + 2:02x}:{n:02x}.0", "0x060400", "0x1000:0xc030")
            for n in range(4)
        ]
        group = ">../../../../../../../kernel/iommu_groups/" + str(number)
        writer.function(
            f"{downs[0]}/0000:{bus + 3:02x}:00.0",
            "0x030200",
            "0x10de:0x2330",
            driver=">../../../../../../../bus/pci/drivers/nvidia",
            iommu_group=group,
        )
        _nic(writer, downs[1], bus + 4, virtual // ROOTS + (number < virtual % ROOTS), group)
        writer.function(f"{downs[2]}/0000:{bus + 20:02x}:00.0", "0x010802", "0x144d:0xa80a")
        writer.function(f"{downs[3]}/0000:{bus + 21:02x}:00.0", "0x068000", "0x10de:0x22a3")
        for n in range(7):
            writer.function(
                f"pci0000:{bus:02x}/0000:{bus:02x}:{n + 2:02x}.0", "0x088000", "0x8086:0x09a2"
            )


def _nic(writer: _Writer, port: str, bus: int, virtual: int, group: str) -> None:
    addresses = [
        f"0000:{bus + (n >> 8):02x}:{n >> 3 & 31:02x}.{n & 7}" for n in range(1, virtual + 1)
    ]
    driver = ">../../../../../../../bus/pci/drivers/mlx5_core"
    links = {f"virtfn{n}": f">../{address}" for n, address in enumerate(addresses)}
    physical = f"0000:{bus:02x}:00.0"
    writer.function(
        f"{port}/{physical}",
        "0x020700",
        "0x15b3:0x1021",
        driver=driver,
        iommu_group=group,
        sriov_totalvfs="1024",
        sriov_numvfs=str(virtual),
        **links,
    )
    for address in addresses:
        writer.function(
            f"{port}/{address}",
            "0x020700",
            "0x15b3:0x101e",
            driver=driver,
            iommu_group=group,
            physfn=f">../{physical}",
            numa_node="-1",
        )


@contextmanager
def pci_tree(functions: int) -> Iterator[Path]:
    """Make a tree of so many functions, on memory where there is some; gone at the end."""
    memory = "/dev/shm"
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="xpu-bench-") as directory:
        writer = _Writer(Path(directory))
        _fill(writer, functions)
        if writer.count != functions:
            raise AssertionError(f"{writer.count} functions instead of {functions}")
        yield Path(directory)
