"""The first file system of the virtual machine: busybox, kernel modules and a script."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.guest.packages import Parts

# those that the root needs, then devices and soft-RoCE with the checksum it asks for by name
MODULES = (
    *("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_net", "nvme", "null_blk"),
    *("crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm", "ib_umad"),
)
NICS = 4

_INIT = """\
#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc p /proc; $B mount -t sysfs s /sys; $B mount -t devtmpfs d /dev
while read module; do $B insmod /modules/$module || echo "no $module"; done < /modules/order
O=trans=virtio,version=9p2000.L,msize=524288,access=any
$B mount -t 9p -o $O,ro,cache=loose hostroot /lower
$B mount -t tmpfs -o size=25% t /rw
$B mkdir /rw/upper /rw/work
$B mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work o /newroot
$B mkdir -p /newroot/share /newroot/proc /newroot/sys /newroot/dev /newroot/run
$B mount -t 9p -o $O share /newroot/share
$B mount -t cgroup2 -o favordynmods none /sys/fs/cgroup
for d in proc sys dev; do $B mount -o move /$d /newroot/$d; done
$B mkdir /newroot/dev/shm
$B mount -t tmpfs t /newroot/run; $B mount -t tmpfs t /newroot/dev/shm
for device in lo {nics}; do $B ip link set $device up; done
exec $B switch_root /newroot /bin/sh /share/start.sh
"""


def write_initramfs(parts: Parts, path: Path) -> None:
    """Write a cpio archive that mounts this machine's root read-only, with a writable cover.

    It then runs `start.sh` of the share as process 1.
    """
    order = module_order(parts.modules, MODULES)
    nics = " ".join(f"eth{n}" for n in range(NICS))
    with path.open("wb") as file:
        for name in ("bin", "dev", "lower", "modules", "newroot", "proc", "rw", "sys"):
            file.write(_entry(name, 0o040755, b""))
        file.write(_entry("bin/busybox", 0o100755, parts.busybox.read_bytes()))
        file.write(_entry("init", 0o100755, _INIT.replace("{nics}", nics).encode()))
        names = "".join(f"{module.name}\n" for module in order)
        file.write(_entry("modules/order", 0o100644, names.encode()))
        for module in order:
            file.write(_entry(f"modules/{module.name}", 0o100644, module.read_bytes()))
        file.write(_entry("TRAILER!!!", 0, b""))


def module_order(modules: Path, desired: Iterable[str]) -> list[Path]:
    """Return the files of these modules and of all that they depend on, in loading order."""
    builtin = {_name(Path(line)) for line in (modules / "modules.builtin").read_text().split()}
    files = {_name(path): path for path in (modules / "kernel").rglob("*.ko")}
    order: dict[str, Path] = {}

    def take(name: str) -> None:
        if name in builtin or name in order:
            return
        path = files[name]
        result = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
        for needed in (result[1].decode() if result else "").split(","):
            if needed:
                take(needed.replace("-", "_"))
        order[name] = path

    for name in desired:
        take(name.replace("-", "_"))
    return list(order.values())


def _name(path: Path) -> str:
    return path.name.removesuffix(".ko").replace("-", "_")


def _entry(name: str, mode: int, data: bytes) -> bytes:
    """Return one member in the format `newc`: all numbers in eight hexadecimal digits."""
    raw = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
    head = b"070701" + "".join(f"{field:08X}" for field in fields).encode() + raw
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
