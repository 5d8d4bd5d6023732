"""What the cluster says of this node; a part of the snapshot."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.model.device import Pairs
from agent.model.part import Part
from agent.model.pod import PodView
from agent.model.slo.view import SloView

Amounts = Mapping[str, str]  # resource name -> quantity as on the wire


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The Node object as far as we read it."""

    name: str
    uid: str
    resource_version: str = ""
    labels: Pairs = ()
    annotations: Pairs = ()
    capacity: Amounts = {}
    allocatable: Amounts = {}
    addresses: tuple[tuple[str, str], ...] = ()  # (type, address): InternalIP, Hostname, …
    kubelet_port: int | None = None
    machine_id: str = ""
    boot_id: str = ""

    def label(self, key: str) -> str | None:
        """Return a label's value."""
        return next((v for k, v in self.labels if k == key), None)

    def annotation(self, key: str) -> str | None:
        """Return an annotation's value."""
        return next((v for k, v in self.annotations if k == key), None)


class MetricPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`spec.metricCollectPolicy` of NodeMetric; `None`: the object does not say."""

    aggregate_s: float | None = None
    report_interval_s: float | None = None
    durations_s: tuple[int, ...] | None = None
    memory: str | None = None  # usageWithoutPageCache, usageWithHotPageCache, usageWithPageCache


class KubeletFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet's settings (`/configz`) and what it has given away of CPUs.

    `None` is what it was not asked for, or did not say.
    """

    cpu_manager_policy: str | None = None
    cpu_manager_options: Pairs = ()
    reserved_cpus: frozenset[int] | None = None  # of static policy: set, or the kubelet's choice
    topology_policy: str | None = None
    topology_scope: str | None = None
    cgroup_driver: str | None = None
    cgroup_root: str | None = None  # `--cgroup-root`: its cgroups are below
    # pod uid -> CPUs that the static policy gave its containers, from the kubelet's checkpoint
    pod_cpus: tuple[tuple[str, frozenset[int]], ...] = ()


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that came from the API server and the kubelet, each with its age.

    A part's `taken_s` moves whenever the source confirmed it, also when nothing changed.
    """

    clustered: bool = False  # what is published goes to an API server: it names the Node as owner
    node: Part[NodeFacts | None] = Part(None)
    slo: Part[SloView] = Part(SloView())
    metric_policy: Part[MetricPolicy | None] = Part(None)  # None: no NodeMetric object
    kubelet: Part[KubeletFacts | None] = Part(None)
    # of NodeResourceTopology that the server has; None: it has not told yet
    topology_versions: Part[tuple[str, ...] | None] = Part(None)
    pods: tuple[PodView, ...] = ()  # of this node, as API server and kubelet know them together
    pods_known: bool = False  # the API server has listed them: who is not among them is gone
    # uids of pods whose object the API server deleted: their devices are free, whatever runs yet
    deleted: frozenset[str] = frozenset()
