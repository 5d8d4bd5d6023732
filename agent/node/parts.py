"""What one run of the agent consists of before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.clock import Clock
from agent.config.sections import Settings
from agent.host.files import HostFiles
from agent.model.inventory import MetricFamily
from agent.model.pod import PodView
from agent.model.snapshot import NodeIdentity, NodeSnapshot
from agent.node.identity import node_name
from agent.node.store import SnapshotStore
from agent.node.vendors import wanted_vendors
from agent.probe.base import DeviceVendor
from agent.recording.open import OpenedHost
from agent.state_writer import NO_FOLDER, RECORDED, StateWriter

if TYPE_CHECKING:
    from agent.health.lasting import HealthFile
    from agent.node.host_facts import HostFacts
    from agent.node.measuring import Measuring
    from agent.node.published_minors import PublishedMinors


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Built from settings and a host; used by the daemon and by commands that look once."""

    settings: Settings
    opened: OpenedHost
    clock: Clock
    vendors: Mapping[str, DeviceVendor]
    store: SnapshotStore
    known_pods: Callable[[], tuple[PodView, ...]]
    state_writer: StateWriter = msgspec.field(default_factory=StateWriter)  # of `node.state_dir`

    def host(self) -> HostFiles:
        """Return the files of the host as the host sees them: those of drivers and runtimes, too.

        In a container they are not where the host has them; see `node.host_root`.
        """
        root = self.settings.node.host_root
        if not root or self.opened.spec is not None:
            return self.opened.files
        # imported here: few commands and no start need it
        from agent.recording.directory import DirectoryFiles  # noqa: PLC0415 - see above

        return DirectoryFiles(Path(root))  # an absolute link of the host's stays on the host

    def kubelet_root(self) -> str:
        """Return the kubelet's `--cgroup-root`: by the setting, else by `/configz`, else empty."""
        kubelet = self.store.current.cluster.kubelet.value
        told = kubelet.cgroup_root if kubelet is not None else None
        return self.settings.kubelet.cgroup_root or told or ""

    def facts(self, minors: PublishedMinors | None = None) -> HostFacts:
        """Build the reader of the host's facts; raise `BadConfig`.

        It gives devices the published `minors`; without them those of the state directory, which
        it only reads.

        Imported here: the vendors' workers are started before, and need as long to start.
        """
        from agent.node.host_facts import HostFacts  # noqa: PLC0415 - see above

        if minors is None:
            minors = self.published_minors()
        return HostFacts(self.opened, self.settings, self.store, self.clock, minors)

    def published_minors(self, *, stores: bool = False, adopts: bool = False) -> PublishedMinors:
        """Return the minors that the agent published before; of a recorded host none are kept."""
        from agent.node.published_minors import PublishedMinors  # noqa: PLC0415 - as `facts`

        if self.opened.spec is not None:
            return PublishedMinors(absent_because=RECORDED)
        folder = self.settings.node.state_dir
        return PublishedMinors(folder, self.state_writer, stores=stores, adopts=adopts)

    def measuring(self) -> Measuring:
        """Build the collector of usage; imported here, devices are known without it."""
        from agent.node.measuring import Measuring  # noqa: PLC0415 - see above

        return Measuring(
            self.opened,
            self.settings,
            self.store,
            self.clock,
            self.known_pods,
            kubelet_root=self.kubelet_root,
        )

    def health_file(self) -> HealthFile:
        """Return where health outlives the agent: nowhere without a folder, or on a recording."""
        from agent.health.lasting import HealthFile  # noqa: PLC0415 - only the daemon has one
        from agent.host.boot import read_identity  # noqa: PLC0415 - see above

        folder = self.settings.node.state_dir if self.opened.spec is None else ""
        node = read_identity(self.opened.files, "", "") if folder else None
        why = NO_FOLDER if self.opened.spec is None else RECORDED
        boot_id = node.boot_id if node is not None else ""
        return HealthFile(folder, boot_id, self.state_writer, absent_because=why)

    def families(self) -> dict[str, tuple[MetricFamily, ...]]:
        """Return the metric families of each vendor."""
        return {name: vendor.families for name, vendor in self.vendors.items()}


def build_parts(
    settings: Settings,
    opened: OpenedHost,
    clock: Clock,
    known_pods: Callable[[], tuple[PodView, ...]] | None = None,
    vendors: Mapping[str, DeviceVendor] | None = None,
) -> Parts:
    """Build the parts; of the host nothing is read yet. Raises `BadConfig`.

    Without `known_pods` those are known that the cluster tells of: none, in standalone mode.
    """
    store = SnapshotStore(
        NodeSnapshot(node=NodeIdentity(name=node_name(opened, settings), source=opened.source))
    )
    return Parts(
        settings=settings,
        opened=opened,
        clock=clock,
        vendors=wanted_vendors(settings) if vendors is None else vendors,
        store=store,
        known_pods=known_pods or (lambda: store.current.cluster.pods),
    )
