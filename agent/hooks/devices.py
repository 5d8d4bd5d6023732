"""Devices of a grant, and what becomes of containers that ask for devices without one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from agent.config.containers import HookSettings
from agent.grants.check import grant_of
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
from agent.model.runtime.seen import RuntimeView, SandboxSeen
from agent.model.snapshot import NodeSnapshot
from agent.probe.base import DeviceVendor

UNGRANTED = "ungranted"  # the vendors' key of what `hooks.ungranted` says
_NRI_WITH_CDI = (0, 7, 0)
_CDI_SINCE = {"containerd": (2, 1), "cri-o": (1, 34)}  # older ones drop the names in silence
_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})")


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

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the edits of all vendors as one, or why the container must not start."""
        if request.container is None:
            return NOTHING
        granted = grant_of(snapshot, request.pod)
        if granted is not None and granted.refusal:
            return Adjustment(failed=granted.message, reason=granted.refusal)
        grant = Grant() if granted is None else granted.grant
        container = self._completed(request.container, request.pod, snapshot)
        try:
            return Adjustment(edits=merged(tuple(self._edits(grant, container, snapshot))))
        except GrantRefused as refused:
            return Adjustment(failed=str(refused), reason=refused.reason)

    def _edits(
        self, grant: Grant, container: Container, snapshot: NodeSnapshot
    ) -> Iterator[ContainerEdits]:
        own, means = devices_by_vendor(snapshot), snapshot.means.value.vendors
        cdi = takes_cdi(snapshot.runtime.value)
        served: set[GrantedDevice] = set()
        for name, vendor in self._vendors.items():
            devices, host = own.get(name, ()), means.get(name)
            of_vendor = matches(grant, devices) if grant.devices else ()
            if host is not None:
                host = replace(host, cdi_enabled=cdi, settings=self._policy(host))
                yield vendor.edits(devices, grant, _seen_by(container, host), host)
            elif of_vendor:
                told = f"nobody has looked yet at what the host has of {name}"
                raise GrantRefused(Refusal.HOST_NOT_READ_YET, told)
            served.update(match.entry for match in of_vendor)
        for entry in grant.devices:
            if entry not in served:
                told = f"no vendor serves {entry.type} device {entry.id or entry.minor!r}"
                raise GrantRefused(Refusal.DEVICE_UNKNOWN, told)

    def _policy(self, host: HostMeans) -> Mapping[str, object]:
        return {**host.settings, UNGRANTED: self._hooks.ungranted}

    def _completed(
        self, container: Container, pod: SandboxSeen, snapshot: NodeSnapshot
    ) -> Container:
        """Return the container with what its pod says, and whether it is left alone.

        Who gave a container its devices is told by what the pod asks of device plug-ins. Of a pod
        that the cluster has not told of yet that is unknown: it is not taken anything from.
        """
        view = next((one for one in snapshot.cluster.pods if one.uid == pod.uid), None)
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
            or _has(snapshot, pod.uid, container.name),
        )


def takes_cdi(runtime: RuntimeView) -> bool:
    """Say whether the runtime resolves CDI names that NRI plug-ins answer with."""
    found, since = _VERSION.match(runtime.version), _CDI_SINCE.get(runtime.runtime)
    if found is None or since is None or (runtime.nri_version or (0, 0, 0)) < _NRI_WITH_CDI:
        return False
    return (int(found[1]), int(found[2])) >= since


def _asks(pod: PodView | None, container: str) -> bool:
    """Say whether a device plug-in has given the container something."""
    return pod is not None and any(ask.container == container for ask in pod.asks)


def _has(snapshot: NodeSnapshot, uid: str, container: str) -> bool:
    """Say whether the kubelet's account has something for the container."""
    return any(
        held.pod_uid == uid and held.container in ("", container)
        for held in snapshot.served.value.held
    )


def _seen_by(container: Container, host: HostMeans) -> Container:
    """Return the container with whether it has nodes of this vendor's already."""
    if container.given_elsewhere or not container.nodes:
        return container
    known = {(node.major, node.minor) for node in host.nodes}
    has = any((node.major, node.minor) in known for node in container.nodes)
    return replace(container, given_elsewhere=has)
