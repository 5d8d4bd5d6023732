"""The one immutable picture of the node that every request and every publisher reads."""

from __future__ import annotations

import msgspec

from agent.model.cluster.facts import ClusterFacts
from agent.model.device import Device, DeviceLink, VendorDevice
from agent.model.grant.checked import GrantsView
from agent.model.grant.means import MeansView
from agent.model.grant.proof import ProofView
from agent.model.grant.sharing import SharingView
from agent.model.inventory import DeviceGroup, DeviceSample, Inventory, Problem
from agent.model.part import Part
from agent.model.pod import PodView
from agent.model.runtime.seen import RuntimeView
from agent.model.runtime.served import ServedView
from agent.model.usage import UsageReport, UsageSample
from agent.topology.cpu import CpuTopology
from agent.topology.numa import NumaTopology
from agent.topology.pci import PciTree
from agent.topology.placement import NumaOverride

Counts = tuple[tuple[str, int], ...]  # by name, in order


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which node this is and where its facts come from."""

    name: str
    uid: str = ""  # of the Node object; empty without a cluster
    boot_id: str = ""
    boot_time_s: float = 0.0  # wall clock
    kernel: str = ""
    architecture: str = ""
    source: str = "this machine"  # or the recording's name


class VendorState(msgspec.Struct, frozen=True, kw_only=True):
    """One vendor: how its worker does, and what it said last."""

    vendor: str
    state: str = "starting"  # starting, ready, stalled, restarting, quarantined, released
    reason: str = ""  # CamelCase, why not ready
    message: str = ""
    restarts: int = 0
    recycles: int = 0  # processes replaced in good order: memory, an upgraded library
    pid: int | None = None
    inventory: Part[Inventory | None] = Part(None)
    samples: Part[tuple[DeviceSample, ...]] = Part(())


class DirectCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a GPU and a NIC exchange data worse than they could; `verdict` as below."""

    name: str  # CamelCase
    verdict: str
    detail: str  # with the port, module or group it is about


class DirectPair(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a GPU and a NIC can exchange data without the host's memory (GPUDirect RDMA)."""

    gpu: str  # Device.key
    nic: str
    level: str  # distance, two levels of one switch chip taken for one
    verdict: str  # ok, slow, no, unknown
    checks: tuple[DirectCheck, ...] = ()  # those that are not ok


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """All devices of all vendors with their places; by kind, then minor, then bus id."""

    devices: tuple[Device, ...] = ()
    links: tuple[DeviceLink, ...] = ()
    groups: tuple[DeviceGroup, ...] = ()  # of all vendors, by size, then members
    group_policy: str | None = None
    problems: tuple[tuple[str, Problem], ...] = ()  # (vendor, problem)
    topology_file: str | None = None  # name and SHA-256 prefix, when one filled gaps
    awaited: tuple[str, ...] = ()  # vendors of which only what sysfs shows is in it so far
    # The minors published by an earlier agent are not read yet: these may differ from them.
    provisional_minors: bool = False
    direct: tuple[DirectPair, ...] = ()  # each GPU with each NIC, in the order of devices
    numa_overrides: tuple[NumaOverride, ...] = ()  # by which the devices were placed

    @property
    def is_final(self) -> bool:
        """Return whether every vendor has answered, or failed to, and minors change no more."""
        return not (self.awaited or self.provisional_minors)


class HotplugView(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent learns of hardware that comes and goes, with counters since the start.

    `problem` says why there are no events where there should be.
    """

    state: str = "off"  # off (a recorded host, or a setting), listening, polling
    problem: str = ""
    seen: Counts = ()  # events by subsystem
    dropped: Counts = ()  # events by why
    scans: Counts = ()  # looks at the host by what made us look


class Departed(msgspec.Struct, frozen=True, kw_only=True):
    """A device whose function the kernel removed, as it is shown until `until_s` (monotonic)."""

    vendor: str
    device: VendorDevice
    until_s: float


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Replaced whole, never edited. A part that was never read is empty and has no age."""

    node: NodeIdentity
    cpus: Part[CpuTopology] = Part(CpuTopology())
    numa: Part[NumaTopology] = Part(NumaTopology())
    pci: Part[PciTree] = Part(PciTree())
    vendors: tuple[VendorState, ...] = ()  # by name
    devices: Part[DeviceView] = Part(DeviceView())
    pods: Part[tuple[PodView, ...]] = Part(())
    cluster: ClusterFacts = ClusterFacts()  # all parts never taken: in standalone mode
    usage: Part[UsageSample] = Part(UsageSample())
    report: Part[UsageReport] = Part(UsageReport())
    sharing: Part[SharingView] = Part(SharingView())
    means: Part[MeansView] = Part(MeansView())
    grants: Part[GrantsView] = Part(GrantsView())
    runtime: Part[RuntimeView] = Part(RuntimeView())
    served: Part[ServedView] = Part(ServedView())
    proof: Part[ProofView] = Part(ProofView())
    hotplug: HotplugView = HotplugView()
    departed: tuple[Departed, ...] = ()
    refused: tuple[tuple[str, int], ...] = ()  # reads of host facts refused so far, by errno
