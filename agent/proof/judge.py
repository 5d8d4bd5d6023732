"""What was granted against what was found. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

import msgspec

from agent.model.device import DeviceNode
from agent.model.grant.edits import ContainerEdits, MountEdit, NodeEdit, RlimitEdit
from agent.model.grant.proof import Verdict
from agent.proof.evidence import Evidence, MountFound, NodeFound, Rule
from agent.proof.rules import allowed, everything

Numbers = tuple[int, int]
Cards = Mapping[Numbers, str]  # name of a device or slice, by the numbers of its node

MAX_DETAILS = 16  # told of one container
# several values in one: the granted one must be among them, beside the container's own
LISTS = frozenset(("LD_PRELOAD",))
# which every container has from its runtime or image: without any, the process cleaned its own
USUAL = frozenset(("PATH", "HOSTNAME", "HOME", "KUBERNETES_SERVICE_HOST"))


class DeviceNodes(msgspec.Struct, frozen=True, kw_only=True):
    """A device, slice or function that a container may have, with its own device nodes."""

    name: str  # as in `Cards`
    nodes: tuple[DeviceNode, ...] = ()
    one_of: bool = False  # one of the nodes is enough
    optional: bool = False  # the container need not have it


class _Finding(msgspec.Struct, frozen=True):
    verdict: Verdict  # of this one thing; VERIFIED ones are not told
    text: str = ""


class _Sight(enum.Enum):
    """How one thing stands."""

    THERE = enum.auto()
    ABSENT = enum.auto()
    OTHER = enum.auto()  # something else is in its place
    UNSEEN = enum.auto()


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of one look; `details` name what is wrong or unseen, worst first."""

    verdict: Verdict
    details: tuple[str, ...] = ()


def judge(
    edits: ContainerEdits,
    devices: tuple[DeviceNodes, ...],
    cards: Cards,
    evidence: Evidence,
    problem: str = "",
) -> Judgement:
    """Compare a container with its devices and with the edits that brought them.

    `cards` are the nodes of all devices that another pod could be granted; `problem` says why the
    edits are not known. EXCESS weighs more than MISSING, since it harms another pod as well, and
    either weighs more than UNKNOWN.
    """
    if evidence.absent:
        return Judgement(verdict=Verdict.UNKNOWN, details=(evidence.absent,))
    found = [*_excess(devices, cards, evidence), *_devices(devices, edits, evidence)]
    found += [*_nodes(edits, evidence), *_env(edits, evidence), *_mounts(edits, evidence)]
    found += _limits(edits, evidence)
    if problem:
        found.append(_unknown(f"what it should have cannot be told: {problem}"))
    details: list[str] = []
    verdict = Verdict.VERIFIED
    for kind in (Verdict.EXCESS, Verdict.MISSING, Verdict.UNKNOWN):
        texts = [finding.text for finding in found if finding.verdict is kind]
        details += texts
        if texts and verdict is Verdict.VERIFIED:
            verdict = kind
    return Judgement(verdict=verdict, details=tuple(details[:MAX_DETAILS]))


def _missing(text: str) -> _Finding:
    return _Finding(Verdict.MISSING, text)


def _unknown(text: str) -> _Finding:
    return _Finding(Verdict.UNKNOWN, text)


def _devices(
    devices: tuple[DeviceNodes, ...], edits: ContainerEdits, evidence: Evidence
) -> Iterator[_Finding]:
    """Look for the nodes of each device, under any path; those of the edits have a path."""
    with_path = {(node.major, node.minor) for node in edits.nodes}
    for device in devices:
        if device.optional:
            continue
        if not device.nodes:
            yield _unknown(f"no device node of {device.name} is known")
            continue
        own = {(node.major, node.minor): node for node in device.nodes}
        if device.one_of and not with_path.isdisjoint(own):
            continue
        wrong = [
            tuple(_by_numbers(device.name, node, evidence))
            for numbers, node in own.items()
            if numbers not in with_path
        ]
        if device.one_of and not all(wrong):
            continue
        yield from (finding for findings in wrong for finding in findings)


def _by_numbers(name: str, node: DeviceNode, evidence: Evidence) -> Iterator[_Finding]:
    numbers = (node.major, node.minor)
    recorded = evidence.record is not None and _has(evidence.record.nodes, numbers)
    if evidence.nodes is None and not recorded:
        yield _unknown(f"{name}: the container's /dev could not be looked into")
    elif evidence.nodes is not None and not _has(evidence.nodes, numbers):
        yield _missing(f"{name} is not there: no node is c {node.major}:{node.minor}")
    # the record does not show which devices a maker's runtime allows
    elif evidence.rules is not None or recorded:
        yield from _opening(name, numbers, "rw", evidence)


def _has(nodes: tuple[NodeFound, ...], numbers: Numbers) -> bool:
    return any(node.kind == "c" and (node.major, node.minor) == numbers for node in nodes)


def _rules(evidence: Evidence) -> tuple[Rule, ...] | None:
    """Return the kernel's rules, else those of the runtime's record."""
    if evidence.rules is None and evidence.record is not None:
        return evidence.record.rules
    return evidence.rules


def is_privileged(evidence: Evidence) -> bool:
    """Return whether a container may open every device, as a privileged container may."""
    rules = _rules(evidence)
    return rules is not None and everything(rules)


def _opening(
    name: str, numbers: Numbers, permissions: str, evidence: Evidence
) -> Iterator[_Finding]:
    rules = _rules(evidence)
    if rules is None:
        yield _unknown(f"nobody could read whether {name} may be opened")
    elif lacking := set(permissions) - allowed(rules, *numbers):
        yield _missing(f"{name}: the device cgroup denies {''.join(sorted(lacking))}")
    elif evidence.rules is None and numbers in evidence.reloaded:
        link = f"/dev/char/{numbers[0]}:{numbers[1]}"
        yield _unknown(f"{name}: systemd was reloaded since, without {link} it denies the device")


def _nodes(edits: ContainerEdits, evidence: Evidence) -> Iterator[_Finding]:
    for node in edits.nodes:
        wrong = tuple(_node(node, evidence))
        yield from wrong
        if any(finding.verdict is Verdict.MISSING for finding in wrong):
            continue  # said once: nothing of it is right
        yield from _opening(node.path, (node.major, node.minor), node.permissions, evidence)


def _node(node: NodeEdit, evidence: Evidence) -> Iterator[_Finding]:
    wanted = NodeFound(node.path, "c", node.major, node.minor)
    seen = evidence.nodes
    if seen is None:
        if evidence.record is None:
            yield _unknown(f"{node.path}: the container's /dev could not be looked into")
            return
        seen = evidence.record.nodes
    at = [one for one in seen if one.path == node.path]
    if not at:
        yield _missing(f"{node.path} is not there")
    elif wanted not in at:
        numbers = f"{at[-1].kind} {at[-1].major}:{at[-1].minor}"
        yield _missing(f"{node.path} is {numbers}, not c {node.major}:{node.minor}")


def _env(edits: ContainerEdits, evidence: Evidence) -> Iterator[_Finding]:
    """Compare variables; no value is told, for one that is not ours may be a secret.

    A process may have changed what it was started with: where it differs, the runtime's record
    decides.
    """
    own = None if evidence.env is None else dict(evidence.env)
    told = None if evidence.record is None else dict(evidence.record.env)
    for name, value in edits.env:
        sights = [_variable(name, value, env) for env in (own, told)]
        if _Sight.THERE in sights:
            continue
        if told is None and (own is None or not USUAL & own.keys()):
            yield _unknown(f"{name}: the process's environment is not readable, or was cleaned")
        elif _Sight.OTHER in sights:
            yield _missing(f"the variable {name} has another value")
        else:
            yield _missing(f"the variable {name} is not set")


def _variable(name: str, value: str, env: Mapping[str, str] | None) -> _Sight:
    if env is None:
        return _Sight.UNSEEN
    if name not in env:
        return _Sight.ABSENT
    if name in LISTS:
        wanted, found = (text.replace(":", " ").split() for text in (value, env[name]))
        return _Sight.THERE if set(wanted) <= set(found) else _Sight.OTHER
    return _Sight.THERE if env[name] == value else _Sight.OTHER


def _mounts(edits: ContainerEdits, evidence: Evidence) -> Iterator[_Finding]:
    top = {mount.path: mount for mount in evidence.mounts or ()}  # the latest of each path
    for mount in edits.mounts:
        sight = _mounted(mount, evidence, top)
        if sight is _Sight.ABSENT:
            yield _missing(f"{mount.path} is not mounted")
        elif sight is _Sight.OTHER:
            yield _missing(f"what is mounted at {mount.path} is not {mount.host_path}")
        elif sight is _Sight.UNSEEN:
            yield _unknown(f"{mount.path}: its mount could not be compared")


def _mounted(mount: MountEdit, evidence: Evidence, top: Mapping[str, MountFound]) -> _Sight:
    """Compare one mount: by the kernel's table, else by the runtime's record."""
    told = None if evidence.record is None else dict(evidence.record.mounts)
    if evidence.mounts is not None:
        found, origins = top.get(mount.path), evidence.origins.get(mount.host_path)
        if found is None:
            return _Sight.ABSENT
        if origins is not None:
            return _Sight.THERE if found.origin in origins else _Sight.OTHER
    if told is None:
        return _Sight.UNSEEN
    if mount.path not in told:
        return _Sight.ABSENT
    return _Sight.THERE if told[mount.path] == mount.host_path else _Sight.OTHER


def _limits(edits: ContainerEdits, evidence: Evidence) -> Iterator[_Finding]:
    """Compare limits: those the process has now, or, where it lowered them, those it was given."""
    now = {limit.name: limit for limit in evidence.limits or ()}
    told = {limit.name: limit for limit in (evidence.record.limits if evidence.record else ())}
    for edit in edits.rlimits:
        known = [table[edit.name] for table in (now, told) if edit.name in table]
        if any(_reaches(edit, limit.soft, limit.hard) for limit in known):
            continue
        if known or evidence.record is not None:
            yield _missing(f"the limit {edit.name} is lower")
        else:
            yield _unknown(f"the limit {edit.name} could not be read")


def _reaches(edit: RlimitEdit, soft: int, hard: int) -> bool:
    return soft >= edit.soft and hard >= edit.hard


def _excess(
    devices: tuple[DeviceNodes, ...], cards: Cards, evidence: Evidence
) -> Iterator[_Finding]:
    """Find devices of others: their nodes in the container, and rules that let them be opened."""
    rules = _rules(evidence)
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
            shut = rules is not None and "r" not in allowed(rules, node.major, node.minor)
            more = ", though the device cgroup keeps it shut" if shut else ""
            yield _Finding(Verdict.EXCESS, f"{node.path} shows {name}, which was not granted{more}")
    if rules is None or everything(rules):
        return  # a privileged container may open all there is: what it shows is told above
    for (major, minor), name in sorted(strangers.items()):
        if name not in told and "r" in allowed(rules, major, minor):
            yield _Finding(Verdict.EXCESS, f"{name} may be opened, which was not granted")
