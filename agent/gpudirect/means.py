"""What of GPUDirect RDMA the whole host decides: kernel, driver, and the module between them."""

from __future__ import annotations

import re

import msgspec

from agent.host.files import HostFiles, text

# NVIDIA's module, and its two predecessors, which register with an out-of-tree RDMA stack
_PEER_MEMORY = (
    ("/sys/module/nvidia_peermem", "nvidia_peermem"),
    ("/sys/module/nv_peer_mem", "nv_peer_mem"),
    ("/sys/kernel/mm/memory_peers/nv_mem/version", "nv_peer_mem"),
    ("/sys/kernel/mm/memory_peers/nv_mem_nc/version", "nv_peer_mem_nc"),
)
_DRIVER = "/proc/driver/nvidia/version"
_OPEN = "Open Kernel Module"
_KERNEL = "/proc/sys/kernel/osrelease"
_RELEASE = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")
_VERSION = re.compile(r"\s([0-9]{3,4})\.[0-9]{2,3}(?:\.[0-9]{2,3})?\s")


class DirectMeans(msgspec.Struct, frozen=True, kw_only=True):
    """Facts; `None` is what the host does not tell."""

    peer_memory: str | None = None  # module that registers GPU memory with RDMA drivers
    driver: bool = False  # NVIDIA's kernel module is loaded
    open_modules: bool = False  # and it is the open one, which exports dma-buf
    driver_major: int | None = None
    kernel: tuple[int, int] | None = None


def read_means(host: HostFiles) -> DirectMeans:
    """Read the facts; what cannot be read is not told."""
    version = text(host, _DRIVER, 4096) or ""
    release = _RELEASE.match(text(host, _KERNEL, 256) or "")
    number = _VERSION.search(f"{version.splitlines()[0]} " if version else "")
    return DirectMeans(
        peer_memory=next((name for path, name in _PEER_MEMORY if host.exists(path)), None),
        driver=bool(version),
        open_modules=_OPEN in version,
        driver_major=int(number[1]) if number else None,
        kernel=(int(release[1]), int(release[2])) if release else None,
    )
