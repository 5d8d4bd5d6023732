"""Snapshots of a node in a cluster: a machine of any shape, its Node, its kubelet, its pods."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from agent.snapshot.cluster import ClusterView, KubeletView, MetricCollectPolicy, NodeView
from agent.snapshot.cpu import Cpu, CpuPackage, CpuTopology, NumaNode, NumaTopology
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import KubeQos, PodView

NAME = "node-0"
UID = "03020590-ccef-4772-a84a-b62eba2c6a36"
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
QOS = "koordinator.sh/qosClass"
KUBELET = KubeletView(cpu_manager_policy="none", topology_policy="none", topology_scope="container")
GIB = 1 << 30


def machine(sockets: int = 2, cores: int = 2, threads: int = 2) -> CpuTopology:
    """A machine with one memory node a socket; siblings are half the CPUs apart, as on Intel's."""
    total = sockets * cores * threads
    apart = sockets * cores
    cpus = tuple(
        Cpu(id=n, core=n % apart, socket=n % apart // cores, node=n % apart // cores, l3=0)
        for n in range(total)
    )
    packages = tuple(
        CpuPackage(
            socket=s, package_id=s, cpus=frozenset(cpu.id for cpu in cpus if cpu.socket == s)
        )
        for s in range(sockets)
    )
    return CpuTopology(usable=frozenset(range(total)), cpus=cpus, packages=packages)


def memory(cpus: CpuTopology, memory_bytes: int = 16 * GIB) -> NumaTopology:
    """The memory nodes of such a machine."""
    nodes = sorted({cpu.node for cpu in cpus.cpus})
    return NumaTopology(
        nodes=tuple(
            NumaNode(
                id=n,
                cpus=frozenset(cpu.id for cpu in cpus.cpus if cpu.node == n),
                memory_bytes=memory_bytes,
                distances=tuple(10 if n == other else 21 for other in nodes),
                socket=n,
            )
            for n in nodes
        )
    )


def node(
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **changes: object,
) -> NodeView:
    """The Node; a real one always has some annotation."""
    node_view = NodeView(
        name=NAME,
        uid=UID,
        annotations=tuple(({"a": "b"} if annotations is None else annotations).items()),
        labels=tuple((labels or {}).items()),
    )
    return replace(node_view, **changes)


def pod(name: str, cpus: str = "", qos: str = "", **changes: object) -> PodView:
    """A pod; with `cpus` one to which the scheduler gave them."""
    pod_view = PodView(
        uid=f"uid-{name}",
        qos=KubeQos.GUARANTEED,
        name=name,
        namespace="d",
        labels=((QOS, qos),) if qos else (),
        annotations=((RESOURCE_STATUS, f'{{"cpuset":"{cpus}"}}'),) if cpus else (),
    )
    return replace(pod_view, **changes)


def snapshot(
    cpus: CpuTopology | None = None,
    owner: NodeView | None = None,
    kubelet: KubeletView | None = KUBELET,
    pods: tuple[PodView, ...] = (),
    policy: MetricCollectPolicy | None = None,
    versions: tuple[str, ...] | None = ("v1alpha1", "v1alpha2"),
) -> NodeSnapshot:
    """What is known when Node, kubelet and pods have been seen, and the server's versions."""
    result = cpus or machine()
    facts = ClusterView(
        is_clustered=True,
        node=SnapshotPart(owner or node(), 1.0),
        kubelet=SnapshotPart(kubelet, None if kubelet is None else 1.0),
        metric_policy=SnapshotPart(policy, 1.0),
        topology_versions=SnapshotPart(versions, None if versions is None else 1.0),
    )
    return NodeSnapshot(
        node=NodeIdentity(name=NAME),
        cpus=SnapshotPart(result, 1.0),
        numa=SnapshotPart(memory(result), 1.0),
        pods=SnapshotPart(pods, 1.0),
        cluster=facts,
    )
