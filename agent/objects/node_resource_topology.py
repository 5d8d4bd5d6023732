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
from agent.snapshot.cluster import KubeletView, NodeView
from agent.snapshot.cpu import CpuSet, CpuTopology
from agent.snapshot.node import NodeSnapshot, is_owner_unknown, node_uid
from agent.snapshot.publications import DesiredObject, Json
from agent.wire_formats import api_values
from agent.wire_formats.annotations import RESERVATION, SYSTEM_QOS, NodeReservation, SystemQos
from agent.wire_formats.json_values import compact_json
from agent.wire_formats.kernel_text import format_cpu_list

API_GROUP = "topology.node.k8s.io"
V1ALPHA1 = "v1alpha1"  # the version that Koordinator reads and writes
V1ALPHA2 = "v1alpha2"  # written wherever the server has it


class TopologyPublisher(msgspec.Struct, frozen=True):
    """Publishes CPUs and memory nodes of this node, and their reservations in a cluster.

    `is_kubelet_enabled`: whether the agent reads the kubelet's settings.
    """

    interval_s: float = 3.0
    is_kubelet_enabled: bool = True
    name: str = "topology"

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[DesiredObject, ...]:  # noqa: ARG002 - see Publisher
        """Return the object; nothing until the CPUs were read successfully.

        In a cluster nothing is published before the Node is known, which owns the object, and
        before the server's API versions are known: writing the older version would erase fields of
        the newer one.
        """
        cpus, numa = snapshot.cpus, snapshot.numa
        if cpus.taken_s is None or numa.taken_s is None or not cpus.value.usable:
            return ()
        version = version_to_write(snapshot)
        if is_owner_unknown(snapshot) or version is None:
            return ()

        return (render_topology(snapshot, version, reads_kubelet=self.is_kubelet_enabled),)


def version_to_write(snapshot: NodeSnapshot) -> str | None:
    """Return the version to write; `None` while the server's versions are unknown."""
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


def render_topology(snapshot: NodeSnapshot, version: str, *, reads_kubelet: bool) -> DesiredObject:
    """Return the desired object, with the function that merges other writers' entries."""
    kubelet = kubelet_view(snapshot, reads_kubelet=reads_kubelet)
    annotations = cpu_annotations(snapshot, reads_kubelet=reads_kubelet)
    node = snapshot.cluster.node.value
    body: dict[str, object] = {
        "apiVersion": f"{API_GROUP}/{version}",
        "kind": KIND,
        "metadata": {
            "name": snapshot.node.name,
            "labels": _object_labels(node),
            "annotations": annotations,
            **api_values.owner_metadata(snapshot.node.name, node_uid(snapshot)),
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
    """Return the labels; the request to reserve in each zone is copied from the Node."""
    reservation = (
        api_values.label_value(node.label(NUMA_RESERVATION_LABEL) or "") if node is not None else ""
    )
    return {MANAGED_BY: MANAGER} | ({NUMA_RESERVATION_LABEL: reservation} if reservation else {})


def topology_policy(kubelet: KubeletView | None) -> str:
    """Return policy and scope of the kubelet's topology manager in one word, as upstream."""
    if kubelet is None:
        return NO_POLICY
    policy = _POLICIES.get(kubelet.topology_policy or "")
    level = _SCOPES.get(kubelet.topology_scope or "")
    return f"{policy}{level}" if policy and level else NO_POLICY


def _attributes(kubelet: KubeletView | None) -> list[Json]:
    """Return policy and scope as two attributes, which other schedulers read."""
    if kubelet is None or kubelet.topology_policy is None:
        return []
    values = {POLICY: kubelet.topology_policy, SCOPE: kubelet.topology_scope}
    return [{"name": name, "value": value} for name, value in values.items() if value]


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

REFUSED_ANNOTATION = "xpu-agent.io/refused"  # unused annotations of the Node and of pods
MAX_REFUSED = 16
MAX_NAMED = 200  # characters of another object's name


def cpu_annotations(snapshot: NodeSnapshot, *, reads_kubelet: bool) -> dict[str, str]:
    """Return the annotations; `reads_kubelet`: whether the agent reads the kubelet.

    An annotation that cannot be computed now is left out, and the last written value stays. One
    annotation names the unused annotations of other writers.

    Pools are rendered once all owners of CPUs are known. Without a cluster there are no owners and
    no reservations, and values of a kubelet that is not read are empty objects.
    """
    cpus = snapshot.cpus.value
    cpu_state = node_cpus(snapshot, reads_kubelet=reads_kubelet)
    values: dict[str, object] = {
        CPU_BASIC_INFO: _basic_info(cpus),
        CPU_TOPOLOGY: _cpu_detail(cpus),
        RESERVATION: _reservation(cpu_state.annotations.reservation, cpu_state.reserved),
        SYSTEM_QOS: _system_qos(cpu_state.annotations.system_qos),
    }
    if cpu_state.kubelet_pods is not None:
        values[POD_CPU_ALLOCS] = _kubelet_allocations(cpu_state.kubelet_pods)
    if cpu_state.kubelet is not None and has_settings(cpu_state.kubelet):
        values[CPU_MANAGER_POLICY] = _cpu_manager_policy(cpu_state.kubelet)
    if cpu_state.pools is not None:
        values |= {
            SHARED_POOLS: _shared_pools(cpu_state.pools.ls),
            BE_SHARED_POOLS: _shared_pools(cpu_state.pools.be),
        }
    if refused := (*cpu_state.annotations.invalid, *cpu_state.invalid_annotations)[:MAX_REFUSED]:
        values[REFUSED_ANNOTATION] = [
            {"of": r.object_name[:MAX_NAMED], "path": r.path, "why": r.why} for r in refused
        ]
    return {key: compact_json(value, sort_keys=False) for key, value in sorted(values.items())}


def _basic_info(cpus: CpuTopology) -> Json:
    """Return the processor's description; false or unknown values are left out."""
    info = cpus.info
    members = {
        "cpuModel": info.model,
        "hyperThreadEnabled": cpus.smt_active,
        "turboEnabled": info.turbo,
        "catL3CbmMask": info.l3_cbm_mask,
        "vendorID": info.vendor,
    }
    return {key: value for key, value in members.items() if value}


def _cpu_detail(cpus: CpuTopology) -> Json:
    return {
        "detail": [
            {"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "node": cpu.node}
            for cpu in cpus.cpus
        ]
    }


def _cpu_manager_policy(kubelet: KubeletView) -> Json:
    members = {
        "policy": kubelet.cpu_manager_policy,
        "options": dict(sorted(kubelet.cpu_manager_options)),
        "reservedCPUs": format_cpu_list(kubelet.reserved_cpus or ()),
    }
    return {key: value for key, value in members.items() if value}


def _kubelet_allocations(pods: Iterable[PodCpus]) -> list[Json] | None:
    """Return the CPUs that the kubelet allocated; `null` without any, as upstream."""
    entries: list[Json] = []
    for pod in pods:
        names = {"namespace": pod.namespace, "name": pod.name}
        known_names = {key: value for key, value in names.items() if value}
        cpus = format_cpu_list(pod.cpus)
        entries.append({**known_names, "uid": pod.uid, "cpuset": cpus, "managedByKubelet": True})
    return entries or None


def _reservation(reservation: NodeReservation, cpus: CpuSet) -> Json:
    members = {
        "resources": dict(reservation.resources),
        "reservedCPUs": format_cpu_list(cpus),
        "applyPolicy": reservation.policy,
    }
    return {key: value for key, value in members.items() if value}


def _system_qos(system_qos: SystemQos | None) -> Json | None:
    """Return the CPUs of system services; `null` for a Node without the annotation, as upstream."""
    if system_qos is None:
        return None
    members: dict[str, object] = (
        {"cpuset": format_cpu_list(system_qos.cpus)} if system_qos.cpus else {}
    )
    if system_qos.exclusive is not None:
        members["cpusetExclusive"] = system_qos.exclusive
    return members


def _shared_pools(pools: Iterable[CpuPool]) -> list[Json]:
    return [
        {"socket": pool.socket, "node": pool.node, "cpuset": format_cpu_list(pool.cpus)}
        for pool in pools
    ]


POLICY = "topologyManagerPolicy"  # attributes of v1alpha2, with NFD's names
SCOPE = "topologyManagerScope"
MAX_ENTRIES_OF_OTHERS = 256  # kept in one list
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


def merge_topology(live: Json, desired: Json) -> Json:
    """Return the object to write: the desired one, with other writers' entries of the same lists.

    A managed annotation that could not be computed keeps its live value.
    """
    merged: dict[str, object] = {**desired, "zones": _merge_zones(live, desired)}
    metadata = desired.get("metadata")
    if isinstance(metadata, Mapping):
        merged["metadata"] = {**metadata, "annotations": _merge_annotations(live, metadata)}
    if "attributes" in desired:
        merged["attributes"] = _merge_by_name(live, desired, "attributes")
    return merged


def merge_without_policies(live: Json, desired: Json) -> Json:
    """Merge while the kubelet's policies are unknown: live policies stay."""
    merged = dict(merge_topology(live, desired))
    policies = live.get("topologyPolicies")
    if isinstance(policies, list) and policies and all(isinstance(p, str) for p in policies):
        merged["topologyPolicies"] = policies[:1]
    attributes = _merge_by_name(live, {}, "attributes")
    if attributes and not str(desired.get("apiVersion")).endswith(V1ALPHA1):
        merged["attributes"] = attributes
    return merged


def _merge_annotations(live: Json, metadata: Json) -> Json:
    desired = metadata.get("annotations")
    desired = desired if isinstance(desired, Mapping) else {}
    live_metadata = live.get("metadata")
    live_annotations = (
        live_metadata.get("annotations") if isinstance(live_metadata, Mapping) else None
    )
    if not isinstance(live_annotations, Mapping):
        return desired
    unchanged = {
        key: live_annotations[key]
        for key in ANNOTATIONS
        if key not in desired and isinstance(live_annotations.get(key), str)
    }
    return {**unchanged, **desired}


def _merge_zones(live: Json, desired: Json) -> list[Json]:
    """Return the agent's zones, then those that are no memory nodes; removed nodes have no zone."""
    live_zones = {str(zone.get("name")): zone for zone in _valid_entries(live, "zones")}
    own = [
        _merge_zone(live_zones.get(str(zone["name"]), {}), zone)
        for zone in _valid_entries(desired, "zones")
    ]
    names = {zone["name"] for zone in own}
    foreign = [
        {
            **_scalar_members(zone),
            **{name: list(_valid_entries(zone, name)) for name in _ZONE_LISTS if name in zone},
        }
        for name, zone in live_zones.items()
        if name not in names and not (zone.get("type") == ZONE_TYPE and _ZONE_NAME.fullmatch(name))
    ]
    return [*own, *foreign[:MAX_ENTRIES_OF_OTHERS]]


def _merge_zone(live: Json, desired: Json) -> Json:
    merged = {**_scalar_members(live), **desired, "resources": _merge_resources(live, desired)}
    for name in ("costs", "attributes"):
        if entries := _merge_by_name(live, desired, name):
            merged[name] = entries
    return merged


def _scalar_members(zone: Json) -> Json:
    """Return the members of a zone beside its lists; an invalid parent is left out."""
    return {
        key: value
        for key, value in zone.items()
        if key not in _ZONE_LISTS and (key != "parent" or isinstance(value, str))
    }


def _merge_resources(live: Json, desired: Json) -> list[Json]:
    """Return the agent's resources and those of other writers in this zone, sorted by name."""
    foreign = [
        entry
        for entry in _valid_entries(live, "resources")
        if not _is_agent_resource(str(entry["name"]))
    ]
    entries = [*_valid_entries(desired, "resources"), *foreign[:MAX_ENTRIES_OF_OTHERS]]
    return sorted(entries, key=lambda entry: str(entry["name"]))


def _is_agent_resource(resource: str) -> bool:
    return resource in (CPU, MEMORY) or resource.startswith(_HUGEPAGES_PREFIX)


def _merge_by_name(live: Json, desired: Json, member: str) -> list[Json]:
    """Return a list's live entries, the agent's ones replaced by the desired ones.

    The live order is kept: it has no meaning, but two writers could fight over it.
    """
    own = {str(entry["name"]): entry for entry in _valid_entries(desired, member)}
    live_entries = list(_valid_entries(live, member))[:MAX_ENTRIES_OF_OTHERS]
    merged = [own.pop(str(entry["name"]), entry) for entry in live_entries]
    return [*merged, *own.values()]


def _valid_entries(holder: Json, member: str) -> Iterator[Mapping[str, object]]:
    """Yield the entries that the schema accepts.

    An invalid entry of another writer would make the server refuse the agent's entries for good.
    """
    entries = holder.get(member)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and all(
            isinstance(entry.get(name), kinds) and not isinstance(entry.get(name), bool)
            for name, kinds in {"name": (str,), **_REQUIRED_MEMBERS[member]}.items()
        ):
            yield entry
