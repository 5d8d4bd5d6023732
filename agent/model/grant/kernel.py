"""What the kernel of this node has for hooks, as somebody read it."""

from __future__ import annotations

import msgspec

from agent.topology.cpu import CpuSet


class KernelMeans(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that hooks decide by; those not read yet ask for nothing."""

    cgroup_version: int | None = None  # 1 (also hybrid) or 2; None: not known
    besteffort_cpus: CpuSet | None = None  # cpuset.cpus of that QoS directory; None: not read
    bvt_file: bool = False  # the kubepods directory has cpu.bvt_warp_ns
    # /proc/sys/kernel/sched_group_identity_enabled
    identity_switch: int | None = None  # its value; None: absent, or not readable
    identity_switch_present: bool = False
    core_scheduling: bool = False  # tasks can have cookies
    core_switch: int | None = None  # /proc/sys/kernel/sched_core; None: absent
