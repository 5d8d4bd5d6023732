"""What is to be seen inside a container, by commands that run there."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.containerd.runtime.cri import Cri
from tests.containerd.runtime.leavings import CGROUPS
from tests.containerd.runtime.pods import Pod

# The runtime reports a container as started before its first process runs the image's program:
# until then its variables are those of the runtime, and for an instant none.
LOOK = """
while [ -z "$env" ]; do
  busybox grep -q '^runc' /proc/1/comm || env=$(busybox tr '\\0' '\\n' </proc/1/environ)
done
echo "$env"; echo --
busybox find /dev -type c -exec busybox stat -c '%n %t %T %a' {} ';'; echo --
cat /proc/1/mountinfo; echo --
cat /proc/1/limits; echo --
busybox grep Cpus_allowed_list /proc/1/status
"""
# what opening a node ends with, where no driver has its numbers
ANSWERS = {
    "No such device or address": "allowed",  # the kernel's next question is whose it is
    "No such device": "allowed",  # the major is a driver's, the minor nobody's
    "Operation not permitted": "denied",
    "no such file": "absent",
    "nonexistent directory": "absent",
}


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One look. Nodes are `major:minor mode` by path, mounts `root options` by path."""

    env: dict[str, str]
    nodes: dict[str, str]
    mounts: dict[str, str]
    memlock: str
    cpus: str

    def beyond(self, plain: ContainerView) -> ContainerView:
        """Return what this container has and a plain one has not, or has otherwise."""
        return ContainerView(
            env=_beyond(self.env, plain.env),
            nodes=_beyond(self.nodes, plain.nodes),
            mounts=_beyond(self.mounts, plain.mounts),
            memlock=self.memlock if self.memlock != plain.memlock else "",
            cpus=self.cpus if self.cpus != plain.cpus else "",
        )


NOTHING = ContainerView({}, {}, {}, "", "")


def look(cri: Cri, container_id: str) -> ContainerView:
    """Look at the container's first process and its /dev."""
    output = cri.inside(container_id, "sh", "-c", LOOK)
    assert output.status == 0, output
    env, nodes, mounts, limits, cpus = (part.strip() for part in output.out.split("--\n"))
    memlock = next(line for line in limits.splitlines() if line.startswith("Max locked memory"))
    return ContainerView(
        env=dict(_pair(line, "=") for line in env.splitlines()),
        nodes=dict(_node(line) for line in nodes.splitlines()),
        mounts=dict(_mount(line) for line in mounts.splitlines()),
        memlock=memlock[26:].split()[0],
        cpus=cpus.split()[-1],
    )


def opening(cri: Cri, container_id: str, path: str, how: str = "<") -> str:
    """Open a node for reading, or for writing by `>>`; return opened, allowed, denied, absent."""
    output = cri.inside(container_id, "sh", "-c", f": {how}{path}")
    if output.status == 0:
        return "opened"
    return next(answer for text, answer in ANSWERS.items() if output.err.strip().endswith(text))


def opening_made(cri: Cri, container_id: str, major: int, minor: int) -> str:
    """Make a node of one's own, as containers may, and open it."""
    text = f"/tmp/n{major}-{minor}"
    output = cri.inside(container_id, "sh", "-c", f"mknod {text} c {major} {minor}")
    assert output.status == 0, output
    return opening(cri, container_id, text)


def tell(what: str, *seen: object) -> None:
    """Print what was seen, for people who read a test's output."""
    sys.stdout.write(f"\n{what}: {' '.join(map(str, seen))}")


def cgroup_file(pod: Pod, container_id: str, controller: str, name: str) -> str:
    """Return a cgroup file of a container, from the host."""
    above = f"{CGROUPS}/{controller}{pod.runtime.cgroup}"
    return Path(f"{above}{pod.cgroup}/{container_id}/{name}").read_text().strip()


def _beyond(here: dict[str, str], plain: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in here.items() if plain.get(key) != value}


def _pair(line: str, sign: str) -> tuple[str, str]:
    first, _, rest = line.partition(sign)
    return first, rest


def _node(line: str) -> tuple[str, str]:
    path, major, minor, mode = line.split()
    return path, f"{int(major, 16)}:{int(minor, 16)} {mode}"


def _mount(line: str) -> tuple[str, str]:
    fields = line.split()
    options = ",".join(word for word in fields[5].split(",") if word in ("ro", "rw"))
    # of what the runtime makes itself, the source is another for each container
    own = fields[3].startswith(("/usr", "/upper", "/dev", "/vgpu"))
    return fields[4], f"{fields[3] if own else ''} {options}".strip()
