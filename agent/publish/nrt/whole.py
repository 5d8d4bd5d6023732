"""The whole of a NodeResourceTopology object, in the version that is asked for.

One object is stored, in two versions that no webhook converts: a server drops what the version
written does not have. So whoever writes `v1alpha1` erases the top-level attributes that others
keep in `v1alpha2`. The newer one is written wherever it is served; it has all fields of the
older, which Koordinator reads. A manager of server-side apply is the same in both.
"""

from __future__ import annotations

from agent.model.cluster.facts import KubeletFacts, NodeFacts
from agent.model.cluster.node_cpus import knows_pods, knows_settings, kubelet_facts
from agent.model.snapshot import NodeSnapshot
from agent.publish.base import Desired, Json
from agent.publish.nrt.annotations import (
    ANNOTATIONS,
    REFUSED,
    told,
)
from agent.publish.nrt.merge import POLICY, SCOPE, merge, merge_without_policies
from agent.publish.nrt.zones import RESERVES, zones
from agent.publish.topology import GROUP, V1ALPHA1
from agent.publish.wire import sanitise
from agent.publish.wire.owner import owner_of

KIND = "NodeResourceTopology"
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "Koordinator"

NO_POLICY = "None"
_LEVELS = {"container": "ContainerLevel", "pod": "PodLevel"}
_POLICIES = {
    "single-numa-node": "SingleNUMANode",
    "restricted": "Restricted",
    "best-effort": "BestEffort",
}


def render(snapshot: NodeSnapshot, version: str, *, asks_kubelet: bool) -> Desired:
    """Return the object as it should be, with the function that minds what others write in it."""
    kubelet = kubelet_facts(snapshot, asked=asks_kubelet)
    known = told(snapshot, asked=asks_kubelet)
    node = snapshot.cluster.node.value
    body: dict[str, object] = {
        "apiVersion": f"{GROUP}/{version}",
        "kind": KIND,
        "metadata": {
            "name": snapshot.node.name,
            "labels": _labels(node),
            "annotations": known,
            **owner_of(snapshot),
        },
        "topologyPolicies": [topology_policy(kubelet)],
        "zones": zones(snapshot.numa.value, node),
    }
    if version != V1ALPHA1 and (attributes := _attributes(kubelet)):
        body["attributes"] = attributes
    return Desired(
        file_name="noderesourcetopology.yaml",
        api_version=f"{GROUP}/{version}",
        kind=KIND,
        name=snapshot.node.name,
        body=body,
        owned_annotations=(*(key for key in ANNOTATIONS if key in known), REFUSED),
        owned_labels=(MANAGED_BY, RESERVES),
        partial=not knows_settings(kubelet) or not knows_pods(snapshot),
        merge=merge if knows_settings(kubelet) else merge_without_policies,
    )


def _labels(node: NodeFacts | None) -> dict[str, str]:
    """Return our labels; the wish to reserve in each zone is the Node's own, copied."""
    wish = sanitise.label_value(node.label(RESERVES) or "") if node is not None else ""
    return {MANAGED_BY: MANAGER} | ({RESERVES: wish} if wish else {})


def topology_policy(kubelet: KubeletFacts | None) -> str:
    """Return policy and scope of the kubelet's topology manager in one word, as upstream does."""
    if kubelet is None:
        return NO_POLICY
    policy = _POLICIES.get(kubelet.topology_policy or "")
    level = _LEVELS.get(kubelet.topology_scope or "")
    return f"{policy}{level}" if policy and level else NO_POLICY


def _attributes(kubelet: KubeletFacts | None) -> list[Json]:
    """Return the same as two attributes, as other schedulers read it."""
    if kubelet is None or kubelet.topology_policy is None:
        return []
    known = {POLICY: kubelet.topology_policy, SCOPE: kubelet.topology_scope}
    return [{"name": name, "value": value} for name, value in known.items() if value]
