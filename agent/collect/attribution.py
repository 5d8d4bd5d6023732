"""Which pod and container a device's process belongs to."""

from __future__ import annotations

from collections.abc import Iterable

from agent.cgroup.layout import parse_owner
from agent.errors import HostFileError
from agent.host.files import HostFiles
from agent.model.inventory import DeviceSample

MAX_PROCESSES = 4096  # looked up in one cycle
MAX_CGROUP_BYTES = 16 * 1024

Owner = tuple[str, str]  # pod uid, container id


def parse_process_cgroup(data: bytes) -> Owner | None:
    """Return the owner that `/proc/<pid>/cgroup` names in any hierarchy; `None`: no pod's."""
    for line in data.decode("utf-8", "replace").splitlines():
        owner = parse_owner(line.rpartition(":")[2])
        if owner is not None:
            return owner
    return None


def owners(host: HostFiles, samples: Iterable[DeviceSample]) -> dict[int, Owner]:
    """Return the owners of all processes on devices, by pid on the host.

    Asks each process for its cgroup: devices have few processes where a node has hundreds of
    containers, and one such read costs no more than one `cgroup.procs`.
    """
    pids = {p.pid for sample in samples for p in sample.processes or ()}
    found: dict[int, Owner] = {}
    for pid in sorted(pids)[:MAX_PROCESSES]:
        try:
            owner = parse_process_cgroup(host.read(f"/proc/{pid}/cgroup", MAX_CGROUP_BYTES))
        except HostFileError:  # it has ended
            continue
        if owner is not None:
            found[pid] = owner
    return found
