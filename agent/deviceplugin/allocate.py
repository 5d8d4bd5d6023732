"""What an allocation gives: the devices a scheduler granted, else those the kubelet chose. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.cdi.way import AUTO, by_way
from agent.deviceplugin.accounts import Accounts
from agent.deviceplugin.base import EXCHANGE, UNSEEN, Allocated, NotAllocated, PodNotSeen
from agent.deviceplugin.match import Asker, askers
from agent.deviceplugin.units import Served, Unit, grant_of
from agent.grants.kept import Kept
from agent.model.device import Pairs, VendorDevice
from agent.model.grant.container import Container
from agent.model.grant.edits import ContainerEdits, Note
from agent.model.grant.granted import Grant
from agent.model.grant.host import HostMeans
from agent.model.grant.refusal import GrantRefused, Refusal
from agent.model.snapshot import NodeSnapshot

Edits = Callable[[Sequence[VendorDevice], Grant, Container, HostMeans], ContainerEdits]

AMBIGUOUS = "AmbiguousPod"
UNKNOWN = "UnknownDevice"
EXCHANGED = "DeviceExchanged"
TOO_MANY = "TooManyReplicas"
CDI_ANNOTATION = "cdi.k8s.io/xpu-agent_"  # read by runtimes below kubelets that know no CDI names
MAX_ANNOTATION = 63  # characters behind the slash
_ODD = re.compile(r"[^A-Za-z0-9._-]")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One container's request, and by which way devices get into containers."""

    ids: tuple[str, ...]
    injection: str = "auto"  # auto, cdi, nodes, env
    single: bool = False  # no more than one replica
    last: bool = False  # there is no new try with a newer snapshot


def allocate(
    request: Request,
    one: Served,
    offered: Mapping[str, Served],
    snapshot: NodeSnapshot,
    edits: Edits,
    kept: Kept | None = None,
) -> Allocated:
    """Return what the container gets; raise `NotAllocated` or `GrantRefused`.

    The grant of the one pod that can be meant wins over the kubelet's choice. Where several can,
    what all of them get alike is given while the runtime's plug-in gives the rest to each pod by
    its uid; without it nothing is guessed. A pod without a grant that is sent a device in use gets
    one that the kubelet holds for used and that nobody has; `offered` are all resources.
    `PodNotSeen` is worth a new try with a newer snapshot. `kept` saves time and changes nothing.
    """
    units = _units(request, one)
    giving = _Giving(request, one, snapshot, edits)
    found = askers(one.name, len(request.ids), one.devices, snapshot, kept)
    if not found:
        _unseen(request, one, snapshot)
    elif any(asker.granted for asker in found):
        return _granted(found, one, snapshot, giving, last=request.last)
    uids = [asker.pod.uid for asker in found]
    exchange = Accounts(one, offered, snapshot, request.ids, uids).exchange(units)
    if exchange is None:
        text = f"of {', '.join(request.ids)[:200]} a device is in use by a pod that was granted "
        text += "it, or got it in exchange, and no other is free"
        raise _refused(Refusal.DEVICE_TAKEN.value, text, last=request.last)
    given = [one.units[exchange[unit.id]] for unit in units]
    answer = giving.answer(giving.edits(grant_of(given)), uids[0] if len(uids) == 1 else "")
    pairs = tuple(sorted((name, other) for name, other in exchange.items() if name != other))
    return _with_exchange(answer, one, found, pairs) if pairs else answer


def _with_exchange(
    answer: Allocated, one: Served, found: Sequence[Asker], pairs: Pairs
) -> Allocated:
    """Return the answer with what it exchanges, for the kubelet to keep and for people to read."""
    names = ", ".join(f"{asker.pod.namespace}/{asker.pod.name}" for asker in found[:4])
    told = ", ".join(f"{other} in place of {name}" for name, other in pairs)
    text = f"{one.name}: {names or 'a pod'} was given {told}, which another pod has: the kubelet "
    text += "accounts the device that it chose"
    value = msgspec.json.encode(dict(pairs)).decode()
    return replace(
        answer,
        edits=replace(
            answer.edits, notes=(*answer.edits.notes, Note(reason=EXCHANGED, message=text))
        ),
        annotations=(*answer.annotations, (_annotation(EXCHANGE, one.name), value)),
        exchanges=pairs,
    )


def _annotation(prefix: str, resource: str) -> str:
    """Return a key of an annotation that no two resources of a container have in common."""
    domain, _, start = prefix.partition("/")
    return f"{domain}/{_ODD.sub('-', start + resource)[:MAX_ANNOTATION].rstrip('._-')}"


def _units(request: Request, one: Served) -> tuple[Unit, ...]:
    unknown = [name for name in request.ids if name not in one.units]
    if unknown:
        raise NotAllocated(UNKNOWN, f"{one.name} has no device {unknown[0][:80]!r}")
    units = tuple(one.units[name] for name in dict.fromkeys(request.ids))
    if request.single and len(units) > 1 and any(unit.replica is not None for unit in units):
        text = f"maximum request size for shared resources is 1; found {len(units)}"
        raise NotAllocated(TOO_MANY, text)
    return units


def _unseen(request: Request, one: Served, snapshot: NodeSnapshot) -> None:
    """Judge a request of a pod that nobody told of: without a cluster there are no others."""
    if not snapshot.cluster.clustered:
        return
    text = f"no pod that waits for {len(request.ids)} of {one.name} is known on this node"
    if not request.last:
        raise PodNotSeen(UNSEEN, text)
    if not snapshot.runtime.value.in_force:
        do = "let the agent reach the API server or the kubelet, or turn NRI on"
        raise NotAllocated(UNSEEN, f"{text}, and it may have been granted other devices: {do}")


def _refused(reason: str, text: str, *, last: bool) -> NotAllocated:
    """Return a refusal, for good if it is the last try: a pod that is refused never runs.

    A newer snapshot may know that who had a device has ended, or that another pod has begun.
    """
    return NotAllocated(reason, text) if last else PodNotSeen(reason, text)


def _granted(
    found: Sequence[Asker],
    one: Served,
    snapshot: NodeSnapshot,
    giving: _Giving,
    *,
    last: bool,
) -> Allocated:
    names = ", ".join(f"{asker.pod.namespace}/{asker.pod.name}" for asker in found[:4])
    if len(found) == 1:
        (asker,) = found
        if asker.refusal:
            raise _refused(asker.refusal, asker.message, last=last)
        return giving.answer(giving.edits(asker.grant, asker), asker.pod.uid)
    if all(asker.granted and not asker.refusal for asker in found):
        answers = [giving.edits(asker.grant, asker) for asker in found]
        alike = all(answer == answers[0] for answer in answers)
        if alike or snapshot.runtime.value.in_force:
            return giving.answer(common(answers), "")
    do = "turn NRI on, or let pods that ask for one resource start one after another"
    raise _refused(AMBIGUOUS, f"{one.name} may be asked for by each of {names}: {do}", last=last)


class _Giving:
    """Asks the vendor what a container gets by way of the kubelet."""

    def __init__(self, request: Request, one: Served, snapshot: NodeSnapshot, edits: Edits) -> None:
        self._one = one
        self._edits = edits
        self._in_force = snapshot.runtime.value.in_force
        means = snapshot.means.value.vendors.get(one.vendor)
        if means is None:
            text = f"what this host has for containers of {one.vendor} was not read yet"
            raise _refused(Refusal.HOST_NOT_READ_YET.value, text, last=request.last)
        self._injection = request.injection
        self._means = by_way(means, one.vendor, request.injection)

    def edits(self, grant: Grant, asker: Asker | None = None) -> ContainerEdits:
        """Return what a grant gives; limits of shares are the hooks' while these are in force."""
        container = Container()
        if asker is not None and not self._in_force:
            container = Container(
                name=asker.container,
                pod_uid=asker.pod.uid,
                labels=asker.pod.labels,
                annotations=asker.pod.annotations,
                host_network=asker.pod.host_network,
            )
        edits = self._edits(self._one.devices, grant, container, self._means)
        return self._with_names(edits, grant, container) if edits.nodes else edits

    def _with_names(
        self, edits: ContainerEdits, grant: Grant, container: Container
    ) -> ContainerEdits:
        """Add the vendor's CDI names to bare nodes, which bring no libraries of the driver.

        The kubelet does not say whether the runtime takes CDI names. One that does replaces the
        nodes of a name by those of its file; one that does not passes the names over.
        """
        if self._injection != AUTO:
            return edits
        try:
            by_name = self._edits(
                self._one.devices, grant, container, replace(self._means, cdi_enabled=True)
            )
        except GrantRefused:
            return edits
        return replace(edits, cdi=by_name.cdi, notes=by_name.notes) if by_name.cdi else edits

    def answer(self, edits: ContainerEdits, pod_uid: str) -> Allocated:
        """Return the answer, CDI names in both ways that there are: runtimes drop the second."""
        annotations: tuple[tuple[str, str], ...] = ()
        if edits.cdi:
            key = _annotation(CDI_ANNOTATION, self._one.name)
            annotations = ((key, ",".join(edits.cdi)),)
        return Allocated(edits=edits, annotations=annotations, pod_uid=pod_uid)


def common(answers: Sequence[ContainerEdits]) -> ContainerEdits:
    """Return what all answers have alike, in the order of the first."""
    first, *others = answers

    def alike(name: str) -> tuple[object, ...]:
        rest = [getattr(other, name) for other in others]
        return tuple(item for item in getattr(first, name) if all(item in one for one in rest))

    fields = {name: alike(name) for name in first.__struct_fields__}
    return replace(first, **fields)
