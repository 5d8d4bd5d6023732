"""What a recording takes of a host: every file that the agent reads, by purpose.

A directory pattern and the entries in it; `*` stands for one name or a part of one. A link
is taken with what it leads to; a directory only as being there. Where both the node and its
containers have a file (`/proc/1/mounts`, `/proc/mounts`), links are read through: they name
the process that asks.
"""

from __future__ import annotations

import msgspec


class Wanted(msgspec.Struct, frozen=True):
    """Entries (names or patterns) of the directories that match `base`."""

    base: str
    entries: tuple[str, ...]
    limit: int = 64 * 1024  # bytes of each file
    through: bool = False  # keep the contents at the path itself, whatever links lead to it


_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_RDMA = "/sys/class/infiniband/*"

CPUS = (
    Wanted(_CPU, ("online", "present", "possible", "isolated", "nohz_full", "modalias")),
    Wanted(f"{_CPU}/smt", ("active", "control")),
    Wanted(f"{_CPU}/cpu[0-9]*", ("online", "cpu_capacity")),
    Wanted(
        f"{_CPU}/cpu[0-9]*/topology",
        (
            "core_cpus", "core_cpus_list", "thread_siblings", "thread_siblings_list",
            "package_cpus", "package_cpus_list", "core_siblings", "core_siblings_list",
            "cluster_cpus", "cluster_cpus_list", "die_cpus", "die_cpus_list",
            "core_id", "cluster_id", "die_id", "physical_package_id", "book_id", "drawer_id",
        ),
    ),
    Wanted(
        f"{_CPU}/cpu[0-9]*/cache/index*",
        (
            "level", "type", "size", "id", "shared_cpu_map", "shared_cpu_list",
            "coherency_line_size", "number_of_sets",
        ),
    ),
    Wanted(f"{_CPU}/intel_pstate", ("no_turbo",)),
    Wanted("/sys/fs/resctrl/info/L3", ("cbm_mask",)),
    Wanted("/sys/devices/cpu_core", ("cpus",)),
    Wanted("/sys/devices/cpu_atom", ("cpus",)),
    Wanted("/sys/devices/cpu_lowpower", ("cpus",)),
)  # fmt: skip

NODES = (
    Wanted(_NODE, ("online", "possible", "has_*")),
    Wanted(f"{_NODE}/node[0-9]*", ("cpumap", "cpulist", "meminfo", "distance", "numastat")),
    Wanted(f"{_NODE}/node[0-9]*/access*/initiators", ("node*",)),
    Wanted(f"{_NODE}/node[0-9]*/hugepages/hugepages-*", ("nr_hugepages", "free_hugepages")),
    Wanted("/sys/kernel/mm/hugepages/hugepages-*", ("nr_hugepages", "free_hugepages")),
    Wanted("/sys/bus/node/devices", ("node*",)),
    Wanted("/sys/bus/dax/devices/*", ("target_node",)),
)

PCI = (
    Wanted("/sys/bus/pci/devices", ("*",)),
    Wanted(
        "/sys/bus/pci/devices/*",
        (
            "class", "vendor", "device", "subsystem_vendor", "subsystem_device", "revision",
            "numa_node", "local_cpus", "local_cpulist", "label", "power_state",
            "max_link_speed", "max_link_width", "current_link_speed", "current_link_width",
            "driver", "iommu_group", "physfn", "virtfn*", "sriov_numvfs", "sriov_totalvfs",
            "reset_method",
        ),
    ),
    Wanted("/sys/bus/pci/devices/*", ("config",), limit=4096),
    Wanted("/sys/bus/pci/devices/*/net", ("*",)),
    Wanted("/sys/bus/pci/devices/*/virtio*/net", ("*",)),
    Wanted("/sys/bus/pci/devices/*/infiniband", ("*",)),
    Wanted("/sys/bus/pci/devices/*/infiniband_verbs/*", ("ibdev", "dev")),
    Wanted("/sys/bus/pci/drivers/nvidia", ("0*",)),
    Wanted("/sys/bus/pci/drivers/vfio-pci", ("0*",)),
    Wanted("/sys/kernel/iommu_groups/*", ("type",)),
    Wanted("/sys/kernel/pci_switch_link/virtual_switch_links/*", ("*",)),
)  # fmt: skip

NETWORK = (
    Wanted("/sys/class/net", ("*",)),
    Wanted(
        "/sys/class/net/*",
        (
            "address", "type", "operstate", "carrier", "speed", "mtu", "ifindex", "flags",
            "dev_id", "dev_port", "device", "master",
        ),
    ),
)  # fmt: skip

RDMA = (
    Wanted("/sys/class/infiniband", ("*",)),
    Wanted(
        _RDMA,
        (
            "node_type", "node_guid", "sys_image_guid", "fw_ver", "hca_type", "board_id",
            "hw_rev", "node_desc", "parent", "device",
        ),
    ),
    Wanted(f"{_RDMA}/hw_counters", ("*",)),
    Wanted(
        f"{_RDMA}/ports/*",
        (
            "state", "phys_state", "rate", "link_layer", "lid", "sm_lid", "lid_mask_count",
            "sm_sl", "cap_mask",
        ),
    ),
    Wanted(f"{_RDMA}/ports/*/pkeys", ("?", "1[0-5]")),
    Wanted(f"{_RDMA}/ports/*/counters", ("*",)),
    Wanted(f"{_RDMA}/ports/*/counters_ext", ("*",)),
    Wanted(f"{_RDMA}/ports/*/hw_counters", ("*",)),
    Wanted("/sys/class/infiniband_verbs", ("*",)),
    Wanted("/sys/class/infiniband_verbs/*", ("ibdev", "dev", "abi_version")),
    Wanted("/sys/class/infiniband_mad/*", ("ibdev", "port", "dev")),
    Wanted("/sys/class/misc/rdma_cm", ("dev",)),
)  # fmt: skip

GID_TABLES = f"{_RDMA}/ports/*"  # gids/<i>, gid_attrs/types/<i>, gid_attrs/ndevs/<i>

STORAGE = (
    Wanted("/sys/class/nvme", ("*",)),
    Wanted(
        "/sys/class/nvme/nvme*",
        ("address", "model", "serial", "firmware_rev", "state", "transport", "numa_node", "device"),
    ),
)

MODULES = (
    Wanted("/sys/module", ("nvidia*", "nouveau", "vfio*", "ib_*", "rdma_*", "mlx?_*", "siw")),
    Wanted(
        "/sys/module",
        (
            "bnxt_re", "efa", "erdma", "hfi1", "hns_roce*", "ionic*", "irdma", "iw_*",
            "mana*", "nv_peer_mem", "qedr", "usnic_verbs", "vmw_pvrdma",
        ),
    ),
    Wanted("/sys/module/nvidia*", ("version",)),
    Wanted("/sys/module/ib_core/parameters", ("netns_mode",)),
    Wanted("/sys/kernel/mm/memory_peers/nv_mem", ("version",)),
    Wanted("/sys/kernel/mm/memory_peers/nv_mem_nc", ("version",)),
    Wanted("/sys/devices/soc0", ("family",)),
)  # fmt: skip

_MOUNTS = 1024 * 1024  # bytes; every container adds lines
_STAT = 512 * 1024  # bytes; `btime` stands behind a number for each interrupt

PROCESSES = (
    Wanted("/proc", ("stat",), limit=_STAT),
    Wanted("/proc", ("meminfo", "cpuinfo", "cmdline", "version", "devices")),
    Wanted("/proc", ("mounts",), limit=_MOUNTS, through=True),
    Wanted("/proc/1", ("mounts",), limit=_MOUNTS, through=True),
    Wanted("/proc/pressure", ("cpu", "memory", "io")),
    Wanted("/proc/sys/kernel", ("osrelease", "arch", "hostname")),
    Wanted("/proc/sys/kernel/random", ("boot_id",)),
    Wanted("/etc", ("machine-id", "nv_tegra_release")),
)

NVIDIA = (
    Wanted("/proc/driver/nvidia", ("version", "params")),
    Wanted("/proc/driver/nvidia/gpus", ("*",)),
    Wanted("/proc/driver/nvidia/gpus/*", ("information", "numa_status")),
    Wanted("/proc/driver/nvidia-caps", ("mig-minors", "sys-minors", "fabric-imex-mgmt")),
    Wanted("/proc/driver/nvidia/capabilities/mig", ("config", "monitor")),
    Wanted("/proc/driver/nvidia/capabilities/gpu*/mig/gi*", ("access",)),
    Wanted("/proc/driver/nvidia/capabilities/gpu*/mig/gi*/ci*", ("access",)),
    Wanted("/var/run/nvidia-topologyd", ("virtualTopology.xml",)),
)

ASCEND = (Wanted("/usr/local/Ascend/driver", ("version.info",)),)

INFO_FILES = (Wanted("/var/run/koordlet/xpu-device-infos", ("*",)),)  # of other vendors' agents

DEVICE_NODES = (
    Wanted("/dev", ("nvidia*", "dxg", "infiniband")),
    Wanted("/dev", ("davinci*", "vdavinci*", "devmm_svm", "hisi_hdc", "dvpp_cmdlist")),
    Wanted("/dev", ("cambricon*", "cambr-*", "cmsg_ctrl*", "commu*", "xpu*", "mxcd")),
    Wanted("/dev/cambricon-caps", ("cap_*",)),
    Wanted("/dev/nvidia-caps", ("nvidia-cap*",)),
    Wanted("/dev/nvidia-caps-imex-channels", ("channel*",)),
    Wanted("/dev/infiniband", ("*",)),
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
CGROUP_FILE_SYSTEMS = ("cgroup", "cgroup2", "cpuset")  # the last is what came before version 1
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
)  # where to look besides the mount table, which recordings may lack


def cgroup_root(mount: str) -> Wanted:
    """Return what is taken of the root group of one hierarchy."""
    return Wanted(mount, _GROUP_FILES)


def cgroup_pods(mount: str) -> tuple[Wanted, ...]:
    """Return what is taken of pods and containers, in one hierarchy."""
    return tuple(
        Wanted(f"{mount}/{group}{'/*' * depth}", ("cgroup.procs", *_GROUP_FILES))
        for group in _KUBEPODS
        for depth in range(4)  # itself, class, pod, container
    )


HOST = (
    *CPUS, *NODES, *PCI, *NETWORK, *RDMA, *STORAGE, *MODULES,
    *PROCESSES, *NVIDIA, *ASCEND, *INFO_FILES, *DEVICE_NODES,
)  # fmt: skip
