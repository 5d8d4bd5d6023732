"""Devices of a grant, and what becomes of containers that ask for devices without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from agent.config.containers import HookSettings
from agent.grants.check import NOT_LISTED, grant_of
from agent.grants.claims import claim_text
from agent.grants.kept import Kept
from agent.grants.remember import Remembered
from agent.hooks.variables import obeyed
from agent.model.device import VendorDevice
from agent.model.grant.checked import PodGrant
from agent.model.grant.container import Container
from agent.model.grant.edits import ContainerEdits
from agent.model.grant.granted import Grant, GrantedDevice, matches
from agent.model.grant.host import HostMeans
from agent.model.grant.merge import merged
from agent.model.grant.owners import devices_by_vendor
from agent.model.grant.refusal import GrantRefused, Refusal
from agent.model.pod import PodView
from agent.model.runtime.adjustment import NOTHING, Adjustment
from agent.model.runtime.request import HookRequest, Stage
from agent.model.runtime.seen import SandboxSeen
from agent.model.snapshot import NodeSnapshot
from agent.probe.base import DeviceVendor

UNGRANTED = "ungranted"  # the vendors' key of what `hooks.ungranted` says
_NO_GRANT = Grant()


class _Stock(msgspec.Struct, frozen=True):
    """A vendor with its devices, and what the host has of it: `None` while nobody has looked."""

    name: str
    vendor: DeviceVendor
    devices: tuple[VendorDevice, ...]
    host: HostMeans | None
    numbers: frozenset[tuple[int, int]]  # of the vendor's nodes on this host


class DevicesHook:
    """Every container of a pod gets all that the pod was granted, init and sidecar ones too.

    The annotation does not tell a pod's containers apart. A container that cannot have its grant
    is not started: one that runs without its card, or with another, is worse.
    """

    name = "devices"
    stages = frozenset({Stage.CREATE})
    required = True

    def __init__(
        self, vendors: Mapping[str, DeviceVendor], hooks: HookSettings, own_uid: str = ""
    ) -> None:
        """`own_uid` is of the agent's own pod, which is left alone without a grant."""
        self._vendors = vendors
        self._hooks = hooks
        self._own_uid = own_uid
        self._kept = Kept()
        self._stocks = Remembered(_of_stocks, lambda now, _: tuple(self._stocked(now)))
        self._given = Remembered(lambda now: (now.served.value.held,), _given)

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the edits of all vendors as one, or why the container must not start."""
        if request.container is None:
            return NOTHING
        granted = grant_of(snapshot, request.pod, self._kept)
        if granted is not None and granted.refusal:
            return Adjustment(failed=granted.message, reason=granted.refusal)
        if granted is not None and _awaits_requests(granted, request):
            unknown = GrantRefused(Refusal.REQUESTS_UNKNOWN, NOT_LISTED)
            return Adjustment(failed=str(unknown), reason=unknown.reason)
        if granted is None and claim_text(request.pod) is not None:
            told = f"{Refusal.BAD_GRANT.value}: the pod is over, or nobody says which it is"
            return Adjustment(failed=told, reason=Refusal.BAD_GRANT.value)
        grant = _NO_GRANT if granted is None else granted.grant
        container = self._completed(request.container, request.pod, snapshot)
        try:
            edits = merged(tuple(self._edits(grant, container, snapshot)))
            return Adjustment(edits=obeyed(edits, container))
        except GrantRefused as refused:
            return Adjustment(failed=str(refused), reason=refused.reason)

    def _edits(
        self, grant: Grant, container: Container, snapshot: NodeSnapshot
    ) -> Iterator[ContainerEdits]:
        served: set[GrantedDevice] = set()
        for stock in self._stocks(snapshot):
            of_vendor = matches(grant, stock.devices) if grant.devices else ()
            if stock.host is not None:
                seen = _seen_by(container, stock.numbers)
                own = grant if of_vendor else _NO_GRANT
                yield stock.vendor.edits(stock.devices, own, seen, stock.host)
            elif of_vendor:
                told = f"nobody has looked yet at what the host has of {stock.name}"
                raise GrantRefused(Refusal.HOST_NOT_READ_YET, told)
            for match in of_vendor:
                if match.entry in served:
                    told = f"{stock.name} and another vendor both have {_said(match.entry)}"
                    raise GrantRefused(Refusal.DEVICE_CONFLICT, told)
            served.update(match.entry for match in of_vendor)
        for entry in grant.devices:
            if entry not in served:
                told = f"no vendor serves {_said(entry)}"
                raise GrantRefused(Refusal.DEVICE_UNKNOWN, told)

    def _stocked(self, snapshot: NodeSnapshot) -> Iterator[_Stock]:
        own, means = devices_by_vendor(snapshot), snapshot.means.value.vendors
        cdi = snapshot.runtime.value.takes_cdi
        for name, vendor in self._vendors.items():
            host = means.get(name)
            if host is not None:
                host = replace(host, cdi_enabled=cdi, settings=self._policy(host))
            nodes = () if host is None else host.nodes
            numbers = frozenset((node.major, node.minor) for node in nodes)
            yield _Stock(name, vendor, own.get(name, ()), host, numbers)

    def _policy(self, host: HostMeans) -> Mapping[str, object]:
        return {**host.settings, UNGRANTED: self._hooks.ungranted}

    def _completed(
        self, container: Container, pod: SandboxSeen, snapshot: NodeSnapshot
    ) -> Container:
        """Return the container with what its pod says, and whether it is left alone.

        Who gave a container its devices is told by what the pod asks of device plug-ins. Of a pod
        that the cluster has not told of yet that is unknown: it is not taken anything from.
        """
        view = self._kept.pods(snapshot).get(pod.uid)
        untold = view is None and snapshot.cluster.clustered
        alone = pod.namespace in self._hooks.protected_namespaces
        own = bool(self._own_uid) and pod.uid == self._own_uid
        return replace(
            container,
            pod_uid=pod.uid,
            labels=pod.labels,
            annotations=pod.annotations,
            runtime_handler=pod.runtime_handler,
            host_network=pod.host_network,
            protected=container.protected or alone or own or untold,
            given_elsewhere=container.given_elsewhere
            or _asks(view, container.name)
            or not {(pod.uid, ""), (pod.uid, container.name)}.isdisjoint(self._given(snapshot)),
        )


def _awaits_requests(granted: PodGrant, request: HookRequest) -> bool:
    """Return whether a new container must wait until the pod's requests are known.

    An existing container, as in `Stage.RECONCILE`, keeps its devices.
    """
    created = request.stage is Stage.CREATE
    return created and granted.awaits_requests and bool(granted.grant.devices)


def _said(entry: GrantedDevice) -> str:
    return f"{entry.type} device {entry.id or entry.minor!r}"


def _of_stocks(now: NodeSnapshot) -> tuple[object, ...]:
    found: list[object] = [now.devices.value, now.means.value, now.runtime.value.takes_cdi]
    for state in now.vendors:
        found += (state.vendor, state.inventory.value)
    return tuple(found)


def _asks(pod: PodView | None, container: str) -> bool:
    """Say whether a device plug-in has given the container something."""
    return pod is not None and any(ask.container == container for ask in pod.asks)


def _given(now: NodeSnapshot, _: object) -> frozenset[tuple[str, str]]:
    """Return pods and containers that have something by the kubelet's account."""
    return frozenset((held.pod_uid, held.container) for held in now.served.value.held)


def _seen_by(container: Container, numbers: frozenset[tuple[int, int]]) -> Container:
    """Return the container with whether it has nodes of this vendor's already."""
    if container.given_elsewhere or not container.nodes:
        return container
    has = any((node.major, node.minor) in numbers for node in container.nodes)
    return replace(container, given_elsewhere=True) if has else container
