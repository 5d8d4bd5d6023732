"""PCI functions and their tree; read by `agent.host.pci`, judged by pure rules beside this file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.topology.cpu import CpuSet


class PciLink(msgspec.Struct, frozen=True, kw_only=True):
    """Link speed in GT/s x 10 and width in lanes, now and at most; `None` is unknown."""

    speed: int | None = None
    width: int | None = None
    max_speed: int | None = None
    max_width: int | None = None


class PciFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One function as sysfs shows it. `None` means that the kernel does not say, never 0."""

    address: str  # lower case, at least four digits of domain: 0000:3b:00.0
    root: str | None = None  # host bridge, pciDDDD:BB
    bridges: tuple[str, ...] = ()  # from the root port down, without the function itself
    outer_bridges: int = 0  # how many of them stand above the last root part (Intel VMD)
    class_code: int | None = None  # 24 bits
    vendor_id: int | None = None
    device_id: int | None = None
    subsystem_vendor_id: int | None = None
    subsystem_device_id: int | None = None
    revision: int | None = None
    numa_node: int | None = None  # raw file, may name no node
    local_cpus: CpuSet | None = None
    link: PciLink = PciLink()
    driver: str | None = None
    physfn: str | None = None  # address of the physical function
    virtfns: tuple[str, ...] = ()  # addresses by index of the virtfn link
    sriov_numvfs: int | None = None
    sriov_totalvfs: int | None = None
    iommu_group: int | None = None
    port_type: int | None = None  # PCIe capability, flags bits 7:4
    acs_control: int | None = None  # control word; None without the capability or rights
    ats_enabled: bool | None = None
    power_state: str | None = None
    gone: bool = False  # fell off the bus: ids of all zeros or ones

    @property
    def base_class(self) -> int | None:
        """The upper 16 bits of the class: 0x0302 is a 3D controller."""
        return self.class_code >> 8 if self.class_code is not None else None

    @property
    def path(self) -> tuple[str, ...]:
        """Root, bridges and the function itself; only itself without a root."""
        return ((self.root,) if self.root else ()) + self.bridges + (self.address,)


def _no_functions() -> Mapping[str, PciFunction]:
    return MappingProxyType({})


class PciTree(msgspec.Struct, frozen=True, kw_only=True):
    """All functions by address, in numeric order; equal trees compare equal."""

    functions: Mapping[str, PciFunction] = msgspec.field(default_factory=_no_functions)
    switch_links: frozenset[tuple[str, str]] = frozenset()  # cabled switches, smaller first
    iommu_types: tuple[tuple[int, str], ...] = ()  # (group, identity | DMA | DMA-FQ)
    skipped: int = 0  # entries whose name is no PCI address
    warnings: tuple[str, ...] = ()

    def get(self, address: str | None) -> PciFunction | None:
        """Return a function by its address."""
        return self.functions.get(address) if address else None

    def physical(self, function: PciFunction) -> PciFunction | None:
        """Return the physical function of a virtual one; `None` for all others and for orphans."""
        found = self.get(function.physfn)
        return found if found is not None and found.physfn is None else None

    def is_orphan(self, function: PciFunction) -> bool:
        """Say whether this is a virtual function whose physical one cannot be told."""
        return function.physfn is not None and self.physical(function) is None
