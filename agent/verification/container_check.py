"""Compares an observed container with its expected devices, mounts, variables and limits. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.snapshot.allocation import VerificationStatus
from agent.snapshot.device import DeviceNode
from agent.snapshot.edits import ContainerEdits, DeviceNodeEdit, MountEdit, RlimitEdit
from agent.verification.observation import (
    ContainerObservation,
    DeviceRule,
    ObservedMount,
    ObservedNode,
)

DeviceNumbers = tuple[int, int]

CardNames = Mapping[DeviceNumbers, str]  # name of a device or slice, by the numbers of its node

MAX_DETAILS = 16  # told of one container

# several values in one: the granted one must be among them, beside the container's own
LIST_VARIABLES = frozenset(("LD_PRELOAD",))

# which every container has from its runtime or image: without any, the process cleaned its own
USUAL_VARIABLES = frozenset(("PATH", "HOSTNAME", "HOME", "KUBERNETES_SERVICE_HOST"))


class DeviceNodes(msgspec.Struct, frozen=True, kw_only=True):
    """A device, slice or function that a container may have, with its own device nodes."""

    name: str  # as in `Cards`
    nodes: tuple[DeviceNode, ...] = ()
    is_one_enough: bool = False  # one of the nodes is enough
    is_optional: bool = False  # the container need not have it


class _CheckFinding(msgspec.Struct, frozen=True):
    verdict: VerificationStatus  # of this one thing; VERIFIED ones are not told
    text: str = ""


class _Presence(enum.Enum):
    """How one thing stands."""

    PRESENT = enum.auto()
    ABSENT = enum.auto()
    DIFFERENT = enum.auto()  # something else is in its place
    UNKNOWN = enum.auto()


class VerificationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of one look; `details` name what is wrong or unseen, worst first."""

    verdict: VerificationStatus
    details: tuple[str, ...] = ()


def check_container(
    edits: ContainerEdits,
    devices: tuple[DeviceNodes, ...],
    cards: CardNames,
    evidence: ContainerObservation,
    problem: str = "",
) -> VerificationResult:
    """Compare a container with its devices and with the edits that brought them.

    `cards` are the nodes of all devices that another pod could be granted; `problem` says why the
    edits are not known. EXCESS weighs more than MISSING, since it harms another pod as well, and
    either weighs more than UNKNOWN.
    """
    if evidence.absence_reason:
        return VerificationResult(
            verdict=VerificationStatus.UNKNOWN, details=(evidence.absence_reason,)
        )
    found = [*_check_excess(devices, cards, evidence), *_check_devices(devices, edits, evidence)]
    found += [
        *_check_nodes(edits, evidence),
        *_check_variables(edits, evidence),
        *_check_mounts(edits, evidence),
    ]
    found += _check_limits(edits, evidence)
    if problem:
        found.append(_unknown_finding(f"what it should have cannot be told: {problem}"))
    details: list[str] = []
    verdict = VerificationStatus.VERIFIED
    for kind in (VerificationStatus.EXCESS, VerificationStatus.MISSING, VerificationStatus.UNKNOWN):
        texts = [finding.text for finding in found if finding.verdict is kind]
        details += texts
        if texts and verdict is VerificationStatus.VERIFIED:
            verdict = kind
    return VerificationResult(verdict=verdict, details=tuple(details[:MAX_DETAILS]))


def _missing_finding(text: str) -> _CheckFinding:
    return _CheckFinding(VerificationStatus.MISSING, text)


def _unknown_finding(text: str) -> _CheckFinding:
    return _CheckFinding(VerificationStatus.UNKNOWN, text)


def _check_devices(
    devices: tuple[DeviceNodes, ...], edits: ContainerEdits, evidence: ContainerObservation
) -> Iterator[_CheckFinding]:
    """Look for the nodes of each device, under any path; those of the edits have a path."""
    with_path = {(node.major, node.minor) for node in edits.nodes}
    for device in devices:
        if device.is_optional:
            continue
        if not device.nodes:
            yield _unknown_finding(f"no device node of {device.name} is known")
            continue
        own = {(node.major, node.minor): node for node in device.nodes}
        if device.is_one_enough and not with_path.isdisjoint(own):
            continue
        wrong = [
            tuple(_check_node_numbers(device.name, node, evidence))
            for numbers, node in own.items()
            if numbers not in with_path
        ]
        if device.is_one_enough and not all(wrong):
            continue
        yield from (finding for findings in wrong for finding in findings)


def _check_node_numbers(
    name: str, node: DeviceNode, evidence: ContainerObservation
) -> Iterator[_CheckFinding]:
    numbers = (node.major, node.minor)
    recorded = evidence.record is not None and _has_node(evidence.record.nodes, numbers)
    if evidence.nodes is None and not recorded:
        yield _unknown_finding(f"{name}: the container's /dev could not be looked into")
    elif evidence.nodes is not None and not _has_node(evidence.nodes, numbers):
        yield _missing_finding(f"{name} is not there: no node is c {node.major}:{node.minor}")
    # the record does not show which devices a maker's runtime allows
    elif evidence.rules is not None or recorded:
        yield from _check_access(name, numbers, "rw", evidence)


def _has_node(nodes: tuple[ObservedNode, ...], numbers: DeviceNumbers) -> bool:
    return any(node.kind == "c" and (node.major, node.minor) == numbers for node in nodes)


def _device_rules(evidence: ContainerObservation) -> tuple[DeviceRule, ...] | None:
    """Return the kernel's rules, else those of the runtime's record."""
    if evidence.rules is None and evidence.record is not None:
        return evidence.record.rules
    return evidence.rules


def is_privileged(evidence: ContainerObservation) -> bool:
    """Return whether a container may open every device, as a privileged container may."""
    rules = _device_rules(evidence)
    return rules is not None and allows_every_device(rules)


def _check_access(
    name: str, numbers: DeviceNumbers, permissions: str, evidence: ContainerObservation
) -> Iterator[_CheckFinding]:
    rules = _device_rules(evidence)
    if rules is None:
        yield _unknown_finding(f"nobody could read whether {name} may be opened")
    elif lacking := set(permissions) - allowed_access(rules, *numbers):
        yield _missing_finding(f"{name}: the device cgroup denies {''.join(sorted(lacking))}")
    elif evidence.rules is None and numbers in evidence.denied_after_reload:
        link = f"/dev/char/{numbers[0]}:{numbers[1]}"
        yield _unknown_finding(
            f"{name}: systemd was reloaded since, without {link} it denies the device"
        )


def _check_nodes(edits: ContainerEdits, evidence: ContainerObservation) -> Iterator[_CheckFinding]:
    for node in edits.nodes:
        wrong = tuple(_check_node_path(node, evidence))
        yield from wrong
        if any(finding.verdict is VerificationStatus.MISSING for finding in wrong):
            continue  # said once: nothing of it is right
        yield from _check_access(node.path, (node.major, node.minor), node.permissions, evidence)


def _check_node_path(
    node: DeviceNodeEdit, evidence: ContainerObservation
) -> Iterator[_CheckFinding]:
    wanted = ObservedNode(node.path, "c", node.major, node.minor)
    seen = evidence.nodes
    if seen is None:
        if evidence.record is None:
            yield _unknown_finding(f"{node.path}: the container's /dev could not be looked into")
            return
        seen = evidence.record.nodes
    at = [one for one in seen if one.path == node.path]
    if not at:
        yield _missing_finding(f"{node.path} is not there")
    elif wanted not in at:
        numbers = f"{at[-1].kind} {at[-1].major}:{at[-1].minor}"
        yield _missing_finding(f"{node.path} is {numbers}, not c {node.major}:{node.minor}")


def _check_variables(
    edits: ContainerEdits, evidence: ContainerObservation
) -> Iterator[_CheckFinding]:
    """Compare variables; no value is told, for one that is not ours may be a secret.

    A process may have changed what it was started with: where it differs, the runtime's record
    decides.
    """
    own = None if evidence.env is None else dict(evidence.env)
    told = None if evidence.record is None else dict(evidence.record.env)
    for name, value in edits.env:
        sights = [_compare_variable(name, value, env) for env in (own, told)]
        if _Presence.PRESENT in sights:
            continue
        if told is None and (own is None or not USUAL_VARIABLES & own.keys()):
            yield _unknown_finding(
                f"{name}: the process's environment is not readable, or was cleaned"
            )
        elif _Presence.DIFFERENT in sights:
            yield _missing_finding(f"the variable {name} has another value")
        else:
            yield _missing_finding(f"the variable {name} is not set")


def _compare_variable(name: str, value: str, env: Mapping[str, str] | None) -> _Presence:
    if env is None:
        return _Presence.UNKNOWN
    if name not in env:
        return _Presence.ABSENT
    if name in LIST_VARIABLES:
        wanted, found = (text.replace(":", " ").split() for text in (value, env[name]))
        return _Presence.PRESENT if set(wanted) <= set(found) else _Presence.DIFFERENT
    return _Presence.PRESENT if env[name] == value else _Presence.DIFFERENT


def _check_mounts(edits: ContainerEdits, evidence: ContainerObservation) -> Iterator[_CheckFinding]:
    top = {mount.path: mount for mount in evidence.mounts or ()}  # the latest of each path
    for mount in edits.mounts:
        sight = _compare_mount(mount, evidence, top)
        if sight is _Presence.ABSENT:
            yield _missing_finding(f"{mount.path} is not mounted")
        elif sight is _Presence.DIFFERENT:
            yield _missing_finding(f"what is mounted at {mount.path} is not {mount.host_path}")
        elif sight is _Presence.UNKNOWN:
            yield _unknown_finding(f"{mount.path}: its mount could not be compared")


def _compare_mount(
    mount: MountEdit, evidence: ContainerObservation, top: Mapping[str, ObservedMount]
) -> _Presence:
    """Compare one mount: by the kernel's table, else by the runtime's record."""
    told = None if evidence.record is None else dict(evidence.record.mounts)
    if evidence.mounts is not None:
        found, origins = top.get(mount.path), evidence.origins.get(mount.host_path)
        if found is None:
            return _Presence.ABSENT
        if origins is not None:
            return _Presence.PRESENT if found.origin in origins else _Presence.DIFFERENT
    if told is None:
        return _Presence.UNKNOWN
    if mount.path not in told:
        return _Presence.ABSENT
    return _Presence.PRESENT if told[mount.path] == mount.host_path else _Presence.DIFFERENT


def _check_limits(edits: ContainerEdits, evidence: ContainerObservation) -> Iterator[_CheckFinding]:
    """Compare limits: those the process has now, or, where it lowered them, those it was given."""
    now = {limit.name: limit for limit in evidence.limits or ()}
    told = {limit.name: limit for limit in (evidence.record.limits if evidence.record else ())}
    for edit in edits.rlimits:
        known = [table[edit.name] for table in (now, told) if edit.name in table]
        if any(_reaches(edit, limit.soft, limit.hard) for limit in known):
            continue
        if known or evidence.record is not None:
            yield _missing_finding(f"the limit {edit.name} is lower")
        else:
            yield _unknown_finding(f"the limit {edit.name} could not be read")


def _reaches(edit: RlimitEdit, soft: int, hard: int) -> bool:
    return soft >= edit.soft and hard >= edit.hard


def _check_excess(
    devices: tuple[DeviceNodes, ...], cards: CardNames, evidence: ContainerObservation
) -> Iterator[_CheckFinding]:
    """Find devices of others: their nodes in the container, and rules that let them be opened."""
    rules = _device_rules(evidence)
    own = {device.name for device in devices}
    strangers = {numbers: name for numbers, name in cards.items() if name not in own}
    seen = evidence.nodes
    if seen is None:
        seen = () if evidence.record is None else evidence.record.nodes
    told: set[str] = set()
    for node in seen:
        name = strangers.get((node.major, node.minor))
        if node.kind == "c" and name is not None:
            told.add(name)
            shut = rules is not None and "r" not in allowed_access(rules, node.major, node.minor)
            more = ", though the device cgroup keeps it shut" if shut else ""
            yield _CheckFinding(
                VerificationStatus.EXCESS, f"{node.path} shows {name}, which was not granted{more}"
            )
    if rules is None or allows_every_device(rules):
        return  # a privileged container may open all there is: what it shows is told above
    for (major, minor), name in sorted(strangers.items()):
        if name not in told and "r" in allowed_access(rules, major, minor):
            yield _CheckFinding(
                VerificationStatus.EXCESS, f"{name} may be opened, which was not granted"
            )


def allowed_access(
    rules: Iterable[DeviceRule], major: int, minor: int, kind: str = "c"
) -> frozenset[str]:
    """Return what of r, w and m is allowed on one device; later rules win over earlier ones."""
    may: set[str] = set()
    for rule in rules:
        if rule.kind not in ("a", kind):
            continue
        if rule.major not in (None, major) or rule.minor not in (None, minor):
            continue
        if rule.is_allowed:
            may.update(rule.access)
        else:
            may.difference_update(rule.access)
    return frozenset(may)


def allows_every_device(rules: Iterable[DeviceRule]) -> bool:
    """Say whether the rules let every device be opened, as those of a privileged container do."""
    return "r" in allowed_access(
        (rule for rule in rules if rule.major is rule.minor is None), -1, -1
    )
