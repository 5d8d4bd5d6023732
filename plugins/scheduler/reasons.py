"""Explanations of the reasons of refusals, with a remedy, for people who know Kubernetes.

The reasons themselves have the texts of Koordinator and of kube-scheduler, by which events and
metrics are searched.
"""

from __future__ import annotations

# by the beginning of the reason; the first one that matches is taken
MEANINGS: tuple[tuple[str, str], ...] = (
    (
        "Insufficient Partitioned GPU Devices",
        "No published partition of that size is wholly free (and fast enough, if the pod names a"
        " bandwidth). Wait for a pod to end, or ask for another number of cards.",
    ),
    (
        "Insufficient Topology Scoped GPU Devices",
        "The node has free cards, but not so many within the PCIe root or NUMA node that the pod"
        " requires (requiredTopologyScope).",
    ),
    (
        "Insufficient NUMA Scoped Devices",
        "The NUMA nodes together have fewer devices than the pod requests.",
    ),
    (
        "Insufficient NUMA ",
        "The NUMA nodes that the policy admits have too little of this resource left.",
    ),
    ("Insufficient amplified cpu", "The node has too little CPU left, CPU sets counted in full."),
    (
        "Insufficient rdma VirtualFunctions",
        "The pod requests a virtual function, and no NIC of the node has any.",
    ),
    (
        "Insufficient rdma devices",
        "The node has too few NICs with enough left (of those that the pod's selector allows).",
    ),
    (
        "Insufficient fpga devices",
        "The node has too few FPGAs with enough left.",
    ),
    (
        "Insufficient GPU Devices",
        "The node has too few accelerators that are healthy, have the requested resources, and have"
        " enough of them left.",
    ),
    (
        "Insufficient gpu devices",
        "The node has too few accelerators that are healthy, have the requested resources and"
        " enough of them left, and match the pod's selector.",
    ),
    ("Insufficient ", "The node has too little of this resource left (kube-scheduler's count)."),
    (
        "node(s) Insufficient primary device",
        "The first kind of devices of the joint allocation cannot be given.",
    ),
    (
        "node(s) Device Joint-Allocate rules violation",
        "SamePCIe: the NICs must be on the PCIe roots of the cards, and each root needs one; so"
        " many NICs are not free there.",
    ),
    (
        "node(s) missing GPU Partition Table",
        "The pod asks for a partition, and the node publishes none (annotation gpu-partitions of"
        " the Device object).",
    ),
    (
        "node(s) Unsupported number of GPU requests",
        "The node has no partitions of that number of cards.",
    ),
    (
        "node(s) missing GPU Device Topology Tree",
        "The pod requires a scope, and the Device object does not say where each card is.",
    ),
    (
        "node(s) Unsupported Multi-Shared GPU",
        "A pod that shares several cards cannot require a scope.",
    ),
    (
        "node(s) have devices of another vendor",
        "The pod requests a resource of one vendor; the devices of the node are of another one.",
    ),
    (
        "node(s) missing Device",
        "The node has no Device object, so no agent there could honour the grant. Is the agent"
        " running on it?",
    ),
    (
        "no matched GPU shared resource template",
        "A virtual NPU must request exactly the amounts of a template of the node's model.",
    ),
    (
        "GPUIsolationProviderHAMICore not found on the node",
        "The pod wants its share isolated by HAMi-core, and the node does not have the label"
        " koordinator.sh/gpu-isolation-provider.",
    ),
    (
        'model "',
        "Cards of this model are not shared, by the scheduler's settings.",
    ),
    (
        "node(s) do not have the designated devices",
        "The devices were chosen before, and are on another node or not there any more.",
    ),
    (
        "designated devices do not match the request",
        "More devices, or other kinds, are designated than the pod requests.",
    ),
    (
        "invalid device-allocated annotation",
        "The annotation that designates devices is no valid JSON.",
    ),
    (
        "node(s) didn't match the requested node name",
        "The pod belongs to the node that its spec.nodeName names.",
    ),
    (
        "an earlier binding of the pod has no answer yet",
        "Until it is known whether that binding is in force, the pod cannot be on another node.",
    ),
    (
        "gang ",
        "The pods of a gang are placed together or not at all; the reasons of single pods follow.",
    ),
    (
        "Designated Allocation Lack NUMA Node ID",
        "The Device object does not say on which NUMA node the designated device is.",
    ),
    (
        "invalid resource device requests",
        "These resources cannot be requested together; docs/scheduler.md lists the sets that can.",
    ),
    (
        "invalid resource unit",
        "Percentages above 100 must be multiples of 100: 200 are two devices.",
    ),
    (
        "invalid annotation",
        "The annotation is no valid JSON, or a value of it is none that exists.",
    ),
    ("invalid Device", "The annotation is no valid JSON, or a value of it is none that exists."),
    ("invalid GPU", "The annotation is no valid JSON, or a value of it is none that exists."),
    ("the requested CPUs must be integer", "A pod with CPUs of its own requests whole CPUs."),
    (
        "node(s) NUMA Topology policy not match",
        "Pod and node name different NUMA policies.",
    ),
    (
        "node(s) missing NUMA resources",
        "The pod asks for NUMA alignment, and the node has no NodeResourceTopology.",
    ),
    (
        "node(s) invalid CPU Topology",
        "The pod gets CPUs of its own, and no NodeResourceTopology says which CPUs the node has.",
    ),
    (
        "node(s) requested cpus not multiple cpus per core",
        "The pod gets whole cores: its CPUs must be a multiple of the threads of a core.",
    ),
    (
        "node(s) cpu bind policy conflicts",
        "The node gives CPUs in another way than the pod requires.",
    ),
    (
        "node(s) invalid CPU amplification ratio",
        "The Node's annotation resource-amplification-ratio is none.",
    ),
    ("not enough cpus available", "Too few CPUs are free of other pods' CPU sets."),
    (
        "insufficient CPUs to satisfy required cpu bind policy",
        "Too few CPUs are free in the form that the pod requires (whole cores, or one of each).",
    ),
    ("Unsatisfied NUMA ", "No set of NUMA nodes has enough of this resource."),
    (
        "Unaligned NUMA Hint",
        "CPU, memory and devices cannot all be given from NUMA nodes that the policy admits.",
    ),
    (
        "node(s) nodeMetric expired",
        "The node's NodeMetric is too old to decide by. Is the agent running on it?",
    ),
    ("node(s) cpu ", "The node's CPU would be busier than load_score.usage_thresholds allow."),
    (
        "node(s) memory ",
        "The node's memory would be fuller than load_score.usage_thresholds allow.",
    ),
    ("node(s) were unschedulable", "The node is cordoned."),
    (
        "node(s) didn't match Pod's node affinity/selector",
        "The node does not have the labels of the pod's nodeSelector.",
    ),
    ("node(s) had untolerated taint", "The pod does not tolerate a taint of the node."),
    ("Too many pods", "The node has as many pods as the kubelet accepts."),
    (
        "gpu core resource is required",
        "The vendor's device plug-in serves pods with a share of cores.",
    ),
    ("gpu memory must not be less than", "The vendor's device plug-in serves no smaller share."),
    ("multiple gpu share is not supported", "The vendor's device plug-in serves one card a pod."),
    ('node "', "A vendor's device plug-in is serving another pod of the node; it is tried again."),
)


def explain_reason(reason: str) -> str:
    """Return the explanation of a reason; empty for an unknown one."""
    return next((text for start, text in MEANINGS if reason.startswith(start)), "")
