"""What the kubelet's own directories, of all pods of a class, are to hold; and the switches."""

from __future__ import annotations

from collections.abc import Mapping

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger.entry import SYSCTL, Entry
from agent.cgroup.ledger.journal import Ledger
from agent.cgroup.paths import qos_directory
from agent.cgroup.values.keys import BVT, IDLE, Key
from agent.cgroup.writing.kernel import KernelFiles
from agent.cgroup.writing.result import Prepared, Written
from agent.cgroup.writing.wish import Wish
from agent.cgroup.writing.writer import Writer
from agent.errors import HostFileError
from agent.hooks.cpu.core_scheduling import core_rule, directory_idle
from agent.hooks.cpu.identity import applies, directory_identity, identity_rule, switches
from agent.hooks.dispatch import ON
from agent.model.pod import KubeQos
from agent.model.snapshot import NodeSnapshot

IDENTITY, CORES = "group_identity", "core_scheduling"
VALUE = "value"  # the key of a switch in the ledger
BELOW = (KubeQos.BURSTABLE, KubeQos.BEST_EFFORT)


def directory_wishes(
    snapshot: NodeSnapshot, layout: CgroupLayout, modes: Mapping[str, str]
) -> tuple[Wish, ...]:
    """Return what the hooks that are on want of these directories.

    That is nothing before the cluster spoke. The directory of all pods is neutral always: what it
    has, all of them would have.
    """
    kernel, cluster = snapshot.means.value.kernel, snapshot.cluster
    if cluster.slo.taken_s is None:
        return ()
    found: list[Wish] = []
    rule = identity_rule(cluster.slo.value.slo)
    if modes.get(IDENTITY) == ON and applies(rule, kernel):
        for qos in KubeQos:
            value = directory_identity(rule, qos)
            found.append(_wish(layout, qos, BVT, value, IDENTITY, f"bvt to {value}"))
    core = core_rule(cluster.slo.value.slo)
    if modes.get(CORES) == ON and kernel.core_scheduling:
        for qos in BELOW:
            idle = directory_idle(core, qos)
            if idle is not None:
                found.append(_wish(layout, qos, IDLE, idle, CORES, f"cpu idle to {idle}"))
    return tuple(found)


def wanted_switches(
    snapshot: NodeSnapshot, modes: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the kernel's switches to be written before any value: path and text, in order."""
    if modes.get(IDENTITY) != ON or snapshot.cluster.slo.taken_s is None:
        return ()
    rule = identity_rule(snapshot.cluster.slo.value.slo)
    return switches(rule, snapshot.means.value.kernel)


class Directories:
    """Keeps them. Their originals follow from no pod: without a ledger nothing is written."""

    def __init__(self, files: KernelFiles, ledger: Ledger, modes: Mapping[str, str]) -> None:
        self.wishes: tuple[Wish, ...] = ()
        self.problem = ""  # why switches and values are not as wanted
        self._files = files
        self._ledger = ledger
        self._modes = modes
        self._switches: tuple[tuple[str, str], ...] = ()
        self._seen: tuple[object, ...] = ()

    def prepare(
        self, snapshot: NodeSnapshot, layout: CgroupLayout, writer: Writer, now_s: float
    ) -> Prepared:
        """Compare, and put what will be changed into the ledger, which the caller flushes."""
        cluster = snapshot.cluster
        seen = (cluster.slo.value, cluster.slo.taken_s is None, snapshot.means.value, layout)
        if len(seen) != len(self._seen) or any(
            a is not b for a, b in zip(seen, self._seen, strict=True)
        ):
            self._seen = seen
            self.wishes = directory_wishes(snapshot, layout, self._modes)
            self._switches = wanted_switches(snapshot, self._modes)
        for path, text in self._switches:
            self._remember(path, text)
        ready = writer.prepare(self.wishes, now_s)
        writer.remember(ready)
        return ready

    def apply(self, ready: Prepared, writer: Writer, now_s: float) -> Written:
        """Write the switches that differ, then the values, unless a switch is refused."""
        self.problem = ""
        for path, text in self._switches:
            try:
                if self._read(path) != text:
                    self._files.write(path, text)
            except HostFileError as error:
                self.problem = str(error)
                return Written(left=len(ready.wishes))
        return writer.apply(ready, now_s) if ready.steps else Written()

    def _remember(self, path: str, text: str) -> None:
        if (SYSCTL, path, VALUE) in self._ledger.entries:
            return
        try:
            found = self._read(path)
        except HostFileError:
            return  # it is absent, and cannot be written either
        if found != text:
            self._ledger.set(
                Entry(
                    hierarchy=SYSCTL,
                    path=path,
                    inode=0,
                    key=VALUE,
                    owner=IDENTITY,
                    original=found,
                    ours=(text,),
                )
            )

    def _read(self, path: str) -> str:
        try:
            return self._files.read(path, 64).decode("ascii", "replace").strip()
        finally:
            self._files.close(path)


def _wish(layout: CgroupLayout, qos: KubeQos, key: Key, value: int, owner: str, what: str) -> Wish:
    return Wish(
        cgroup=qos_directory(layout, qos),
        key=key,
        value=value,
        owner=owner,
        message=f"set kubeqos {what}",
    )
