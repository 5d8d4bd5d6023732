"""What the kubelet's own directories, of all pods of a class, are to hold; and the switches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger.entry import SWITCHES, SYSCTL, Entry
from agent.cgroup.ledger.journal import Ledger
from agent.cgroup.paths import qos_directory
from agent.cgroup.values.keys import BVT, IDLE, Key
from agent.cgroup.writing.audit import Audit
from agent.cgroup.writing.kernel import KernelFiles
from agent.cgroup.writing.result import Prepared, Written
from agent.cgroup.writing.wish import Target, Wish
from agent.cgroup.writing.writer import Writer
from agent.errors import HostFileError
from agent.hooks.cpu.core_scheduling import core_rule, core_switches, directory_idle
from agent.hooks.cpu.identity import (
    applies,
    directory_identity,
    identity_rule,
    switches,
)
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


class Switch(msgspec.Struct, frozen=True):
    """What one of the kernel's switches is to say, by the word of which hook."""

    owner: str
    path: str
    text: str


def wanted_switches(snapshot: NodeSnapshot, modes: Mapping[str, str]) -> tuple[Switch, ...]:
    """Return the kernel's switches to be written before any value, in order."""
    if snapshot.cluster.slo.taken_s is None:
        return ()
    slo, kernel = snapshot.cluster.slo.value.slo, snapshot.means.value.kernel
    said = {
        IDENTITY: switches(identity_rule(slo), kernel),
        CORES: core_switches(core_rule(slo), kernel),
    }
    return tuple(
        Switch(owner, path, text)
        for owner, pairs in said.items()
        if modes.get(owner) == ON
        for path, text in pairs
    )


def held_switches(snapshot: NodeSnapshot, modes: Mapping[str, str]) -> frozenset[Target]:
    """Return the switches that stay as they are while a rule is in force that needs them."""
    slo = snapshot.cluster.slo.value.slo
    enabled = {IDENTITY: identity_rule(slo).enabled, CORES: core_rule(slo).enabled}
    if not any(on and modes.get(owner) == ON for owner, on in enabled.items()):
        return frozenset()
    return frozenset((path, VALUE) for path in SWITCHES)


class Directories:
    """Keeps them. Their originals follow from no pod: without a ledger nothing is written."""

    def __init__(
        self,
        files: KernelFiles,
        ledger: Ledger,
        modes: Mapping[str, str],
        wall_s: Callable[[], float],
    ) -> None:
        self.wishes: tuple[Wish, ...] = ()
        self.held: frozenset[Target] = frozenset()  # switches that somebody needs
        self.problem = ""  # why switches and values are not as wanted
        self._files = files
        self._ledger = ledger
        self._modes = modes
        self._wall_s = wall_s
        self._switches: tuple[Switch, ...] = ()
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
            self.held = held_switches(snapshot, self._modes)
        for switch in self._switches:
            self._remember(switch)
        ready = writer.prepare(self.wishes, now_s)
        writer.remember(ready)
        return ready

    def apply(self, ready: Prepared, writer: Writer, now_s: float) -> Written:
        """Write the switches that differ, then the values, unless a switch is refused."""
        self.problem = ""
        audits = []
        for one in self._switches:
            try:
                found = self._read(one.path)
                if found != one.text:
                    self._files.write(one.path, one.text)
                    audits.append(self._audit(one, found))
            except HostFileError as error:
                self.problem = str(error)
                return Written(left=len(ready.wishes), audits=tuple(audits))
        done = writer.apply(ready, now_s) if ready.steps else Written()
        return msgspec.structs.replace(done, audits=(*audits, *done.audits))

    def _audit(self, switch: Switch, found: str) -> Audit:
        return Audit(
            wall_s=self._wall_s(),
            owner=switch.owner,
            message=f"set {switch.path.rpartition('/')[2]} to {switch.text}",
            path=switch.path,
            key=VALUE,
            old=found,
            new=switch.text,
        )

    def looked(self, layout: CgroupLayout) -> frozenset[str]:
        """Return all that is looked after here, whether or not anything is wanted of it."""
        return frozenset((*(qos_directory(layout, qos) for qos in KubeQos), *SWITCHES))

    def _remember(self, switch: Switch) -> None:
        known = self._ledger.entries.get((SYSCTL, switch.path, VALUE))
        try:
            found = self._read(switch.path)
        except HostFileError:
            return  # it is absent, and cannot be written either
        if found == switch.text:
            return
        entry = known or Entry(
            hierarchy=SYSCTL,
            path=switch.path,
            inode=0,
            key=VALUE,
            owner=switch.owner,
            original=found,
        )
        ours = (*entry.ours, switch.text)
        self._ledger.set(msgspec.structs.replace(entry, owner=switch.owner, ours=ours))

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
