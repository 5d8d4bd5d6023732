"""What a person set aside on the Node, by annotation: CPUs, memory, CPUs of system services."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from agent.model.cluster.annotation import BadAnnotation, Refused, cpu_list, json_object
from agent.model.cluster.facts import NodeFacts
from agent.model.device import Pairs
from agent.model.foreign.quantities import parse_quantity
from agent.topology.cpu import CpuSet
from agent.topology.text import format_cpu_list

RESERVATION = "node.koordinator.sh/reservation"
SYSTEM_QOS = "node.koordinator.sh/system-qos-resource"
POLICIES = ("Default", "ReservedCPUsOnly")
MAX_RESOURCES = 64
_RESOURCE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./]{0,252}")


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """What pods must leave alone. CPUs are named, or counted where only an amount is given."""

    resources: Pairs = ()  # canonical quantities, by name
    cpus: CpuSet = frozenset()
    count: int = 0  # CPUs to be chosen, if none are named
    policy: str = ""  # Default, ReservedCPUsOnly; empty: not said


class SystemQos(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs of system services. Only exclusive ones are missing for others."""

    cpus: CpuSet = frozenset()
    exclusive: bool | None = None  # None: not said, which means so

    @property
    def withheld(self) -> CpuSet:
        """Return the CPUs that no pod shares."""
        return frozenset() if self.exclusive is False else self.cpus


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """Both annotations, and what of them is not used."""

    reservation: Reservation = Reservation()
    system_qos: SystemQos | None = None  # None: the Node has no annotation at all
    refused: tuple[Refused, ...] = ()


class _Reading:
    """One annotation being read: a member that cannot be used costs itself only."""

    def __init__(self, node: NodeFacts, key: str, machine: CpuSet) -> None:
        self.refused: list[Refused] = []
        self._key = key
        self._machine = machine
        self.members: Mapping[str, object] = {}
        text = node.annotation(key)
        try:
            self.members = json_object(text) if text else {}
        except BadAnnotation as error:
            self.refuse("", str(error))

    def refuse(self, member: str, why: str) -> None:
        path = f"{self._key}.{member}" if member else self._key
        self.refused.append(Refused(path=path, why=why))

    def cpus(self, member: str) -> CpuSet:
        """Return the CPUs named by a member that this machine has."""
        try:
            named = cpu_list(self.members.get(member) or "")
        except BadAnnotation as error:
            self.refuse(member, str(error))
            return frozenset()
        if strange := named - self._machine:
            self.refuse(member, f"this machine has no CPU {format_cpu_list(strange)[:40]}")
        return named & self._machine


def wishes(node: NodeFacts | None, machine: CpuSet) -> Wishes:
    """Decode what the Node says; `machine` are the CPUs there are. Nothing without a Node."""
    if node is None:
        return Wishes()
    kept = _Reading(node, RESERVATION, machine)
    services = _Reading(node, SYSTEM_QOS, machine)
    reservation, system_qos = _reservation(kept, machine), _system_qos(services)
    return Wishes(
        reservation=reservation,
        system_qos=system_qos if node.annotations else None,
        refused=(*kept.refused, *services.refused),
    )


def _reservation(reading: _Reading, machine: CpuSet) -> Reservation:
    resources = tuple(sorted(_resources(reading)))
    cpus = reading.cpus("reservedCPUs")
    count = 0 if cpus else _whole_cpus(dict(resources).get("cpu", "0"))
    if count > len(machine):
        reading.refuse("resources.cpu", f"more than the {len(machine)} CPUs of this machine")
        count = 0
    policy = reading.members.get("applyPolicy") or ""
    if policy and policy not in POLICIES:
        reading.refuse("applyPolicy", f"neither {POLICIES[0]} nor {POLICIES[1]}")
        policy = ""
    return Reservation(resources=resources, cpus=cpus, count=count, policy=str(policy))


def _resources(reading: _Reading) -> Iterator[tuple[str, str]]:
    told = reading.members.get("resources") or {}
    if not isinstance(told, dict) or len(told) > MAX_RESOURCES:
        reading.refuse("resources", f"no object of at most {MAX_RESOURCES} quantities by name")
        return
    for name, value in told.items():
        found = parse_quantity(value if isinstance(value, str) else _number(value))
        if found is None or not _RESOURCE.fullmatch(name):
            reading.refuse("resources", "a member is no quantity of 0 or more")
        else:
            yield name, found.text


def _number(value: object) -> str:
    """Return the text of a bare number, which Kubernetes takes for a quantity too."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _whole_cpus(text: str) -> int:
    """Return a canonical quantity of CPUs, rounded up: a part of one cannot be kept apart."""
    found = parse_quantity(text)
    return found.value if found is not None else 0


def _system_qos(reading: _Reading) -> SystemQos:
    exclusive = reading.members.get("cpusetExclusive")
    if exclusive is not None and not isinstance(exclusive, bool):
        reading.refuse("cpusetExclusive", "neither true nor false; taken for true")
        exclusive = None
    return SystemQos(cpus=reading.cpus("cpuset"), exclusive=exclusive)
