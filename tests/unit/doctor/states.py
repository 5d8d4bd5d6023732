"""For each check a state of a node in which it fails or warns, and one in which all is well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from agent.config.cluster import ApiSettings
from agent.config.containers import (
    CdiSettings,
    EnforceHooksSettings,
    EnforceSettings,
    HookSettings,
    NriSettings,
)
from agent.config.settings import MetricsSettings, Settings
from agent.doctor.check import CheckInputs
from agent.doctor.facts import (
    ANSWERS,
    HANGS,
    OTHER,
    REFUSED,
    ApiFacts,
    ApiReply,
    ClockFacts,
    ContainerRequest,
    EndpointFacts,
    FolderFacts,
    LedgerFacts,
    LockFacts,
    VendorFacts,
)
from agent.doctor.host_checks import (
    COMMAND_LINE,
    INIT_NAME,
    INOTIFY_INSTANCES,
    OWN_MOUNTS,
    SELINUX_DEVICES,
    SELINUX_MODE,
)
from agent.doctor.node_report import node_report
from agent.doctor.rights import Right
from agent.snapshot.device import Health, HealthState
from agent.snapshot.host_devices import (
    KernelFeatures,
)
from agent.snapshot.inventory import RejectionCount
from agent.snapshot.pci import PciLink
from agent.version import VERSION
from plugins.vendors.nvidia.vendor import REQUIREMENTS
from tests import factory
from tests.unit.doctor.inputs import (
    CONTAINERD,
    MACHINE_ID,
    agent_with,
    allowed,
    answers,
    api,
    cluster_with,
    facts,
    managed,
    metric_object,
    node,
    node_object,
    pods_of_agent,
    refused,
    resources,
)
from tests.unit.doctor.parts import (
    check_of_pair,
    collectors,
    compared,
    enforcing,
    folders,
    health,
    host_devices,
    kubelet,
    memory_node,
    numa,
    pairs,
    placed,
    ports,
    serving,
    slo,
    snapshot_with,
    spec,
    topology_file,
    vendors_with,
)

LIBRARY = "/usr/lib64/libnvidia-ml.so.535.104.05"
NVIDIA = VendorFacts(
    requirements=REQUIREMENTS,
    module_version="535.104.05",
    libraries=(LIBRARY,),
    nodes=frozenset(REQUIREMENTS.device_nodes),
    socket_prefixes=("nvidia",),
)
RUNNING = {"systemd": 1, "kthreadd": 2, "kubelet": 812}
FOLDER = FolderFacts(path="/var/lib/xpu-agent", free_bytes=1 << 30, free_inodes=1 << 20)
FULL = replace(FOLDER, free_bytes=1 << 20)
LOCK = LockFacts(
    path="/run/xpu-agent/lock",
    holder="xpu-agent 1 (process 7)",
    version=VERSION,
    is_locked=True,
)
LEDGER = LedgerFacts(path="/var/lib/xpu-agent/ledger.log", lines=3)
SECOND_CARD = factory.gpu(1)


class State(NamedTuple):
    """Two states of a node, and words of the finding in the first."""

    bad: CheckInputs
    good: CheckInputs
    words: str


def state(bad: Mapping[str, Any], good: Mapping[str, Any], words: str) -> State:
    return State(facts(**bad), facts(**good), words)


def api_facts(**changes: object) -> dict[str, ApiFacts]:
    return {"api": api(None, **changes)}


def vendor(**changes: object) -> dict[str, object]:
    return {"vendors": {"nvidia": replace(NVIDIA, **changes)}, "processes": RUNNING}


REQUEST = ContainerRequest(
    pod_uid="u", container_id="c" * 64, variable="NVIDIA_VISIBLE_DEVICES", value="all"
)
MISSING = Right("watch", "", "pods")
CONDITIONS = Settings(api=ApiSettings(node_condition=True))
MOUNT = "cgroup2 /sys/fs/cgroup cgroup2 {},nosuid 0 0"
CHECKPOINT = "/var/lib/kubelet/cpu_manager_state"
FAILED = Health(state=HealthState.FAILED, reason="Xid79", message="m")
SLOW = PciLink(speed=320, width=4, max_speed=320, max_width=16)
NVSWITCH = frozenset({"10de:0680"})
GRANTED = agent_with("grants", {"pods": {"u": {"refusal": ""}}})
CORE = Settings(enforce=EnforceSettings(hooks=EnforceHooksSettings(core_scheduling="on")))
CPU_BURST = slo({"cpuBurstStrategy": {"policy": "auto"}})
RESCTRL = slo({"resourceQOSStrategy": {"beClass": {"resctrlQOS": {"enable": True}}}})
CLOSIDS = {"/sys/fs/resctrl/info/L3/num_closids": "4"}
SUPPRESSED = slo({"resourceUsedThresholdWithBE": {"enable": True}})

STATES: dict[str, State] = {
    "agent": state({"agent": None, "agent_problem": "none answers at x"}, {}, "none answers at x"),
    "agent-version": state({"lock": replace(LOCK, version="0.0.1")}, {"lock": LOCK}, "0.0.1"),
    "self-checks": state(
        {"self_checks": {"loop:usage": (False, "never good")}},
        {"self_checks": {"loop:usage": (True, "last good 1 s ago")}},
        "never good",
    ),
    "lock": state(
        {"lock": replace(LOCK, is_locked=False), "agent": None}, {"lock": LOCK}, "without leaving"
    ),
    "agent-restarts": state(
        api_facts(**{"agent-pods": pods_of_agent(9, "OOMKilled")}), api_facts(), "9 restarts"
    ),
    "worker-restarts": State(
        facts(vendors_with(restarts=7), discovery=node_report(node())),
        facts(vendors_with(restarts=0), discovery=node_report(node())),
        "7 times",
    ),
    "privileges": state({"is_root": False}, {}, "ordinary user"),
    "protobuf": state({"protobuf": "python"}, {}, "python"),
    "clock-sync": state(
        {"clock": ClockFacts(is_synchronised=False)},
        {"clock": ClockFacts(is_synchronised=True, max_error_s=0.02)},
        "not synchronised",
    ),
    "clock-skew": state(api_facts(clock_skew_s=-93.0), api_facts(), "-93 s"),
    "state-dir": state(folders(replace(FOLDER, is_read_only=True)), folders(FOLDER), "read-only"),
    "run-dir": state(
        folders(replace(FOLDER, is_writable=False), "node.run_dir"),
        folders(FOLDER, "node.run_dir"),
        "cannot be written",
    ),
    "disk-space": state(folders(FULL), folders(FOLDER), "1 MiB free"),
    "ledger": state({"ledger": replace(LEDGER, damaged=1)}, {"ledger": LEDGER}, "1 of 3 lines"),
    "state-files": state(
        {"state_problems": {"health.json": "damaged: x"}},
        {"state_problems": {"health.json": ""}},
        "damaged: x",
    ),
    "api-server": state(api_facts(problem="connection refused"), api_facts(), "connection refused"),
    "api-version": state(
        api_facts(version=answers({"gitVersion": "v1.22.9"})), api_facts(), "v1.22.9"
    ),
    "crds": state(
        api_facts(**{"slo.koordinator.sh/v1alpha1": refused(404)}),
        api_facts(),
        "does not have nodemetrics",
    ),
    "crd-status": state(
        api_facts(**{"slo.koordinator.sh/v1alpha1": resources("nodemetrics")}),
        api_facts(),
        "no subres",
    ),
    "rights": state(
        api_facts(**{f"right {MISSING}": allowed(value=False)}),
        api_facts(),
        "may not watch pods",
    ),
    "component-rights": State(
        facts(
            settings=CONDITIONS,
            api=api(CONDITIONS, **{"right patch nodes/status": allowed(value=False)}),
        ),
        facts(settings=CONDITIONS, api=api(CONDITIONS)),
        "patch nodes/status",
    ),
    "excess-rights": state(
        api_facts(**{"right get secrets": allowed()}), api_facts(), "may get secrets"
    ),
    "node": state(api_facts(node=answers({"items": []})), api_facts(), "no Node node-a"),
    "node-identity": State(
        facts(machine_id="f" * 32, api=api()),
        facts(
            replace(node(), node=replace(node().node, boot_id="b")),
            machine_id=MACHINE_ID,
            api=api(),
        ),
        "another machine id",
    ),
    "node-ready": state(
        api_facts(node=node_object(spec={"unschedulable": True})), api_facts(), "cordoned"
    ),
    "node-resources": state(
        api_facts(node=node_object(allocatable={"cpu": "8"})),
        api_facts(),
        "koordinator.sh/gpu-core",
    ),
    "other-writers": state(
        api_facts(Device=managed(("xpu-agent", ""), ("koordlet", ""))),
        api_facts(),
        "Device by koordlet",
    ),
    "node-slo": state(
        {"agent": cluster_with("slo", {"found": True}, age_s=4000.0)},
        {"agent": cluster_with("slo", {"found": True, "problem": ""})},
        "4000 s ago",
    ),
    "node-metric": state(api_facts(NodeMetric=metric_object(900)), api_facts(), "900 s old"),
    "kernel-version": State(
        snapshot_with(node=replace(node().node, kernel="3.10.0-1160.el7.x86_64")),
        snapshot_with(node=replace(node().node, kernel="6.1.0-18-amd64")),
        "3.10",
    ),
    "kernel-options": state(
        {"texts": {COMMAND_LINE: "ro quiet cgroup_disable=memory"}},
        {"texts": {COMMAND_LINE: "ro quiet"}},
        "cgroup_disable=memory",
    ),
    "pressure": state({"texts": {}}, {}, "cannot be read"),
    "core-scheduling": State(
        facts(settings=CORE),
        facts(host_devices(KernelFeatures(core_scheduling=True)), settings=CORE),
        "this kernel has none",
    ),
    "cpu-burst": state(
        {"agent": CPU_BURST, "has_burst_file": False},
        {"agent": CPU_BURST, "has_burst_file": True},
        "cpu.max.burst",
    ),
    "inotify": state(
        {"texts": {INOTIFY_INSTANCES: "128"}}, {"texts": {INOTIFY_INSTANCES: "8192"}}, "is 128"
    ),
    "selinux": state(
        {"texts": {SELINUX_MODE: "1", SELINUX_DEVICES: "0 0"}},
        {"texts": {SELINUX_MODE: "1", SELINUX_DEVICES: "1 1"}},
        "container_use_devices is off",
    ),
    "pending-reboot": state(
        {"paths": frozenset({"/var/run/reboot-required"})}, {}, "reboot-required is there"
    ),
    "huge-pages": State(
        facts(
            replace(node(), **numa(memory_node(0, 512))),
            agent=cluster_with("node", {"capacity": {"hugepages-2Mi": "0"}}),
        ),
        facts(
            replace(node(), **numa(memory_node(0, 512))),
            agent=cluster_with("node", {"capacity": {"hugepages-2Mi": "1Gi"}}),
        ),
        "hugepages-2Mi",
    ),
    "huge-page-nodes": State(
        snapshot_with(**numa(memory_node(0, 512), memory_node(1, 0))),
        snapshot_with(**numa(memory_node(0, 512), memory_node(1, 512))),
        "on node 1",
    ),
    "memlock": state({"runtimes": (CONTAINERD,)}, {}, "65536 bytes"),
    "cgroups": state({"cgroup_version": None}, {}, "no cgroup file system"),
    "cgroup-version": state({"cgroup_version": 1}, {}, "version 1"),
    "cgroup-controllers": state(
        {"controllers": frozenset({"cpu", "memory"})},
        {"controllers": frozenset({"cpu", "cpuset", "memory", "pids", "io"})},
        "cpuset, pids",
    ),
    "cgroup-mount": state(
        {"texts": {OWN_MOUNTS: MOUNT.format("ro")}},
        {"texts": {OWN_MOUNTS: MOUNT.format("rw")}},
        "read-only",
    ),
    "cgroup-driver": state(
        {"cgroup_driver": "cgroupfs", "texts": {INIT_NAME: "systemd"}},
        {"texts": {INIT_NAME: "systemd"}},
        "cgroupfs",
    ),
    "vendors": State(
        facts(vendors_with(state="stalled", reason="Late", message="m")), facts(), "Late: m"
    ),
    "driver-version": state(vendor(module_version="550.54.15"), vendor(), "550.54.15"),
    "driver-library": state(
        vendor(libraries=(LIBRARY, "/usr/lib64/libnvidia-ml.so.550.54.15")), vendor(), "550.54.15"
    ),
    "device-nodes": state(
        vendor(nodes=frozenset({"/dev/nvidiactl"})), vendor(), "/dev/nvidia-uvm not there"
    ),
    "char-links": state(
        {"char_links": {"/dev/nvidia0": False}},
        {"char_links": {"/dev/nvidia0": True}},
        "/dev/nvidia0",
    ),
    "persistence": State(
        facts(health(facts=(("persistence", "off"),)), **vendor()),
        facts(health(facts=(("persistence", "on"),)), **vendor()),
        "nvidia-persistenced does not run",
    ),
    "fabric-daemons": state(
        vendor(functions=NVSWITCH),
        {**vendor(functions=NVSWITCH), "processes": {**RUNNING, "nv-fabricmanage": 9}},
        "nv-fabricmanager does not run",
    ),
    "devices": State(facts(health(health=FAILED)), facts(), "Xid79: m"),
    "readings": State(
        facts(
            vendors_with(rejections=(RejectionCount(family="f", count=2, device="k", value="9"),))
        ),
        facts(),
        "f (2, first 9 of k)",
    ),
    "unmanaged": State(
        facts(health(managed=False, health=FAILED)), facts(), f"1 device: {factory.gpu(0).key}"
    ),
    "comparison": State(
        compared(factory.snapshot((factory.gpu(0), factory.nic(0), SECOND_CARD), ())),
        compared(node()),
        "found now, unknown to the agent",
    ),
    "numa": State(
        facts(replace(placed(numa_node=-1), **numa(memory_node(0), memory_node(1)))),
        facts(replace(node(), **numa(memory_node(0), memory_node(1)))),
        "numa_node is -1",
    ),
    "numa-memory": State(
        snapshot_with(**numa(memory_node(0), memory_node(1, memory_bytes=0))),
        snapshot_with(**numa(memory_node(0), memory_node(1))),
        "nodes 1 have CPUs and no memory",
    ),
    "pcie-links": State(facts(placed(link_degraded="width", link=SLOW)), facts(), "4 of 16 lanes"),
    "pci-config": State(ports(True, False), ports(True, True), "cannot be read whole"),
    "topology-file": State(topology_file(ignored=4), topology_file(), "4 of its functions"),
    "peer-memory": State(pairs(check_of_pair("PeerMemoryMissing", "no")), pairs(), "PeerMemory"),
    "access-control": State(pairs(check_of_pair("AcsRedirect")), pairs(), "AcsRedirect"),
    "iommu": State(pairs(check_of_pair("IommuTranslating")), pairs(), "IommuTranslating"),
    "nic-distance": State(
        pairs(check_of_pair("FarApart"), level="SYS"), pairs(), "no NIC below the switches of g"
    ),
    "kubelet-process": state(
        {"kubelet": "/var/lib/kubelet/pods has pods", "processes": {"kthreadd": 2}},
        {"kubelet": "the kubelet runs as process 812", "processes": RUNNING},
        "no kubelet runs",
    ),
    "kubelet-health": state(
        {"kubelet_health": EndpointFacts(address="127.0.0.1:10248", state=HANGS)},
        {"kubelet_health": EndpointFacts(address="127.0.0.1:10248", state=ANSWERS)},
        "hangs",
    ),
    "kubelet-pods": state(
        {"self_checks": {"kubelet": (False, "pods forbidden")}},
        {"self_checks": {"kubelet": (True, "pods ok")}},
        "pods forbidden",
    ),
    "pod-resources": state(
        {"pod_resources": EndpointFacts(address="/s", state=REFUSED, detail="UNAVAILABLE")},
        {"pod_resources": EndpointFacts(address="/s", state=ANSWERS)},
        "UNAVAILABLE",
    ),
    "plugin-folder": state(
        {"settings": serving(), "plugin_sockets": ()},
        {"settings": serving(), "plugin_sockets": ("kubelet.sock",)},
        "no kubelet.sock",
    ),
    "kubelet-resources": state(
        {"agent": agent_with("served", {"resources": [{"name": "g", "state": "conflict"}]})},
        {"agent": agent_with("served", {"resources": [{"name": "g", "state": "watched"}]})},
        "conflict",
    ),
    "kubelet-policies": state(
        {"settings": serving(), "agent": kubelet(topology_policy="single-numa-node")},
        {"settings": serving(), "agent": kubelet()},
        "single-numa-node",
    ),
    "kubelet-checkpoints": state(
        {"texts": {CHECKPOINT: '{"policyName":'}},
        {"texts": {CHECKPOINT: json.dumps({"policyName": "none"})}},
        "cpu_manager_state cannot be decoded",
    ),
    "runtime": state(
        {"agent": agent_with("runtime", {"runtime": "containerd", "version": "1.6.20"})},
        {},
        "containerd 1.6.20",
    ),
    "nri": state({"agent": None, "paths": frozenset()}, {}, "is not there"),
    "missed-containers": state(
        {"agent": agent_with("runtime", {"runtime": "containerd", "missed": {"c": "Late"}})},
        {"agent": agent_with("runtime", {"runtime": "containerd", "missed": {}})},
        "1 started",
    ),
    "ungranted": State(
        facts(host_devices(default_handler="nvidia")),
        facts(
            host_devices(default_handler="nvidia"),
            settings=Settings(hooks=HookSettings(ungranted="void")),
        ),
        "the default runtime is nvidia",
    ),
    "hami-core": state(
        {"paths": frozenset({"/usr/local/vgpu/libvgpu.so"})},
        {"paths": frozenset({"/usr/local/vgpu/libvgpu.so", "/tmp/vgpulock"})},
        "/tmp/vgpulock is not there",
    ),
    "cdi-folder": state(
        {
            "settings": Settings(cdi=CdiSettings(dir="/opt/cdi")),
            **folders(replace(FOLDER, path="/opt/cdi"), "cdi.dir"),
        },
        folders(replace(FOLDER, path="/var/run/cdi"), "cdi.dir"),
        "/opt/cdi is not one of",
    ),
    "means": State(
        facts(host_devices(problems=(("CdiSpecStale", "x is gone"),))),
        facts(host_devices()),
        "x is gone",
    ),
    "cdi-names": State(
        facts(host_devices(cdi=(spec("/etc/cdi/a.yaml"), spec("/var/run/cdi/b.yaml")))),
        facts(host_devices(cdi=(spec("/etc/cdi/a.yaml"),))),
        "nvidia.com/gpu=0 by /etc/cdi/a.yaml, /var/run/cdi/b.yaml",
    ),
    "cdi-enabled": state(
        {"settings": serving(injection="cdi")},
        {
            "settings": serving(injection="cdi"),
            "agent": agent_with("runtime", {"runtime": "containerd", "takes_cdi": True}),
        },
        "does not resolve CDI names",
    ),
    "grants": state(
        {"agent": agent_with("grants", {"pods": {"u": {"refusal": "R", "message": "taken"}}})},
        {"agent": GRANTED},
        "taken",
    ),
    "containers": state(
        {"agent": agent_with("proof", {"containers": {"c": {"verdict": "missing"}}})},
        {"agent": agent_with("proof", {"containers": {"c": {"verdict": "verified"}}})},
        "missing",
    ),
    "image-devices": State(
        facts(host_devices(default_handler="nvidia"), requests=(REQUEST,)),
        facts(host_devices(default_handler="nvidia"), requests=(REQUEST,), agent=GRANTED),
        "NVIDIA_VISIBLE_DEVICES=all in pod u",
    ),
    "enforcement": state(
        enforcing(strategies=[{"name": "s", "mode": "on", "state": "failed", "message": "bug"}]),
        enforcing(),
        "bug",
    ),
    "enforcement-conditions": state(
        enforcing(conditions=[{"reason": "ForeignWriter", "message": "cpu.max"}]),
        enforcing(),
        "cpu.max",
    ),
    "enforcement-controllers": state(
        {"agent": SUPPRESSED, "controllers": frozenset({"memory"})},
        {"agent": SUPPRESSED, "controllers": frozenset({"memory", "cpu", "cpuset"})},
        "cpu_suppression",
    ),
    "resctrl": state(
        {"agent": RESCTRL, "resctrl": "unmounted"},
        {"agent": RESCTRL, "resctrl": "mounted"},
        "is not mounted",
    ),
    "resctrl-groups": state(
        {"resctrl": "mounted", "resctrl_groups": 3, "texts": CLOSIDS},
        {"resctrl": "mounted", "resctrl_groups": 1, "texts": CLOSIDS},
        "all of 4",
    ),
    "collectors": state(
        collectors({"reason": "KidledMissing", "message": "no kidled"}), collectors(), "no kidled"
    ),
    "koordlet": state(
        {"processes": {**RUNNING, "koordlet": 99}}, {"processes": RUNNING}, "process 99"
    ),
    "device-plugins": state(
        {**vendor(), "processes": {**RUNNING, "nvidia-device-p": 98}},
        {**vendor(), "plugin_sockets": ("kubelet.sock", "xpu-agent-a.sock")},
        "nvidia-device-plugin (process 98)",
    ),
    "hami": state(
        {"processes": {**RUNNING, "vGPUmonitor": 97}}, {"processes": RUNNING}, "vGPUmonitor"
    ),
    "resctrl-users": state(
        {"processes": {**RUNNING, "pqos": 96}}, {"processes": RUNNING}, "pqos runs"
    ),
    "metrics-port": state(
        {"metrics_port": EndpointFacts(address="127.0.0.1:9316", state=OTHER, detail="nginx")},
        {"metrics_port": EndpointFacts(address="127.0.0.1:9316", state=ANSWERS)},
        "another program listens at 127.0.0.1:9316: nginx",
    ),
    "metrics-aliases": state(
        {
            **vendor(),
            "settings": Settings(metrics=MetricsSettings(aliases=("dcgm",))),
            "processes": {**RUNNING, "dcgm-exporter": 95},
        },
        {**vendor(), "settings": Settings(metrics=MetricsSettings(aliases=("dcgm",)))},
        "dcgm-exporter (dcgm)",
    ),
    "metrics-series": state({"cut_series": 12.0}, {"cut_series": 0.0}, "12 series"),
}

# settings and facts without which some checks are skipped, for the test that nothing is guessed
UNKNOWN: dict[str, Any] = {
    "agent": None,
    "texts": {},
    "agent_problem": "none answers",
    "is_live": False,
    "paths": frozenset(),
    "runtimes": (),
    "cgroup_version": None,
    "cgroup_driver": None,
    "settings": Settings(nri=NriSettings()),
    "api": ApiFacts(absence="a recorded host"),
}
NO_REPLY = ApiReply(problem="timeout")
