"""What the virtual machine is made of: QEMU, a kernel with its modules, a static busybox."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

QEMU = "qemu-system-x86_64"
QEMU_PACKAGE = "qemu-system-x86"
KERNEL_PACKAGE = "linux-image-amd64"  # depends on the newest kernel's package
BUSYBOX_PACKAGE = "busybox-static"
APT_S = 240.0


class CannotRun(Exception):
    """This machine lacks something that the virtual machine needs; says what."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Files that a boot needs."""

    kernel: Path
    modules: Path  # a kernel's folder with `modules.builtin` and `kernel/`
    busybox: Path


def prepare(cache: Path) -> Parts:
    """Return the parts, fetched into `cache` on the first call; raise `CannotRun` with the reason.

    QEMU is installed if it is absent and this is root; kernel and busybox are only unpacked.
    """
    cache.mkdir(parents=True, exist_ok=True)
    if not (cache / "complete").exists():
        _fetch(cache)
        (cache / "complete").touch()
    if shutil.which(QEMU) is None:
        _install_qemu()
    (modules,) = (cache / "kernel/lib/modules").iterdir()
    return Parts(
        kernel=cache / f"kernel/boot/vmlinuz-{modules.name}",
        modules=modules,
        busybox=cache / "busybox/bin/busybox",
    )


def _fetch(cache: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise CannotRun("no apt-get and dpkg, which fetch and unpack the kernel")
    _refresh_lists()
    result = re.search(r"Depends: (linux-image-\S+)", _apt("apt-cache", "depends", KERNEL_PACKAGE))
    if result is None:
        raise CannotRun(f"apt knows no {KERNEL_PACKAGE}")
    for name, package in (("kernel", result[1]), ("busybox", BUSYBOX_PACKAGE)):
        downloads = cache / "downloads" / name
        shutil.rmtree(downloads, ignore_errors=True)
        shutil.rmtree(cache / name, ignore_errors=True)
        downloads.mkdir(parents=True)
        _apt("apt-get", "download", "-qq", package, cwd=downloads)
        (archive,) = downloads.iterdir()
        _apt("dpkg", "-x", str(archive), str(cache / name))
    shutil.rmtree(cache / "downloads")


def _install_qemu() -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise CannotRun(f"no {QEMU}, which only root with apt-get installs: {QEMU_PACKAGE}")
    _refresh_lists()
    _apt("apt-get", "install", "-y", "-qq", "--no-install-recommends", QEMU_PACKAGE)


def _refresh_lists() -> None:
    if os.geteuid() == 0:
        _apt("apt-get", "update", "-qq")


def _apt(*command: str, cwd: Path | None = None) -> str:
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            check=True,
            text=True,
            capture_output=True,
            timeout=APT_S,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        text = str(getattr(error, "stderr", None) or "").strip()
        raise CannotRun(f"{' '.join(command)}: {error}: {text[-300:]}") from error
