"""Renders the NodeResourceTopology object: zones, CPU annotations, entries of other writers.

One object is stored in two versions without a conversion webhook: the server drops fields that the
written version lacks. A write of `v1alpha1` erases the top-level attributes of `v1alpha2`. The
agent therefore writes `v1alpha2` wherever the server has it; it has all fields of `v1alpha1`,
which Koordinator reads. Field managers are the same in both versions.

The lists of this object have no merge keys, so a writer replaces a whole list. Entries of other
writers are written again unchanged. Each function is idempotent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.allocation.cpus import CpuPool, PodCpus, has_pods, has_settings, kubelet_view, node_cpus
from agent.objects.numa_zones import CPU, MEMORY, NUMA_RESERVATION_LABEL, ZONE_TYPE, numa_zones
from agent.objects.owner_reference import is_node_unknown, owner_metadata
from agent.snapshot.cluster import KubeletView, NodeView
from agent.snapshot.cpu import CpuSet, CpuTopology
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.publications import DesiredObject, Json
from agent.wire_formats import api_values
from agent.wire_formats.annotations import RESERVATION, SYSTEM_QOS, NodeReservation, SystemQos
from agent.wire_formats.json_values import compact_json
from agent.wire_formats.kernel_text import format_cpu_list

API_GROUP = "topology.node.k8s.io"

V1ALPHA1 = "v1alpha1"  # what Koordinator reads and writes

V1ALPHA2 = "v1alpha2"  # written wherever it is served: see `agent.objects.node_resource_topology`


class TopologyPublisher(msgspec.Struct, frozen=True):
    """Publishes CPUs and memory nodes of this node, and what a cluster says of them.

    `kubelet` says whether the kubelet is asked for its settings. What renders is loaded when it is
    needed: the first Device does not wait for it.
    """

    interval_s: float = 3.0
    is_kubelet_enabled: bool = True
    name: str = "topology"

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[DesiredObject, ...]:  # noqa: ARG002 - see Publisher
        """Return the object; nothing before the CPUs were read, or if none could be.

        In a cluster nothing is published before the Node is known, which owns the object, and
        before the server told its versions: the older one would take from the newer.
        """
        cpus, numa = snapshot.cpus, snapshot.numa
        if cpus.taken_s is None or numa.taken_s is None or not cpus.value.usable:
            return ()
        version = version_to_write(snapshot)
        if is_node_unknown(snapshot) or version is None:
            return ()

        return (render_topology(snapshot, version, asks_kubelet=self.is_kubelet_enabled),)


def version_to_write(snapshot: NodeSnapshot) -> str | None:
    """Return the version to write; `None` while that is not known."""
    if not snapshot.cluster.is_clustered:
        return V1ALPHA1
    served = snapshot.cluster.topology_versions.value
    if served is None:
        return None
    return V1ALPHA2 if V1ALPHA2 in served else V1ALPHA1


KIND = "NodeResourceTopology"

MANAGED_BY = "app.kubernetes.io/managed-by"

MANAGER = "Koordinator"

NO_POLICY = "None"

_SCOPES = {"container": "ContainerLevel", "pod": "PodLevel"}

_POLICIES = {
    "single-numa-node": "SingleNUMANode",
    "restricted": "Restricted",
    "best-effort": "BestEffort",
}


def render_topology(snapshot: NodeSnapshot, version: str, *, asks_kubelet: bool) -> DesiredObject:
    """Return the object as it should be, with the function that minds what others write in it."""
    kubelet = kubelet_view(snapshot, asked=asks_kubelet)
    known = cpu_annotations(snapshot, asked=asks_kubelet)
    node = snapshot.cluster.node.value
    body: dict[str, object] = {
        "apiVersion": f"{API_GROUP}/{version}",
        "kind": KIND,
        "metadata": {
            "name": snapshot.node.name,
            "labels": _object_labels(node),
            "annotations": known,
            **owner_metadata(snapshot),
        },
        "topologyPolicies": [topology_policy(kubelet)],
        "zones": numa_zones(snapshot.numa.value, node),
    }
    if version != V1ALPHA1 and (attributes := _attributes(kubelet)):
        body["attributes"] = attributes
    return DesiredObject(
        file_name="noderesourcetopology.yaml",
        api_version=f"{API_GROUP}/{version}",
        kind=KIND,
        name=snapshot.node.name,
        body=body,
        is_partial=not has_settings(kubelet) or not has_pods(snapshot),
        merge=merge_topology if has_settings(kubelet) else merge_without_policies,
    )


def _object_labels(node: NodeView | None) -> dict[str, str]:
    """Return our labels; the wish to reserve in each zone is the Node's own, copied."""
    wish = (
        api_values.label_value(node.label(NUMA_RESERVATION_LABEL) or "") if node is not None else ""
    )
    return {MANAGED_BY: MANAGER} | ({NUMA_RESERVATION_LABEL: wish} if wish else {})


def topology_policy(kubelet: KubeletView | None) -> str:
    """Return policy and scope of the kubelet's topology manager in one word, as upstream does."""
    if kubelet is None:
        return NO_POLICY
    policy = _POLICIES.get(kubelet.topology_policy or "")
    level = _SCOPES.get(kubelet.topology_scope or "")
    return f"{policy}{level}" if policy and level else NO_POLICY


def _attributes(kubelet: KubeletView | None) -> list[Json]:
    """Return the same as two attributes, as other schedulers read it."""
    if kubelet is None or kubelet.topology_policy is None:
        return []
    known = {POLICY: kubelet.topology_policy, SCOPE: kubelet.topology_scope}
    return [{"name": name, "value": value} for name, value in known.items() if value]


CPU_BASIC_INFO = "node.koordinator.sh/cpu-basic-info"

CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"

SHARED_POOLS = "node.koordinator.sh/cpu-shared-pools"

BE_SHARED_POOLS = "node.koordinator.sh/be-cpu-shared-pools"

CPU_MANAGER_POLICY = "kubelet.koordinator.sh/cpu-manager-policy"

POD_CPU_ALLOCS = "node.koordinator.sh/pod-cpu-allocs"

ANNOTATIONS = (
    CPU_MANAGER_POLICY,
    BE_SHARED_POOLS,
    CPU_BASIC_INFO,
    SHARED_POOLS,
    CPU_TOPOLOGY,
    POD_CPU_ALLOCS,
    RESERVATION,
    SYSTEM_QOS,
)

REFUSED_ANNOTATION = (
    "xpu-agent.io/refused"  # what of the Node's and the pods' annotations is not used
)

MAX_REFUSED = 16

MAX_NAMED = 200  # characters of a name of somebody else's


def cpu_annotations(snapshot: NodeSnapshot, *, asked: bool) -> dict[str, str]:
    """Return the annotations; `asked` says whether the kubelet is asked at all.

    A managed one that is missing cannot be told now: what was said last holds. One of ours names
    what people and other programs wrote that is not used.

    Pools are told when it is known who holds CPUs. Without a cluster that is nobody, nothing is
    reserved, and what the kubelet was not asked for is an empty object.
    """
    cpus = snapshot.cpus.value
    known = node_cpus(snapshot, asked=asked)
    values: dict[str, object] = {
        CPU_BASIC_INFO: _basic_info(cpus),
        CPU_TOPOLOGY: _cpu_detail(cpus),
        RESERVATION: _reservation(known.annotations.reservation, known.reserved),
        SYSTEM_QOS: _system_qos(known.annotations.system_qos),
    }
    if known.kubelet_pods is not None:
        values[POD_CPU_ALLOCS] = _kubelet_allocations(known.kubelet_pods)
    if known.kubelet is not None and has_settings(known.kubelet):
        values[CPU_MANAGER_POLICY] = _cpu_manager_policy(known.kubelet)
    if known.pools is not None:
        values |= {
            SHARED_POOLS: _shared_pools(known.pools.ls),
            BE_SHARED_POOLS: _shared_pools(known.pools.be),
        }
    if refused := (*known.annotations.invalid, *known.invalid_annotations)[:MAX_REFUSED]:
        values[REFUSED_ANNOTATION] = [
            {"of": r.object_name[:MAX_NAMED], "path": r.path, "why": r.why} for r in refused
        ]
    return {key: compact_json(value, sort_keys=False) for key, value in sorted(values.items())}


def _basic_info(cpus: CpuTopology) -> Json:
    """Return what the processor says of itself; what is false or unknown is left out."""
    info = cpus.info
    known = {
        "cpuModel": info.model,
        "hyperThreadEnabled": cpus.smt_active,
        "turboEnabled": info.turbo,
        "catL3CbmMask": info.l3_cbm_mask,
        "vendorID": info.vendor,
    }
    return {key: value for key, value in known.items() if value}


def _cpu_detail(cpus: CpuTopology) -> Json:
    return {
        "detail": [
            {"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "node": cpu.node}
            for cpu in cpus.cpus
        ]
    }


def _cpu_manager_policy(kubelet: KubeletView) -> Json:
    known = {
        "policy": kubelet.cpu_manager_policy,
        "options": dict(sorted(kubelet.cpu_manager_options)),
        "reservedCPUs": format_cpu_list(kubelet.reserved_cpus or ()),
    }
    return {key: value for key, value in known.items() if value}


def _kubelet_allocations(pods: Iterable[PodCpus]) -> list[Json] | None:
    """Return what the kubelet gave away; upstream writes `null` where that is nothing."""
    found: list[Json] = []
    for pod in pods:
        names = {"namespace": pod.namespace, "name": pod.name}
        known = {key: value for key, value in names.items() if value}
        cpus = format_cpu_list(pod.cpus)
        found.append({**known, "uid": pod.uid, "cpuset": cpus, "managedByKubelet": True})
    return found or None


def _reservation(wished: NodeReservation, cpus: CpuSet) -> Json:
    known = {
        "resources": dict(wished.resources),
        "reservedCPUs": format_cpu_list(cpus),
        "applyPolicy": wished.policy,
    }
    return {key: value for key, value in known.items() if value}


def _system_qos(wished: SystemQos | None) -> Json | None:
    """Return the CPUs of system services; `null` of a Node without any annotation, as upstream."""
    if wished is None:
        return None
    found: dict[str, object] = {"cpuset": format_cpu_list(wished.cpus)} if wished.cpus else {}
    if wished.exclusive is not None:
        found["cpusetExclusive"] = wished.exclusive
    return found


def _shared_pools(pools: Iterable[CpuPool]) -> list[Json]:
    return [
        {"socket": pool.socket, "node": pool.node, "cpuset": format_cpu_list(pool.cpus)}
        for pool in pools
    ]


POLICY = "topologyManagerPolicy"  # attributes of v1alpha2, named as NFD names them

SCOPE = "topologyManagerScope"

MAX_ENTRIES_OF_OTHERS = 256  # entries of others that are kept of one list

_ZONE_NAME = re.compile(r"node-[0-9]{1,5}")

_HUGEPAGES_PREFIX = "hugepages-"

_ZONE_LISTS = ("resources", "costs", "attributes")  # of a zone

_AMOUNTS = ("capacity", "allocatable", "available")

_REQUIRED_MEMBERS: Mapping[
    str, Mapping[str, tuple[type, ...]]
] = {  # members of an entry, beside its name
    "zones": {"type": (str,)},
    "resources": dict.fromkeys(_AMOUNTS, (str, int)),
    "costs": {"value": (int,)},
    "attributes": {"value": (str,)},
}


def merge_topology(live: Json, wanted: Json) -> Json:
    """Return what to write: all that is wanted, and what others keep in the same lists.

    A managed annotation that is not wanted because it cannot be told stays as it is.
    """
    found: dict[str, object] = {**wanted, "zones": _merge_zones(live, wanted)}
    metadata = wanted.get("metadata")
    if isinstance(metadata, Mapping):
        found["metadata"] = {**metadata, "annotations": _merge_annotations(live, metadata)}
    if "attributes" in wanted:
        found["attributes"] = _merge_by_name(live, wanted, "attributes")
    return found


def merge_without_policies(live: Json, wanted: Json) -> Json:
    """Return the same while the kubelet's policies cannot be told: those that stand stay."""
    found = dict(merge_topology(live, wanted))
    policies = live.get("topologyPolicies")
    if isinstance(policies, list) and policies and all(isinstance(p, str) for p in policies):
        found["topologyPolicies"] = policies[:1]
    attributes = _merge_by_name(live, {}, "attributes")
    if attributes and not str(wanted.get("apiVersion")).endswith(V1ALPHA1):
        found["attributes"] = attributes
    return found


def _merge_annotations(live: Json, metadata: Json) -> Json:
    wanted = metadata.get("annotations")
    wanted = wanted if isinstance(wanted, Mapping) else {}
    theirs = live.get("metadata")
    stood = theirs.get("annotations") if isinstance(theirs, Mapping) else None
    if not isinstance(stood, Mapping):
        return wanted
    kept = {
        key: stood[key]
        for key in ANNOTATIONS
        if key not in wanted and isinstance(stood.get(key), str)
    }
    return {**kept, **wanted}


def _merge_zones(live: Json, wanted: Json) -> list[Json]:
    """Return our zones, then those that are no memory node's; a node that is gone has none."""
    stood = {str(zone.get("name")): zone for zone in _valid_entries(live, "zones")}
    ours = [
        _merge_zone(stood.get(str(zone["name"]), {}), zone)
        for zone in _valid_entries(wanted, "zones")
    ]
    names = {zone["name"] for zone in ours}
    foreign = [
        {
            **_scalar_members(zone),
            **{name: list(_valid_entries(zone, name)) for name in _ZONE_LISTS if name in zone},
        }
        for name, zone in stood.items()
        if name not in names and not (zone.get("type") == ZONE_TYPE and _ZONE_NAME.fullmatch(name))
    ]
    return [*ours, *foreign[:MAX_ENTRIES_OF_OTHERS]]


def _merge_zone(live: Json, wanted: Json) -> Json:
    found = {**_scalar_members(live), **wanted, "resources": _merge_resources(live, wanted)}
    for name in ("costs", "attributes"):
        if entries := _merge_by_name(live, wanted, name):
            found[name] = entries
    return found


def _scalar_members(zone: Json) -> Json:
    """Return what a zone says beside its lists; a parent that is no name is none."""
    return {
        key: value
        for key, value in zone.items()
        if key not in _ZONE_LISTS and (key != "parent" or isinstance(value, str))
    }


def _merge_resources(live: Json, wanted: Json) -> list[Json]:
    """Return ours and those that others count in this zone, sorted by name."""
    theirs = [
        entry
        for entry in _valid_entries(live, "resources")
        if not _is_agent_resource(str(entry["name"]))
    ]
    found = [*_valid_entries(wanted, "resources"), *theirs[:MAX_ENTRIES_OF_OTHERS]]
    return sorted(found, key=lambda entry: str(entry["name"]))


def _is_agent_resource(resource: str) -> bool:
    return resource in (CPU, MEMORY) or resource.startswith(_HUGEPAGES_PREFIX)


def _merge_by_name(live: Json, wanted: Json, member: str) -> list[Json]:
    """Return the entries of a list of named ones, ours in the place of those that stand.

    The order that stands is kept: it says nothing, but two writers could fight over it.
    """
    own = {str(entry["name"]): entry for entry in _valid_entries(wanted, member)}
    stood = list(_valid_entries(live, member))[:MAX_ENTRIES_OF_OTHERS]
    found = [own.pop(str(entry["name"]), entry) for entry in stood]
    return [*found, *own.values()]


def _valid_entries(holder: Json, member: str) -> Iterator[Mapping[str, object]]:
    """Yield the entries that a schema takes; what stands at a server may be anything.

    An entry of somebody else's that is refused would hold up ours for good.
    """
    listed = holder.get(member)
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, Mapping) and all(
            isinstance(entry.get(name), kinds) and not isinstance(entry.get(name), bool)
            for name, kinds in {"name": (str,), **_REQUIRED_MEMBERS[member]}.items()
        ):
            yield entry
