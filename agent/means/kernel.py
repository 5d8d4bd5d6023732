"""What the kernel has for hooks: the version of its cgroups, and files that only some have."""

from __future__ import annotations

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger.entry import CORE_SWITCH, IDENTITY_SWITCH
from agent.cgroup.locate import KubeletRoot, LayoutLocator, nowhere
from agent.cgroup.paths import qos_directory
from agent.host.attributes import fact
from agent.host.files import HostFiles
from agent.model.grant.kernel import KernelMeans
from agent.model.pod import KubeQos
from agent.topology.cpu import CpuSet
from agent.topology.text import parse_cpu_list, parse_int

BVT = "cpu.bvt_warp_ns"
MAX_SWITCH = 1 << 31


class KernelReader:
    """Reads one host. Belongs to one thread."""

    def __init__(self, host: HostFiles, kubelet_root: KubeletRoot = nowhere) -> None:
        self._host = host
        self._locator = LayoutLocator(host, kubelet_root)

    def read(self, now_s: float) -> KernelMeans:
        """Return what there is now; what cannot be read is as if it were not there."""
        layout = self._locator.layout(now_s)
        switch_present = self._host.exists(IDENTITY_SWITCH)
        return KernelMeans(
            cgroup_version=None if layout is None else layout.version,
            besteffort_cpus=self._besteffort(layout),
            bvt_file=self._has_bvt(layout),
            identity_switch=self._switch(IDENTITY_SWITCH) if switch_present else None,
            identity_switch_present=switch_present,
            core_scheduling=self._host.exists(CORE_SWITCH),
            core_switch=self._switch(CORE_SWITCH),
        )

    def _switch(self, path: str) -> int | None:
        return fact(self._host, path, lambda text: parse_int(text, 0, MAX_SWITCH))

    def _has_bvt(self, layout: CgroupLayout | None) -> bool:
        if layout is None or layout.root is None:
            return False
        directory = layout.directory("cpu", layout.root)
        return directory is not None and self._host.exists(f"{directory}/{BVT}")

    def _besteffort(self, layout: CgroupLayout | None) -> CpuSet | None:
        """Return the CPUs of the directory; version 2 needs no look, it intersects by itself."""
        if layout is None or layout.root is None or layout.version != 1:
            return None
        cgroup = qos_directory(layout, KubeQos.BEST_EFFORT)
        directory = layout.directory("cpuset", cgroup)
        return fact(self._host, f"{directory}/cpuset.cpus", parse_cpu_list) if directory else None
