"""Compares an observed container with its expected devices, mounts, variables and limits. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.snapshot.allocation import VerificationCause, VerificationStatus
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

MAX_DETAILS = 16  # reported for one container

# lists of values: the injected values must be among those of the container
LIST_VARIABLES = frozenset(("LD_PRELOAD",))

# every container has these from its runtime or image; without any, the process cleared its own
USUAL_VARIABLES = frozenset(("PATH", "HOSTNAME", "HOME", "KUBERNETES_SERVICE_HOST"))


class DeviceNodes(msgspec.Struct, frozen=True, kw_only=True):
    """A device, slice or function that a container may use, with its own device nodes."""

    name: str  # as in `CardNames`
    nodes: tuple[DeviceNode, ...] = ()
    is_one_enough: bool = False  # one of the nodes is enough
    is_optional: bool = False  # the container may have it or not


class _CheckFinding(msgspec.Struct, frozen=True):
    verdict: VerificationStatus  # of this one item; VERIFIED items are not reported
    text: str = ""
    cause: VerificationCause | None = None


class _Presence(enum.Enum):
    """How one expected item compares with the container."""

    PRESENT = enum.auto()
    ABSENT = enum.auto()
    DIFFERENT = enum.auto()  # another item is in its place
    UNKNOWN = enum.auto()


class VerificationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of one check; `details` name what is wrong or unreadable, worst first."""

    verdict: VerificationStatus
    details: tuple[str, ...] = ()
    causes: tuple[VerificationCause, ...] = ()


def check_container(
    edits: ContainerEdits,
    devices: tuple[DeviceNodes, ...],
    cards: CardNames,
    observation: ContainerObservation,
    problem: str = "",
) -> VerificationResult:
    """Compare a container with its devices and with the edits that inject them.

    `cards` are the nodes of all devices that can be allocated to another pod. `problem` says why
    the edits are unknown. EXCESS outranks MISSING, because it harms another pod as well; both
    outrank UNKNOWN.
    """
    if observation.absence_reason:
        return VerificationResult(
            verdict=VerificationStatus.UNKNOWN, details=(observation.absence_reason,)
        )
    findings = [
        *_check_excess(devices, cards, observation),
        *_check_devices(devices, edits, observation),
    ]
    findings += [
        *_check_nodes(edits, observation),
        *_check_variables(edits, observation),
        *_check_mounts(edits, observation),
    ]
    findings += _check_limits(edits, observation)
    if problem:
        findings.append(_unknown_finding(f"what it should have cannot be told: {problem}"))
    details: list[str] = []
    verdict = VerificationStatus.VERIFIED
    for kind in (VerificationStatus.EXCESS, VerificationStatus.MISSING, VerificationStatus.UNKNOWN):
        texts = [finding.text for finding in findings if finding.verdict is kind]
        details += texts
        if texts and verdict is VerificationStatus.VERIFIED:
            verdict = kind
    causes = dict.fromkeys(finding.cause for finding in findings if finding.cause is not None)
    return VerificationResult(
        verdict=verdict, details=tuple(details[:MAX_DETAILS]), causes=tuple(causes)
    )


def _missing_finding(text: str, cause: VerificationCause | None = None) -> _CheckFinding:
    return _CheckFinding(VerificationStatus.MISSING, text, cause)


def _unknown_finding(text: str, cause: VerificationCause | None = None) -> _CheckFinding:
    return _CheckFinding(VerificationStatus.UNKNOWN, text, cause)


def _check_devices(
    devices: tuple[DeviceNodes, ...], edits: ContainerEdits, observation: ContainerObservation
) -> Iterator[_CheckFinding]:
    """Check for the nodes of each device under any path; nodes of the edits have a fixed path."""
    with_path = {(node.major, node.minor) for node in edits.nodes}
    for device in devices:
        if device.is_optional:
            continue
        if not device.nodes:
            yield _unknown_finding(f"no device node of {device.name} is known")
            continue
        own_nodes = {(node.major, node.minor): node for node in device.nodes}
        if device.is_one_enough and not with_path.isdisjoint(own_nodes):
            continue
        findings_by_node = [
            tuple(_check_node_numbers(device.name, node, observation))
            for numbers, node in own_nodes.items()
            if numbers not in with_path
        ]
        if device.is_one_enough and not all(findings_by_node):
            continue
        yield from (finding for findings in findings_by_node for finding in findings)


def _check_node_numbers(
    name: str, node: DeviceNode, observation: ContainerObservation
) -> Iterator[_CheckFinding]:
    numbers = (node.major, node.minor)
    recorded = observation.record is not None and _has_node(observation.record.nodes, numbers)
    if observation.nodes is None and not recorded:
        yield _unknown_finding(f"{name}: the container's /dev could not be looked into")
    elif observation.nodes is not None and not _has_node(observation.nodes, numbers):
        yield _missing_finding(f"{name} is not there: no node is c {node.major}:{node.minor}")
    # the record does not show which devices a vendor's runtime allows
    elif observation.rules is not None or recorded:
        yield from _check_access(name, numbers, "rw", observation)


def _has_node(nodes: tuple[ObservedNode, ...], numbers: DeviceNumbers) -> bool:
    return any(node.kind == "c" and (node.major, node.minor) == numbers for node in nodes)


def _device_rules(observation: ContainerObservation) -> tuple[DeviceRule, ...] | None:
    """Return the kernel's rules, else those of the runtime's record."""
    if observation.rules is None and observation.record is not None:
        return observation.record.rules
    return observation.rules


def is_privileged(observation: ContainerObservation) -> bool:
    """Return whether a container may open every device, as a privileged container may."""
    rules = _device_rules(observation)
    return rules is not None and allows_every_device(rules)


def _check_access(
    name: str, numbers: DeviceNumbers, permissions: str, observation: ContainerObservation
) -> Iterator[_CheckFinding]:
    rules = _device_rules(observation)
    if rules is None:
        yield _unknown_finding(f"nobody could read whether {name} may be opened")
    elif denied := set(permissions) - allowed_access(rules, *numbers):
        yield _missing_finding(
            f"{name}: the device cgroup denies {''.join(sorted(denied))}",
            VerificationCause.DEVICE_DENIED,
        )
    elif observation.rules is None and numbers in observation.denied_after_reload:
        link = f"/dev/char/{numbers[0]}:{numbers[1]}"
        yield _unknown_finding(
            f"{name}: systemd was reloaded since, without {link} it denies the device",
            VerificationCause.SYSTEMD_RELOADED,
        )


def _check_nodes(
    edits: ContainerEdits, observation: ContainerObservation
) -> Iterator[_CheckFinding]:
    for node in edits.nodes:
        findings = tuple(_check_node_path(node, observation))
        yield from findings
        if any(finding.verdict is VerificationStatus.MISSING for finding in findings):
            continue  # one finding for a node is enough
        yield from _check_access(node.path, (node.major, node.minor), node.permissions, observation)


def _check_node_path(
    node: DeviceNodeEdit, observation: ContainerObservation
) -> Iterator[_CheckFinding]:
    expected = ObservedNode(node.path, "c", node.major, node.minor)
    nodes = observation.nodes
    if nodes is None:
        if observation.record is None:
            yield _unknown_finding(f"{node.path}: the container's /dev could not be looked into")
            return
        nodes = observation.record.nodes
    same_path = [one for one in nodes if one.path == node.path]
    if not same_path:
        yield _missing_finding(f"{node.path} is not there")
    elif expected not in same_path:
        numbers = f"{same_path[-1].kind} {same_path[-1].major}:{same_path[-1].minor}"
        yield _missing_finding(f"{node.path} is {numbers}, not c {node.major}:{node.minor}")


def _check_variables(
    edits: ContainerEdits, observation: ContainerObservation
) -> Iterator[_CheckFinding]:
    """Compare variables. No value is reported, because another writer's value may be a secret.

    A process may change its environment after its start: if it differs, the runtime's record
    decides.
    """
    process_env = None if observation.env is None else dict(observation.env)
    recorded_env = None if observation.record is None else dict(observation.record.env)
    for name, value in edits.env:
        presences = [_compare_variable(name, value, env) for env in (process_env, recorded_env)]
        if _Presence.PRESENT in presences:
            continue
        if recorded_env is None and (
            process_env is None or not USUAL_VARIABLES & process_env.keys()
        ):
            yield _unknown_finding(
                f"{name}: the process's environment is not readable, or was cleaned"
            )
        elif _Presence.DIFFERENT in presences:
            yield _missing_finding(f"the variable {name} has another value")
        else:
            yield _missing_finding(f"the variable {name} is not set")


def _compare_variable(name: str, value: str, env: Mapping[str, str] | None) -> _Presence:
    if env is None:
        return _Presence.UNKNOWN
    if name not in env:
        return _Presence.ABSENT
    if name in LIST_VARIABLES:
        expected, actual = (text.replace(":", " ").split() for text in (value, env[name]))
        return _Presence.PRESENT if set(expected) <= set(actual) else _Presence.DIFFERENT
    return _Presence.PRESENT if env[name] == value else _Presence.DIFFERENT


def _check_mounts(
    edits: ContainerEdits, observation: ContainerObservation
) -> Iterator[_CheckFinding]:
    mounts = {mount.path: mount for mount in observation.mounts or ()}  # the latest of each path
    for mount in edits.mounts:
        presence = _compare_mount(mount, observation, mounts)
        if presence is _Presence.ABSENT:
            yield _missing_finding(f"{mount.path} is not mounted")
        elif presence is _Presence.DIFFERENT:
            yield _missing_finding(f"what is mounted at {mount.path} is not {mount.host_path}")
        elif presence is _Presence.UNKNOWN:
            yield _unknown_finding(f"{mount.path}: its mount could not be compared")


def _compare_mount(
    mount: MountEdit, observation: ContainerObservation, mounts: Mapping[str, ObservedMount]
) -> _Presence:
    """Compare one mount with the kernel's table, else with the runtime's record."""
    recorded = None if observation.record is None else dict(observation.record.mounts)
    if observation.mounts is not None:
        observed, origins = mounts.get(mount.path), observation.origins.get(mount.host_path)
        if observed is None:
            return _Presence.ABSENT
        if origins is not None:
            return _Presence.PRESENT if observed.origin in origins else _Presence.DIFFERENT
    if recorded is None:
        return _Presence.UNKNOWN
    if mount.path not in recorded:
        return _Presence.ABSENT
    return _Presence.PRESENT if recorded[mount.path] == mount.host_path else _Presence.DIFFERENT


def _check_limits(
    edits: ContainerEdits, observation: ContainerObservation
) -> Iterator[_CheckFinding]:
    """Compare the limits of the process now, or, if it lowered them, those of the record."""
    current = {limit.name: limit for limit in observation.limits or ()}
    recorded = {
        limit.name: limit for limit in (observation.record.limits if observation.record else ())
    }
    for edit in edits.rlimits:
        limits = [table[edit.name] for table in (current, recorded) if edit.name in table]
        if any(_reaches(edit, limit.soft, limit.hard) for limit in limits):
            continue
        if limits or observation.record is not None:
            yield _missing_finding(f"the limit {edit.name} is lower")
        else:
            yield _unknown_finding(f"the limit {edit.name} could not be read")


def _reaches(edit: RlimitEdit, soft: int, hard: int) -> bool:
    return soft >= edit.soft and hard >= edit.hard


def _check_excess(
    devices: tuple[DeviceNodes, ...], cards: CardNames, observation: ContainerObservation
) -> Iterator[_CheckFinding]:
    """Find devices of other pods: nodes in the container, and rules that allow access."""
    rules = _device_rules(observation)
    own = {device.name for device in devices}
    others = {numbers: name for numbers, name in cards.items() if name not in own}
    nodes = observation.nodes
    if nodes is None:
        nodes = () if observation.record is None else observation.record.nodes
    reported: set[str] = set()
    for node in nodes:
        name = others.get((node.major, node.minor))
        if node.kind == "c" and name is not None:
            reported.add(name)
            is_denied = rules is not None and "r" not in allowed_access(
                rules, node.major, node.minor
            )
            suffix = ", though the device cgroup keeps it shut" if is_denied else ""
            yield _CheckFinding(
                VerificationStatus.EXCESS,
                f"{node.path} shows {name}, which was not granted{suffix}",
            )
    if rules is None or allows_every_device(rules):
        return  # privileged: of all devices that it may open, only visible nodes are reported
    for (major, minor), name in sorted(others.items()):
        if name not in reported and "r" in allowed_access(rules, major, minor):
            yield _CheckFinding(
                VerificationStatus.EXCESS, f"{name} may be opened, which was not granted"
            )


def allowed_access(
    rules: Iterable[DeviceRule], major: int, minor: int, kind: str = "c"
) -> frozenset[str]:
    """Return which of r, w and m are allowed on one device; later rules override earlier ones."""
    access: set[str] = set()
    for rule in rules:
        if rule.kind not in ("a", kind):
            continue
        if rule.major not in (None, major) or rule.minor not in (None, minor):
            continue
        if rule.is_allowed:
            access.update(rule.access)
        else:
            access.difference_update(rule.access)
    return frozenset(access)


def allows_every_device(rules: Iterable[DeviceRule]) -> bool:
    """Return whether the rules allow every device, as those of a privileged container do."""
    return "r" in allowed_access(
        (rule for rule in rules if rule.major is rule.minor is None), -1, -1
    )
