"""All files of a host that a recording contains, by purpose.

An entry is a directory pattern and names in it; `*` stands for one name or a part of one. A link is
recorded with its target, a directory without its contents. Of files that differ per process
(`/proc/1/mounts`, `/proc/mounts`) the target is recorded under the name, because the link names
the reading process.
"""

from __future__ import annotations

import msgspec


class PathPattern(msgspec.Struct, frozen=True):
    """Entries (names or patterns) of the directories that match `base`."""

    base: str
    entries: tuple[str, ...]
    max_bytes: int = 64 * 1024  # bytes of each file
    reads_through_links: bool = False  # store the contents under this path, not under the target


_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_RDMA = "/sys/class/infiniband/*"

CPUS = (
    PathPattern(_CPU, ("online", "present", "possible", "isolated", "nohz_full", "modalias")),
    PathPattern(f"{_CPU}/smt", ("active", "control")),
    PathPattern(f"{_CPU}/cpu[0-9]*", ("online", "cpu_capacity")),
    PathPattern(
        f"{_CPU}/cpu[0-9]*/topology",
        (
            "core_cpus", "core_cpus_list", "thread_siblings", "thread_siblings_list",
            "package_cpus", "package_cpus_list", "core_siblings", "core_siblings_list",
            "cluster_cpus", "cluster_cpus_list", "die_cpus", "die_cpus_list",
            "core_id", "cluster_id", "die_id", "physical_package_id", "book_id", "drawer_id",
        ),
    ),
    PathPattern(
        f"{_CPU}/cpu[0-9]*/cache/index*",
        (
            "level", "type", "size", "id", "shared_cpu_map", "shared_cpu_list",
            "coherency_line_size", "number_of_sets",
        ),
    ),
    PathPattern(f"{_CPU}/intel_pstate", ("no_turbo",)),
    PathPattern("/sys/fs/resctrl", ("schemata",)),
    PathPattern(
        "/sys/fs/resctrl/info/L3*",
        (
            "cbm_mask", "min_cbm_bits", "num_closids", "shareable_bits", "sparse_masks",
            "num_rmids", "mon_features",
        ),
    ),
    PathPattern(
        "/sys/fs/resctrl/info/MB",
        ("bandwidth_gran", "delay_linear", "min_bandwidth", "num_closids"),
    ),
    PathPattern("/sys/devices/cpu_core", ("cpus",)),
    PathPattern("/sys/devices/cpu_atom", ("cpus",)),
    PathPattern("/sys/devices/cpu_lowpower", ("cpus",)),
)  # fmt: skip

NODES = (
    PathPattern(_NODE, ("online", "possible", "has_*")),
    PathPattern(f"{_NODE}/node[0-9]*", ("cpumap", "cpulist", "meminfo", "distance", "numastat")),
    PathPattern(f"{_NODE}/node[0-9]*/access*/initiators", ("node*",)),
    PathPattern(f"{_NODE}/node[0-9]*/hugepages/hugepages-*", ("nr_hugepages", "free_hugepages")),
    PathPattern("/sys/kernel/mm/hugepages/hugepages-*", ("nr_hugepages", "free_hugepages")),
    PathPattern("/sys/bus/node/devices", ("node*",)),
    PathPattern("/sys/bus/dax/devices/*", ("target_node",)),
)

PCI = (
    PathPattern("/sys/bus/pci/devices", ("*",)),
    PathPattern(
        "/sys/bus/pci/devices/*",
        (
            "class", "vendor", "device", "subsystem_vendor", "subsystem_device", "revision",
            "numa_node", "local_cpus", "local_cpulist", "label", "power_state",
            "max_link_speed", "max_link_width", "current_link_speed", "current_link_width",
            "driver", "iommu_group", "physfn", "virtfn*", "sriov_numvfs", "sriov_totalvfs",
            "reset_method",
        ),
    ),
    PathPattern("/sys/bus/pci/devices/*", ("config",), max_bytes=4096),
    PathPattern("/sys/bus/pci/devices/*/net", ("*",)),
    PathPattern("/sys/bus/pci/devices/*/virtio*/net", ("*",)),
    PathPattern("/sys/bus/pci/devices/*/infiniband", ("*",)),
    PathPattern("/sys/bus/pci/devices/*/infiniband_verbs/*", ("ibdev", "dev")),
    PathPattern("/sys/bus/pci/drivers/nvidia", ("0*",)),
    PathPattern("/sys/bus/pci/drivers/vfio-pci", ("0*",)),
    PathPattern("/sys/kernel/iommu_groups/*", ("type",)),
    PathPattern("/sys/kernel/pci_switch_link/virtual_switch_links/*", ("*",)),
)  # fmt: skip

NETWORK = (
    PathPattern("/sys/class/net", ("*",)),
    PathPattern(
        "/sys/class/net/*",
        (
            "address", "type", "operstate", "carrier", "speed", "mtu", "ifindex", "flags",
            "dev_id", "dev_port", "device", "master",
        ),
    ),
)  # fmt: skip

RDMA = (
    PathPattern("/sys/class/infiniband", ("*",)),
    PathPattern(
        _RDMA,
        (
            "node_type", "node_guid", "sys_image_guid", "fw_ver", "hca_type", "board_id",
            "hw_rev", "node_desc", "parent", "device",
        ),
    ),
    PathPattern(f"{_RDMA}/hw_counters", ("*",)),
    PathPattern(
        f"{_RDMA}/ports/*",
        (
            "state", "phys_state", "rate", "link_layer", "lid", "sm_lid", "lid_mask_count",
            "sm_sl", "cap_mask",
        ),
    ),
    PathPattern(f"{_RDMA}/ports/*/pkeys", ("?", "1[0-5]")),
    PathPattern(f"{_RDMA}/ports/*/counters", ("*",)),
    PathPattern(f"{_RDMA}/ports/*/counters_ext", ("*",)),
    PathPattern(f"{_RDMA}/ports/*/hw_counters", ("*",)),
    PathPattern("/sys/class/infiniband_verbs", ("*",)),
    PathPattern("/sys/class/infiniband_verbs/*", ("ibdev", "dev", "abi_version")),
    PathPattern("/sys/class/infiniband_mad/*", ("ibdev", "port", "dev")),
    PathPattern("/sys/class/misc/rdma_cm", ("dev",)),
)  # fmt: skip

GID_TABLES = f"{_RDMA}/ports/*"  # gids/<i>, gid_attrs/types/<i>, gid_attrs/ndevs/<i>

STORAGE = (
    PathPattern("/sys/class/nvme", ("*",)),
    PathPattern(
        "/sys/class/nvme/nvme*",
        ("address", "model", "serial", "firmware_rev", "state", "transport", "numa_node", "device"),
    ),
)

MODULES = (
    PathPattern("/sys/module", ("nvidia*", "nouveau", "vfio*", "ib_*", "rdma_*", "mlx?_*", "siw")),
    PathPattern(
        "/sys/module",
        (
            "bnxt_re", "efa", "erdma", "hfi1", "hns_roce*", "ionic*", "irdma", "iw_*",
            "mana*", "nv_peer_mem", "qedr", "usnic_verbs", "vmw_pvrdma",
        ),
    ),
    PathPattern("/sys/module/nvidia*", ("version",)),
    PathPattern("/sys/module/ib_core/parameters", ("netns_mode",)),
    PathPattern("/sys/kernel/mm/memory_peers/nv_mem", ("version",)),
    PathPattern("/sys/kernel/mm/memory_peers/nv_mem_nc", ("version",)),
    PathPattern("/sys/devices/soc0", ("family",)),
)  # fmt: skip

_MOUNTS = 1024 * 1024  # bytes; every container adds lines
_STAT = 512 * 1024  # bytes; `btime` comes after a number for each interrupt

PROCESSES = (
    PathPattern("/proc", ("stat",), max_bytes=_STAT),
    PathPattern("/proc", ("meminfo", "cpuinfo", "cmdline", "version", "devices")),
    PathPattern("/proc", ("mounts",), max_bytes=_MOUNTS, reads_through_links=True),
    PathPattern("/proc/1", ("mounts",), max_bytes=_MOUNTS, reads_through_links=True),
    PathPattern("/proc/pressure", ("cpu", "memory", "io")),
    PathPattern("/proc/sys/kernel", ("osrelease", "arch", "hostname")),
    PathPattern("/proc/sys/kernel/random", ("boot_id",)),
    PathPattern("/etc", ("machine-id", "nv_tegra_release")),
)

NVIDIA = (
    PathPattern("/proc/driver/nvidia", ("version", "params")),
    PathPattern("/proc/driver/nvidia/gpus", ("*",)),
    PathPattern("/proc/driver/nvidia/gpus/*", ("information", "numa_status")),
    PathPattern("/proc/driver/nvidia-caps", ("mig-minors", "sys-minors", "fabric-imex-mgmt")),
    PathPattern("/proc/driver/nvidia/capabilities/mig", ("config", "monitor")),
    PathPattern("/proc/driver/nvidia/capabilities/gpu*/mig/gi*", ("access",)),
    PathPattern("/proc/driver/nvidia/capabilities/gpu*/mig/gi*/ci*", ("access",)),
    PathPattern("/var/run/nvidia-topologyd", ("virtualTopology.xml",)),
)

ASCEND = (PathPattern("/usr/local/Ascend/driver", ("version.info",)),)

INFO_FILES = (
    PathPattern("/var/run/koordlet/xpu-device-infos", ("*",)),
)  # of other vendors' agents

DEVICE_NODES = (
    PathPattern("/dev", ("nvidia*", "dxg", "infiniband")),
    PathPattern("/dev", ("davinci*", "vdavinci*", "devmm_svm", "hisi_hdc", "dvpp_cmdlist")),
    PathPattern("/dev", ("cambricon*", "cambr-*", "cmsg_ctrl*", "commu*", "xpu*", "mxcd")),
    PathPattern("/dev/cambricon-caps", ("cap_*",)),
    PathPattern("/dev/nvidia-caps", ("nvidia-cap*",)),
    PathPattern("/dev/nvidia-caps-imex-channels", ("channel*",)),
    PathPattern("/dev/infiniband", ("*",)),
)

_GROUP_FILES = (
    "cgroup.controllers", "cgroup.subtree_control",
    "cpu.stat", "cpu.max", "cpu.weight", "cpu.pressure", "cpu.shares", "cpu.cfs_quota_us",
    "cpu.cfs_period_us", "cpuacct.usage", "cpuset.cpus", "cpuset.mems",
    "cpuset.cpus.effective", "cpuset.mems.effective", "cpuset.effective_cpus",
    "memory.stat", "memory.numa_stat", "memory.current", "memory.max", "memory.high",
    "memory.pressure", "memory.usage_in_bytes", "memory.limit_in_bytes",
    "memory.idle_page_stats", "io.pressure", "io.stat", "pids.current", "pids.max",
    "rdma.current", "rdma.max",
)  # fmt: skip
_KUBEPODS = (
    "kubepods", "kubepods.slice", "*/kubepods", "*.slice/*-kubepods.slice",
)  # fmt: skip
CGROUP_FILE_SYSTEMS = ("cgroup", "cgroup2", "cpuset")  # cpuset is older than version 1
CGROUP_MOUNTS = tuple(
    f"/sys/fs/cgroup{below}"
    for below in (
        "",
        "/unified",
        "/cpu",
        "/cpuacct",
        "/cpu,cpuacct",
        "/cpuset",
        "/memory",
        "/pids",
        "/rdma",
    )
)  # in addition to the mount table, which recordings may lack


def cgroup_root_pattern(mount: str) -> PathPattern:
    """Return the recorded files of the root group of one hierarchy."""
    return PathPattern(mount, _GROUP_FILES)


def cgroup_pod_patterns(mount: str) -> tuple[PathPattern, ...]:
    """Return the recorded files of pods and containers, in one hierarchy."""
    return tuple(
        PathPattern(f"{mount}/{group}{'/*' * depth}", ("cgroup.procs", *_GROUP_FILES))
        for group in _KUBEPODS
        for depth in range(4)  # itself, class, pod, container
    )


HOST_PATTERNS = (
    *CPUS, *NODES, *PCI, *NETWORK, *RDMA, *STORAGE, *MODULES,
    *PROCESSES, *NVIDIA, *ASCEND, *INFO_FILES, *DEVICE_NODES,
)  # fmt: skip
