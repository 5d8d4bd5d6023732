"""One cycle of measuring: node, pods, containers, applications, with one read a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.locate import KubeletRoot, LayoutLocator, nowhere
from agent.collect.arithmetic import busy_cores, node_usage, numa_usage, told
from agent.collect.groups import GroupReader, GroupTable
from agent.collect.hostapp.usage import ApplicationReader, Applications, none_known
from agent.collect.join import join, owners
from agent.collect.node import NodeCounters, NodeReader
from agent.collect.reader import Door
from agent.collect.slow import NodeMemorySource, Pace, SlowColumn
from agent.collect.tree import PodTree
from agent.host.files import HostFiles
from agent.model.inventory import DeviceSample
from agent.model.pod import PodView
from agent.model.usage import UsageSample

LOOK_AGAIN_S = 10.0  # for cgroups and the kubelet's root while they are not there

Known = Callable[[], tuple[PodView, ...]]


def nobody() -> tuple[PodView, ...]:
    """Know no pods but those that the cgroups show."""
    return ()


class PodUsage:
    """Reads pods and containers below the kubelet's root, whoever they are at the moment."""

    def __init__(
        self,
        host: HostFiles,
        door: Door,
        layout: CgroupLayout,
        nodes: tuple[int, ...],
        pace: Pace,
    ) -> None:
        self.tree = PodTree(host, door, layout)
        self.pods = GroupReader(host, door, layout, pace)
        self.containers = GroupReader(host, door, layout, pace)
        self._nodes = nodes
        self._node_memory = SlowColumn(NodeMemorySource(door, layout).read, pace.node_memory)

    def refresh(self) -> bool:
        """Follow pods that came or went; say whether there were any."""
        changed = self.tree.refresh()
        if changed:
            views = self.tree.pods
            pods = {pod.uid: pod.cgroup for pod in views}
            self.pods.follow(pods)
            self.containers.follow({c.id: c.cgroup for pod in views for c in pod.containers})
            self._node_memory.follow(tuple(pods.values()) if len(self._nodes) > 1 else ())
        return changed

    def read(self, now_s: float) -> tuple[GroupTable, GroupTable]:
        """Read pods and containers; a file that went makes the next refresh look closely."""
        tables = self.pods.read(now_s), self.containers.read(now_s)
        if self.pods.lost() | self.containers.lost():
            self.tree.distrust = True
        return tables

    def by_node(self, pods: GroupTable) -> dict[int, float | None]:
        """Return the pods' memory on each memory node, page cache included."""
        if len(self._nodes) == 1:  # all of it is there
            return {self._nodes[0]: told([m[1] if m else None for m in pods.memory])}
        maps = self._node_memory.read()
        return {
            node: told([None if found is None else found.get(node, 0) for found in maps])
            for node in self._nodes
        }

    def close(self) -> None:
        """Let go of all descriptors."""
        self.tree.close()
        self.pods.close()
        self.containers.close()
        self._node_memory.follow(())


class UsageCollector:
    """Measures one host. Not for two threads; what it returns is never changed afterwards."""

    def __init__(
        self,
        host: HostFiles,
        known: Known = nobody,
        *,
        interval_s: float = 1.0,
        pressure_interval_s: float | None = 10.0,
        pods: bool = True,
        layout: CgroupLayout | None = None,
        applications: Applications = none_known,
        kubelet_root: KubeletRoot = nowhere,
    ) -> None:
        """Begin without a look at the host's cgroups.

        `interval_s` is that of the cycles, from which the pace of slow files follows; without a
        `pressure_interval_s` no pressure is read, without `pods` neither pods nor containers.
        `layout` is for who knows it; else it is looked for until the kubelet's root is there.
        `applications` tells, at any moment, which host applications are to be measured, and
        `kubelet_root` where the kubelet says that its cgroups are.
        """
        self._host = host
        self._known = known
        self._layout = layout
        self._locator = LayoutLocator(host, kubelet_root)
        self._found: CgroupLayout | None = None
        self._wanted = pods
        self._pace = Pace.of(interval_s, pressure_interval_s)
        self._door = Door(host)
        self._node = NodeReader(host, self._door, self._pace)
        self._applications = ApplicationReader(host, self._door, applications)
        self._groups: PodUsage | None = None
        self._looked_s: float | None = None
        self._listed: tuple[PodView, ...] = ()
        self._before: tuple[float, NodeCounters] | None = None
        self.pods: tuple[PodView, ...] = ()  # by uid; cgroups joined with what is known

    def cycle(self, now_s: float) -> UsageSample:
        """Measure once. `now_s` is monotonic; a cycle without time since the last has no rates."""
        self._find(now_s)
        pods = containers = GroupTable(index={})
        by_node: dict[int, float | None] = {}
        if self._wanted:
            by_node = {node: 0 for node, _ in self._node.nodes}
        self._refresh()
        if self._groups is not None:
            pods, containers = self._groups.read(now_s)
            by_node = self._groups.by_node(pods)
        applications = self._applications.read(now_s, self._layout or self._found)
        counters, ticks_per_s = self._node.read(), self._node.ticks_per_s
        before_s, before = self._before or (now_s, None)
        self._before = (now_s, counters)
        busy = busy_cores(before, counters, (now_s - before_s) * ticks_per_s)
        numa = numa_usage(self._node.nodes, busy, counters.node_memory, by_node)
        measured = pods if self._wanted else None
        node = node_usage(counters, busy, ticks_per_s, measured, numa, applications)
        return UsageSample(
            node=node, pods=pods, containers=containers, applications=applications.by_name
        )

    def owners(self, samples: Iterable[DeviceSample]) -> dict[int, tuple[str, str]]:
        """Return (pod uid, container id) of the devices' processes, by pid."""
        return owners(self._host, samples)

    def close(self) -> None:
        """Let go of all descriptors."""
        self._node.close()
        self._applications.close()
        if self._groups is not None:
            self._groups.close()

    def _find(self, now_s: float) -> None:
        """Look for the kubelet's root while there are no pods: its driver may have been changed."""
        if not self._wanted or (self._groups is not None and self._groups.tree.pods):
            return
        if self._looked_s is not None and now_s - self._looked_s < LOOK_AGAIN_S:
            return
        self._looked_s = now_s
        layout = self._layout or self._locator.look(now_s)
        if layout is not None and layout.root is not None and layout != self._found:
            self._found = layout
            if self._groups is not None:
                self._groups.close()
            nodes = tuple(node for node, _ in self._node.nodes)
            self._groups = PodUsage(self._host, self._door, layout, nodes, self._pace)

    def _refresh(self) -> None:
        listed = self._known()
        changed = self._groups is not None and self._groups.refresh()
        if changed or listed is not self._listed:
            self._listed = listed
            self.pods = join(self._groups.tree.pods if self._groups else (), listed)
