"""The device plug-in: serves all offered resources, registers them, and publishes their state.

Two agents on one node do not serve at once: an agent without the node's lock does not start this
plug-in. An agent registers once it has the lock; by then the streams of the earlier agent have
ended. Two agents with different lock files take each other's streams, until one has lost three and
stops with the state `conflict`.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from agent.snapshot.part import SnapshotPart

log = logging.getLogger(__name__)

MAX_RESOURCES = 64
GRANT_GIVEN_TO_ANOTHER_POD = "GrantGivenToAnotherPod"
DEVICE_WITHDRAWN = "DeviceWithdrawn"
RESTART_S = 1.0  # pause after a bug, doubled each time
READY_STATES = ("ready", "released")  # states of a vendor whose devices are its current ones


class DevicePlugin:
    """Serves the kubelet. Belongs to the loop thread; `run` ends all servers when it is cancelled.

    With an empty `device_plugin.vendors` it is neither needed nor loaded.
    """

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._changes = ChangeCondition()  # one for all tasks: each checks its own condition
        self._folder = KubeletFolder(
            context.folder,
            self._handle_folder_scan,
            poll_s=context.timing.poll_s,
            absent_s=context.timing.absent_s,
        )
        self._allocations = AllocationTable(context.clock, self._publish)
        self._cache_file = ResourceCacheFile(
            context.state_dir, context.boot_id, context.state_writer
        )
        self._cached_resources: dict[str, KubeletResource] = {}  # of vendors without an answer yet
        self._registrations: dict[str, ResourceRegistration] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._last_kubelet_socket: SocketFile | None = None  # the last one that existed
        self._checkpoint: CheckpointStamp | None = None
        self._checkpoint_error = ""  # why the checkpoint could not be read
        self._has_changes = False
        self._start_s = context.clock.monotonic()
        self._view = DevicePluginView()

    async def run(self) -> None:
        """Serve until cancelled; a part that fails with a bug is started again."""
        self._cached_resources = {
            resource.name: resource for resource in await run_in_thread(self._cache_file.load)
        }
        self._start_s = self._context.clock.monotonic()
        await run_in_thread(self._folder.remove_dead_sockets)
        self._folder.scan()
        # before the kubelet can ask: pods may have other devices than it accounts
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._context.timing.prepare_s):
                await self._read_checkpoint()
        try:
            self._start_task("folder", self._folder.run)
            self._start_task("offers", self._follow_resources)
            self._start_task("files", self._follow_files)
            await asyncio.Event().wait()
        finally:
            await self.stop()

    async def stop(self) -> None:
        """End the streams, stop the servers, remove their sockets; takes one second at most."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._registrations.clear()

    def notify_devices_changed(self) -> None:
        """Build the resources again at once: devices or their health may have changed."""
        self._has_changes = True
        self._changes.notify_all()

    def view(self) -> DevicePluginView:
        """Return the state of every resource and all allocations."""
        return self._view

    def statistics(self) -> tuple[ResourceStatistics, ...]:
        """Return the counters of all resources."""
        return tuple(
            registration.servicer.counters.statistics()
            for _, registration in sorted(self._registrations.items())
        )

    def _start_task(self, name: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        loop = run_forever(
            f"device plug-in: {name}",
            work,
            again_s=RESTART_S,
            monotonic=self._context.clock.monotonic,
            sleep=asyncio.sleep,
        )
        self._tasks.append(asyncio.create_task(loop, name=f"device plug-in: {name}"))

    async def _follow_resources(self) -> None:
        """Build and offer the resources after every change."""
        while True:
            self._has_changes = False
            self._update_resources(self._context.store.current)
            self._publish()
            await self._changes.wait_for(
                lambda: self._has_changes, self._context.timing.offer_check_s
            )

    async def _follow_files(self) -> None:
        """Store the offered resources, and read the kubelet's checkpoint."""
        while True:
            scan_count = self._folder.scan_count
            self._cache_file.write(self._resources_to_cache())
            await self._read_checkpoint()
            self._allocations.remove_old_answers()
            await self._changes.wait_for(
                partial(self._is_folder_scanned, scan_count), self._context.timing.poll_s
            )

    def _handle_folder_scan(self) -> None:
        """Handle a scan of the folder; a new kubelet has only the answers of its checkpoint."""
        socket = self._folder.state.socket
        if socket is not None and socket != self._last_kubelet_socket:
            if self._last_kubelet_socket is not None:
                self._allocations.clear_answers()
            self._last_kubelet_socket = socket
        self._changes.notify_all()

    def _is_folder_scanned(self, scan_count: int) -> bool:
        return self._folder.scan_count != scan_count

    def _update_resources(self, snapshot: NodeSnapshot) -> None:
        resources = self._context.backend.resources(snapshot)
        offered = {resource.name: resource for resource in resources}
        cached = self._cached_resources.items()
        self._cached_resources = {
            name: resource
            for name, resource in cached
            if is_vendor_awaited(snapshot, resource.vendor)
        }
        for name in self._cached_resources:
            offered.pop(name, None)
        for offered_resource in offered.values():
            self._set_resource(offered_resource, live=True)
        for offered_resource in self._cached_resources.values():
            self._set_resource(self._expire_cached(offered_resource), live=False)
        for name in self._registrations.keys() - offered.keys() - self._cached_resources.keys():
            self._registrations[name].servicer.clear_resource()

    def _set_resource(self, resource: KubeletResource, *, live: bool) -> None:
        registration = self._registrations.get(resource.name)
        if resource.withdrawn_ids and not (
            registration is not None and registration.servicer.resource.withdrawn_ids
        ):
            self._report_withdrawal(resource)
        if registration is not None:
            registration.servicer.set_resource(resource, live=live)
        elif resource.devices and len(self._registrations) < MAX_RESOURCES:
            servicer = ResourceServicer(
                resource, self._context, self._changes, self._allocations, live=live
            )
            registration = ResourceRegistration(
                self._context, self._folder, self._changes, servicer, self._publish
            )
            self._registrations[resource.name] = registration
            self._start_task(resource.name, registration.run)

    def _report_withdrawal(self, resource: KubeletResource) -> None:
        """Report the first withdrawn devices as an event; a metric counts further ones."""
        text = (
            f"{resource.name}: {', '.join(resource.withdrawn_ids)[:200]} is in use by a pod whose "
        )
        text += (
            "device the kubelet does not account, and is listed as unhealthy until that pod ends"
        )
        self._context.messages.put(EventReported(DEVICE_WITHDRAWN, text))

    def _expire_cached(self, resource: KubeletResource) -> KubeletResource:
        """Return the cached resource.

        After a while without the vendor its devices are unhealthy.
        """
        if self._context.clock.monotonic() - self._start_s < self._context.timing.cache_lifetime_s:
            return resource
        devices = (msgspec.structs.replace(device, healthy=False) for device in resource.devices)
        return msgspec.structs.replace(resource, devices=tuple(devices))

    def _resources_to_cache(self) -> tuple[KubeletResource, ...]:
        """Return the resources for the next start in the same boot."""
        live_servicers = (
            registration.servicer
            for _, registration in sorted(self._registrations.items())
            if registration.servicer.is_live
        )
        return (
            *(resource.resource for resource in live_servicers if resource.devices),
            *self._cached_resources.values(),
        )

    async def _read_checkpoint(self) -> None:
        try:
            checkpoint = await run_in_thread(
                partial(
                    read_device_checkpoint, self._context.folder, self._checkpoint, with_nodes=True
                )
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
        if checkpoint is not None:
            self._checkpoint, entries = checkpoint
            for answer, entry in self._allocations.update_from_checkpoint(entries):
                self._report_misdirected(answer, entry)

    def _report_misdirected(self, answer: KubeletAllocation, entry: KubeletAllocation) -> None:
        """Report an allocation that the kubelet gave to another pod, which was unknown in time."""
        snapshot = self._context.store.current
        allocation = snapshot.allocations.value.pods.get(answer.pod_uid)
        if allocation is None or allocation.refusal:
            return  # it got the devices that the kubelet chose
        names = {pod.uid: f"{pod.namespace}/{pod.name}" for pod in snapshot.cluster.pods}
        other = names.get(entry.pod_uid, f"pod {entry.pod_uid}")
        pod = f"{allocation.namespace}/{allocation.name}"
        text = f"{entry.resource}: {other} was given what {pod} was "
        text += "granted, as nobody had told of it when the kubelet asked: delete that pod"
        self._context.messages.put(EventReported(GRANT_GIVEN_TO_ANOTHER_POD, text))

    def _publish(self) -> None:
        view = DevicePluginView(
            resources=tuple(
                _plugin_resource(registration)
                for _, registration in sorted(self._registrations.items())
            ),
            held=self._allocations.allocations,
        )
        if view != self._view:
            self._view = view
            now_s = self._context.clock.monotonic()
            self._context.store.put(served=SnapshotPart(view, now_s))


def is_vendor_awaited(snapshot: NodeSnapshot, vendor: str) -> bool:
    """Return whether the vendor has not answered since the agent's start."""
    states = {state.state for state in snapshot.vendors if state.vendor == vendor}
    is_joined = (
        snapshot.devices.taken_s is not None and vendor not in snapshot.devices.value.awaited
    )
    return bool(states) and (not is_joined or states.isdisjoint(READY_STATES))


def _plugin_resource(registration: ResourceRegistration) -> PluginResource:
    servicer, status = registration.servicer, registration.status
    return PluginResource(
        name=servicer.resource.name,
        vendor=servicer.resource.vendor,
        state=status.state,
        reason=status.reason,
        message=status.message,
        devices=len(servicer.devices),
        healthy=sum(device.healthy for device in servicer.devices),
        withdrawn_ids=servicer.resource.withdrawn_ids,
        registrations=servicer.counters.registrations,
        lists_sent=servicer.counters.lists_sent,
    )
