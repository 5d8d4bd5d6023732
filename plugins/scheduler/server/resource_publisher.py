"""Writes the sums of Device objects into Nodes; runs only with `publish_node_resources`.

One Node after another is written, by the leader only. A Node whose write fails is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from agent.clock import Clock
from agent.kube.api import MERGE_PATCH_TYPE, ApiClient, ApiRequest
from agent.kube.errors import ApiError, NotFound
from agent.kube.resources import DEVICES, NODES
from agent.kube.watch.decoder import WatchedKind
from agent.wire_formats.cluster_objects import NodeObject, node_facts
from agent.wire_formats.json_values import JsonDict
from plugins.scheduler.devices.device_table import DeviceObject, device_table
from plugins.scheduler.devices.node_resources import (
    NO_RESOURCES,
    AdvertisedResources,
    DeviceResources,
    advertised_resources,
    device_resources,
    label_patch,
    status_patch,
)
from plugins.scheduler.pod_object import parse_amounts
from plugins.scheduler.server.value_changes import watch_values

log = logging.getLogger(__name__)

FIELD_MANAGER = "xpu-scheduler"
DEADLINE_S = 5.0
RETRY_S = 10.0
MAX_FAILURES = 10  # before a pause
SYNC_PAUSE_S = 0.1


def advertised(body: NodeObject) -> AdvertisedResources:
    """Return the resources of devices that a Node advertises."""
    node = node_facts(body)
    return advertised_resources(
        parse_amounts(node.capacity), parse_amounts(node.allocatable), dict(node.labels)
    )


ADVERTISED_RESOURCES: WatchedKind[NodeObject, AdvertisedResources] = WatchedKind(
    resource=NODES, body_type=NodeObject, convert=advertised
)


class ResourcePublisher:
    """Nodes whose resources may have to be written. Belongs to the loop thread."""

    def __init__(self, api: ApiClient, clock: Clock, *, advertises_shared: bool = False) -> None:
        """Start without a view; nothing is written before Nodes and Devices are listed."""
        self._api = api
        self._nodes: dict[str, AdvertisedResources] = {}
        self._devices: dict[str, DeviceResources] = {}
        self._healthy: dict[
            str, frozenset[tuple[str, int]]
        ] = {}  # when a Node was checked last; none at first
        self._due: dict[str, None] = {}  # names, the longest due first
        self._wake = asyncio.Event()

        def resources(body: DeviceObject) -> DeviceResources:
            return device_resources(device_table(body), advertises_shared=advertises_shared)

        kind: WatchedKind[DeviceObject, DeviceResources] = WatchedKind(
            resource=DEVICES, body_type=DeviceObject, convert=resources
        )
        self._watches = (
            watch_values(ADVERTISED_RESOURCES, api, clock, self._set_node),
            watch_values(kind, api, clock, self._set_devices),
        )

    def tasks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return the watches and the writer by name, which run until they are cancelled."""
        watches = {f"resources of {watch.kind}": watch.run for watch in self._watches}
        return {**watches, "node resources": self.publish}

    async def publish(self) -> None:
        """Write each Node that differs too much from its Device object."""
        while not all(watch.state.synced for watch in self._watches):
            await asyncio.sleep(SYNC_PAUSE_S)
        while True:
            await self._wake.wait()
            self._wake.clear()
            failed: list[str] = []
            while self._due and len(failed) < MAX_FAILURES:
                name = next(iter(self._due))
                del self._due[name]
                if not await self._publish(name):
                    failed.append(name)
            if failed:  # behind those that were not tried yet
                self._due.update(dict.fromkeys(failed))
                self._wake.set()
                await asyncio.sleep(RETRY_S)

    async def _publish(self, name: str) -> bool:
        """Write one Node if it has to be; return whether it needs no other attempt."""
        node = self._nodes.get(name)
        if node is None:
            return True
        resources = self._devices.get(name, NO_RESOURCES)
        is_health_changed = self._healthy.get(name) != resources.healthy
        status = status_patch(node, resources, is_health_changed=is_health_changed)
        labels = label_patch(node, resources)
        try:
            if status is not None:
                await self._api.call(_patch(name, "status", status))
            if labels is not None:
                await self._api.call(_patch(name, "", labels))
        except NotFound:
            return True
        except ApiError as error:
            log.warning("node_resources_not_written", extra={"node": name, "error": str(error)})
            return False
        self._healthy[name] = resources.healthy
        return True

    def _set_node(self, name: str, value: AdvertisedResources | None) -> None:
        if value is None:
            self._nodes.pop(name, None)
            self._healthy.pop(name, None)
        elif self._nodes.get(name) != value:
            self._nodes[name] = value
            self._mark_due(name)

    def _set_devices(self, name: str, value: DeviceResources | None) -> None:
        before = self._devices.pop(name, None)
        if value is not None:
            self._devices[name] = value
        if value != before:
            self._mark_due(name)

    def _mark_due(self, name: str) -> None:
        self._due[name] = None
        self._wake.set()


def _patch(name: str, subresource: str, patch: JsonDict) -> ApiRequest:
    return ApiRequest(
        method="PATCH",
        path=NODES.path(name, subresource=subresource),
        query=(("fieldManager", FIELD_MANAGER),),
        body=msgspec.json.encode(patch),
        content_type=MERGE_PATCH_TYPE,
        deadline_s=DEADLINE_S,
    )
