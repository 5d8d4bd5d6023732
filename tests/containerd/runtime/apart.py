"""A mount namespace for one runtime: what is mounted there is nowhere else, and ends with it.

In it /tmp is empty but for this checkout, if it is there; /usr/local has on top of it what is
written there, and each hierarchy of cgroups begins at a group of its own: to who lives there it
is a node's.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

READY = "ready"
CHECKOUT = Path(__file__).parents[3]
SCRIPT = """
mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work" "$1/checkout" &&
mount --bind "$3" "$1/checkout" &&
mount -t tmpfs tmpfs /tmp && chmod 1777 /tmp &&
case $3 in /tmp/*) mkdir -p "$3" && mount --bind "$1/checkout" "$3" ;; esac &&
mount -t overlay overlay -o lowerdir=/usr/local,upperdir=$1/upper,workdir=$1/work /usr/local &&
mkdir -p /usr/local/vgpu && : >/usr/local/vgpu/libvgpu.so &&
for hierarchy in /sys/fs/cgroup/*; do
  [ ! -L "$hierarchy" ] && mountpoint -q "$hierarchy" || continue
  mkdir "$hierarchy$2" || exit
  for file in cpuset.cpus cpuset.mems; do  # a group without them takes no process
    [ ! -e "$hierarchy/$file" ] || cat "$hierarchy/$file" >"$hierarchy$2/$file" || exit
  done
  mount --bind "$hierarchy$2" "$hierarchy" || exit
  # /proc/PID/cgroup names groups as the host does, and runc looks them up by that
  mkdir "$hierarchy$2" && mount --bind "$hierarchy" "$hierarchy$2" || exit
done &&
echo ready && exec sleep 86400
"""
PROBE = """
mount -t tmpfs tmpfs /tmp && mkdir /tmp/upper /tmp/work &&
mount -t overlay overlay -o lowerdir=/usr/local,upperdir=/tmp/upper,workdir=/tmp/work /usr/local &&
group=/sys/fs/cgroup/devices/xpu-$$ && mkdir "$group" && rmdir "$group" && mknod /tmp/node c 195 0
"""


def lacking_rights() -> str:
    """Say what this machine does not let root do that a runtime needs; empty if all."""
    outcome = subprocess.run(
        ["unshare", "--mount", "sh", "-c", PROBE], capture_output=True, text=True, check=False
    )
    return (
        "" if outcome.returncode == 0 else f"no right to mounts, cgroups or nodes: {outcome.stderr}"
    )


class Apart:
    """Begins when it is made; `prefix` starts a program inside."""

    def __init__(self, folder: Path, cgroup: str) -> None:
        over = folder / "over"
        over.mkdir()
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", over, cgroup, CHECKOUT],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline().strip() != READY:
            output = self._holder.communicate()[1]
            raise RuntimeError(f"no mount namespace: {output}")
        self.prefix = ("nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--")

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()
