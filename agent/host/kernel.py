"""Machine id, boot time, and the kernel facts that GPUDirect RDMA needs."""

from __future__ import annotations

import re

from agent.errors import ParseError
from agent.host.files import read_match, read_text, read_value
from agent.host.proc import parse_stat
from agent.snapshot.host_files import HostFiles
from agent.snapshot.node import GpuDirectHost, NodeIdentity

STAT_LIMIT = 512 * 1024  # bytes; `btime` comes after a line with a number for each interrupt
_UUID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_WORD = re.compile(r"([A-Za-z0-9._+~-]{1,128})")
_VERSION = re.compile(r"Linux version ([A-Za-z0-9._+~-]{1,128})(?: .*)?", re.DOTALL)
_MODALIAS = re.compile(r"(?:cpu:type:([A-Za-z0-9_]{1,32})[,:]|x86cpu:).*", re.DOTALL)
_X86 = "x86_64"  # the only architecture with another name in modalias than in uname
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


def read_boot_id(host: HostFiles) -> str:
    """Return the id that the kernel creates at each boot; empty if it cannot be read."""
    return read_text(host, BOOT_ID_FILE) or ""


def read_identity(host: HostFiles, name: str, source: str) -> NodeIdentity:
    """Read boot id, boot time, kernel and architecture; unreadable facts stay empty."""
    kernel_files = "/proc/sys/kernel"
    kernel = read_match(host, f"{kernel_files}/osrelease", _WORD)
    architecture = read_match(host, f"{kernel_files}/arch", _WORD)  # since Linux 6.1
    return NodeIdentity(
        name=name,
        source=source,
        boot_id=read_match(host, BOOT_ID_FILE, _UUID) or "",
        boot_time_s=_boot_time_s(host),
        kernel=kernel or read_match(host, "/proc/version", _VERSION) or "",
        architecture=architecture
        or read_value(host, "/sys/devices/system/cpu/modalias", _modalias)
        or "",
    )


def _modalias(content: str) -> str:
    match = _MODALIAS.fullmatch(content)
    if match is None:
        raise ParseError("modalias of a CPU", content)
    return _X86 if match[1] in (None, "x86") else match[1]


def _boot_time_s(host: HostFiles) -> float:
    content = read_text(host, "/proc/stat", STAT_LIMIT)
    try:
        return float(parse_stat(content or "").boot_time_s or 0)
    except ParseError:
        return 0.0


# NVIDIA's module, and its two predecessors, which register with an out-of-tree RDMA stack
_PEER_MEMORY = (
    ("/sys/module/nvidia_peermem", "nvidia_peermem"),
    ("/sys/module/nv_peer_mem", "nv_peer_mem"),
    ("/sys/kernel/mm/memory_peers/nv_mem/version", "nv_peer_mem"),
    ("/sys/kernel/mm/memory_peers/nv_mem_nc/version", "nv_peer_mem_nc"),
)

_NVIDIA_DRIVER_FILE = "/proc/driver/nvidia/version"
_OPEN_MODULE_TEXT = "Open Kernel Module"
_KERNEL_RELEASE_FILE = "/proc/sys/kernel/osrelease"
_RELEASE = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")
_DRIVER_VERSION = re.compile(r"\s([0-9]{3,4})\.[0-9]{2,3}(?:\.[0-9]{2,3})?\s")


def read_gpudirect_host(host: HostFiles) -> GpuDirectHost:
    """Read the facts; unreadable ones are absent."""
    version = read_text(host, _NVIDIA_DRIVER_FILE, 4096) or ""
    release = _RELEASE.match(read_text(host, _KERNEL_RELEASE_FILE, 256) or "")
    number = _DRIVER_VERSION.search(f"{version.splitlines()[0]} " if version else "")
    return GpuDirectHost(
        peer_memory=next((name for path, name in _PEER_MEMORY if host.exists(path)), None),
        driver=bool(version),
        open_modules=_OPEN_MODULE_TEXT in version,
        driver_major=int(number[1]) if number else None,
        kernel=(int(release[1]), int(release[2])) if release else None,
    )
