"""The device plug-in as a whole: what is offered is served, registered, and told of.

Two agents on one node do not serve at once: who does not hold the node's lock has not begun. The
next one registers when the lock is its own, by which time the first one's streams have ended. Two
with different locks take each other's streams, until the one that lost three gives way and says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial

import msgspec

from agent.deviceplugin.allocations import AllocationTable, CheckpointStamp, read_device_checkpoint
from agent.deviceplugin.context import ChangeCondition, PluginContext
from agent.deviceplugin.kubelet_folder import KubeletFolder
from agent.deviceplugin.kubelet_folder import SocketIdentity as SocketFile
from agent.deviceplugin.registration import ResourceRegistration
from agent.deviceplugin.resource_cache import ResourceCacheFile
from agent.deviceplugin.resources import KubeletResource
from agent.deviceplugin.servicer import ResourceServicer
from agent.errors import ParseError
from agent.loop import run_forever, run_in_thread
from agent.messages import EventReported
from agent.snapshot.device_plugin import (
    DevicePluginView,
    KubeletAllocation,
    PluginResource,
    ResourceStatistics,
)
from agent.snapshot.node import NodeSnapshot

log = logging.getLogger(__name__)

MAX_RESOURCES = 64
GRANT_GIVEN_TO_ANOTHER_POD = "GrantGivenToAnotherPod"
DEVICE_WITHDRAWN = "DeviceWithdrawn"
RESTART_S = 1.0  # after a bug, doubled each time
READY_STATES = ("ready", "released")  # states of a vendor whose devices are those it told of


class DevicePlugin:
    """Belongs to the loop thread. `run` it as a task; cancelled, it ends everything in good order.

    Nothing of it is needed where `device_plugin.vendors` is empty, and nothing is loaded then.
    """

    def __init__(self, site: PluginContext) -> None:
        self._context = site
        self._changes = ChangeCondition()  # one for all: each looks whether it is for him
        self._folder = KubeletFolder(
            site.folder,
            self._handle_folder_scan,
            poll_s=site.timing.poll_s,
            absent_s=site.timing.absent_s,
        )
        self._allocations = AllocationTable(site.clock.monotonic, self._publish)
        self._cache_file = ResourceCacheFile(site.state_dir, site.boot_id, site.state_writer)
        self._cached_resources: dict[
            str, KubeletResource
        ] = {}  # of vendors that have not answered yet
        self._registrations: dict[str, ResourceRegistration] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._last_kubelet_socket: SocketFile | None = None  # whose socket was there last
        self._checkpoint: CheckpointStamp | None = None
        self._checkpoint_error = ""  # why the checkpoint could not be read
        self._is_changed = False
        self._start_s = site.clock.monotonic()
        self._view = DevicePluginView()

    async def run(self) -> None:
        """Serve until cancelled; a bug in one part begins that part again."""
        self._cached_resources = {
            one.name: one for one in await run_in_thread(self._cache_file.load)
        }
        self._start_s = self._context.clock.monotonic()
        await run_in_thread(self._folder.remove_dead_sockets)
        self._folder.scan()
        try:
            self._start_task("folder", self._folder.run)
            self._start_task("offers", self._follow_resources)
            self._start_task("files", self._follow_files)
            await asyncio.Event().wait()
        finally:
            await self.stop()

    async def stop(self) -> None:
        """End the streams, stop the servers, remove their sockets; takes a second at most."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._registrations.clear()

    def notify_devices_changed(self) -> None:
        """Look at once at what is offered: devices or their health may be others."""
        self._is_changed = True
        self._changes.notify_all()

    def view(self) -> DevicePluginView:
        """Return how every resource stands with the kubelet, and who holds what."""
        return self._view

    def statistics(self) -> tuple[ResourceStatistics, ...]:
        """Return what was asked for and answered, by resource."""
        return tuple(
            life.servicer.counters.statistics() for _, life in sorted(self._registrations.items())
        )

    def _start_task(self, name: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        kept = run_forever(
            f"device plug-in: {name}",
            work,
            again_s=RESTART_S,
            monotonic=self._context.clock.monotonic,
            sleep=asyncio.sleep,
        )
        self._tasks.append(asyncio.create_task(kept, name=f"device plug-in: {name}"))

    async def _follow_resources(self) -> None:
        """Offer what is decided, whenever it may be another."""
        while True:
            self._is_changed = False
            self._update_resources(self._context.current_snapshot())
            self._publish()
            await self._changes.wait_for(
                lambda: self._is_changed, self._context.timing.offer_check_s
            )

    async def _follow_files(self) -> None:
        """Keep what is offered, and follow the kubelet's checkpoint."""
        while True:
            seen = self._folder.scan_count
            self._cache_file.write(self._resources_to_cache())
            await self._read_checkpoint()
            self._allocations.remove_old_answers()
            await self._changes.wait_for(
                partial(self._is_folder_scanned, seen), self._context.timing.poll_s
            )

    def _handle_folder_scan(self) -> None:
        """Hear of a look at the folder; another kubelet knows of no answer but the written ones."""
        found = self._folder.state.socket
        if found is not None and found != self._last_kubelet_socket:
            if self._last_kubelet_socket is not None:
                self._allocations.clear_answers()
            self._last_kubelet_socket = found
        self._changes.notify_all()

    def _is_folder_scanned(self, seen: int) -> bool:
        return self._folder.scan_count != seen

    def _update_resources(self, snapshot: NodeSnapshot) -> None:
        offered = {one.name: one for one in self._context.backend.resources(snapshot)}
        kept = self._cached_resources.items()
        self._cached_resources = {
            name: one for name, one in kept if is_vendor_awaited(snapshot, one.vendor)
        }
        for name in self._cached_resources:
            offered.pop(name, None)
        for resource in offered.values():
            self._set_resource(resource, live=True)
        for resource in self._cached_resources.values():
            self._set_resource(self._expire_cached(resource), live=False)
        for name in self._registrations.keys() - offered.keys() - self._cached_resources.keys():
            self._registrations[name].servicer.clear_resource()

    def _set_resource(self, resource: KubeletResource, *, live: bool) -> None:
        life = self._registrations.get(resource.name)
        if resource.withdrawn_ids and not (
            life is not None and life.servicer.resource.withdrawn_ids
        ):
            self._report_withdrawal(resource)
        if life is not None:
            life.servicer.set_resource(resource, live=live)
        elif resource.devices and len(self._registrations) < MAX_RESOURCES:
            answering = ResourceServicer(
                resource, self._context, self._changes, self._allocations, live=live
            )
            life = ResourceRegistration(
                self._context, self._folder, self._changes, answering, self._publish
            )
            self._registrations[resource.name] = life
            self._start_task(resource.name, life.run)

    def _report_withdrawal(self, resource: KubeletResource) -> None:
        """Tell that devices are withdrawn; more of them while there are some are told by metric."""
        text = (
            f"{resource.name}: {', '.join(resource.withdrawn_ids)[:200]} is in use by a pod whose "
        )
        text += (
            "device the kubelet does not account, and is listed as unhealthy until that pod ends"
        )
        self._context.messages.put(EventReported(DEVICE_WITHDRAWN, text))

    def _expire_cached(self, resource: KubeletResource) -> KubeletResource:
        """Return what was kept; without the vendor's word nobody can tell after a while."""
        if self._context.clock.monotonic() - self._start_s < self._context.timing.cache_lifetime_s:
            return resource
        devices = (msgspec.structs.replace(one, healthy=False) for one in resource.devices)
        return msgspec.structs.replace(resource, devices=tuple(devices))

    def _resources_to_cache(self) -> tuple[KubeletResource, ...]:
        """Return what a next start of this boot begins with."""
        live = (
            life.servicer
            for _, life in sorted(self._registrations.items())
            if life.servicer.is_live
        )
        return (*(one.resource for one in live if one.devices), *self._cached_resources.values())

    async def _read_checkpoint(self) -> None:
        try:
            found = await run_in_thread(
                partial(read_device_checkpoint, self._context.folder, self._checkpoint)
            )
        except FileNotFoundError:
            self._checkpoint, self._checkpoint_error = None, ""
            self._allocations.update_from_checkpoint(())
            return
        except (ParseError, OSError) as error:
            if not self._checkpoint_error:
                log.warning("device_checkpoint_unread", extra={"error": str(error)[:200]})
            self._checkpoint_error = str(error)
            return
        self._checkpoint_error = ""
        if found is not None:
            self._checkpoint, held = found
            for answer, entry in self._allocations.update_from_checkpoint(held):
                self._report_astray(answer, entry)

    def _report_astray(self, answer: KubeletAllocation, entry: KubeletAllocation) -> None:
        """Tell of a grant that the kubelet gave to a pod of which nobody had told in time."""
        snapshot = self._context.current_snapshot()
        granted = snapshot.grants.value.pods.get(answer.pod_uid)
        if granted is None or granted.refusal:
            return  # it got what the kubelet chose, whosever it is
        names = {pod.uid: f"{pod.namespace}/{pod.name}" for pod in snapshot.cluster.pods}
        other = names.get(entry.pod_uid, f"pod {entry.pod_uid}")
        text = f"{entry.resource}: {other} was given what {granted.namespace}/{granted.name} was "
        text += "granted, as nobody had told of it when the kubelet asked: delete that pod"
        self._context.messages.put(EventReported(GRANT_GIVEN_TO_ANOTHER_POD, text))

    def _publish(self) -> None:
        view = DevicePluginView(
            resources=tuple(
                _plugin_resource(life) for _, life in sorted(self._registrations.items())
            ),
            held=self._allocations.allocations,
        )
        if view != self._view:
            self._view = view
            self._context.publish_view(view)


def is_vendor_awaited(snapshot: NodeSnapshot, vendor: str) -> bool:
    """Say whether what is known of a vendor's devices is no answer of its own yet."""
    states = {state.state for state in snapshot.vendors if state.vendor == vendor}
    joined = snapshot.devices.taken_s is not None and vendor not in snapshot.devices.value.awaited
    return bool(states) and (not joined or states.isdisjoint(READY_STATES))


def _plugin_resource(life: ResourceRegistration) -> PluginResource:
    answering, standing = life.servicer, life.status
    return PluginResource(
        name=answering.resource.name,
        vendor=answering.resource.vendor,
        state=standing.state,
        reason=standing.reason,
        message=standing.message,
        devices=len(answering.devices),
        healthy=sum(device.healthy for device in answering.devices),
        withdrawn_ids=answering.resource.withdrawn_ids,
        registrations=answering.counters.registrations,
        lists_sent=answering.counters.lists_sent,
    )
