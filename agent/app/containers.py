"""Everything that reaches containers.

The runtime's hooks, the device plug-in, slices, verification.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

from agent.allocation.index import AllocationIndex
from agent.allocation.slices import SliceManager
from agent.app.allocation import AllocationMonitor, CdiFileUpdater
from agent.app.composition import AgentInputs, kubelet_root_reader
from agent.app.oneshot import build_host_device_reader
from agent.app.pod_files import PodFileUpdater, create_ledger
from agent.app.threads import ScheduledLoop
from agent.cgroup.layout import LayoutLocator
from agent.containers.devices import DevicesHook
from agent.containers.dispatch import ON, ContainerAdjuster, hook_modes
from agent.containers.folders import make_folders
from agent.containers.hooks import node_hooks
from agent.deviceplugin.allocator import Allocator
from agent.deviceplugin.context import PluginContext
from agent.deviceplugin.kubelet_folder import plugin_folder
from agent.host.files import LiveHostFiles
from agent.loop import run_forever
from agent.messages import EventReported, MessageQueue
from agent.reconcile.reconciler import Reconciler
from agent.snapshot.container import ContainerServiceStatus, HookMetrics, PodSandbox
from agent.snapshot.edits import ContainerEdits
from agent.snapshot.inventory import Problem
from agent.snapshot.publications import AuditRecord
from agent.snapshot.vendor import kubelet_vendors, slicing_vendors
from agent.state_writer import StateWriter
from agent.verification.verifier import Verifier
from agent.workers.manager import VendorManager

if TYPE_CHECKING:
    from agent.deviceplugin.plugin import DevicePlugin
    from agent.nri.plugin import NriPlugin

log = logging.getLogger(__name__)

RETRY_S = 1.0  # after a bug, doubled each time
# then it answers: without an answer a container starts without its card, an unread host refuses it
FIRST_READ_DEADLINE_S = 1.0
NRI_LOCK_FILE = "nri.lock"
OWN_POD_UID = "POD_UID"  # of the environment, set by the manifest


def load_device_plugin() -> type[DevicePlugin]:
    """Load the device plug-in with gRPC: 100 ms and 12 MB, so on a thread and where it is used."""
    from agent.deviceplugin.plugin import DevicePlugin  # noqa: PLC0415 - grpc

    return DevicePlugin


class ContainerService:
    """Belongs to the loop thread. On a recorded host it only looks: nothing is reached there."""

    def __init__(
        self,
        inputs: AgentInputs,
        vendor_manager: VendorManager,
        collector: Executor,
        messages: MessageQueue,
        *,
        clustered: bool,
        pods_wanted: asyncio.Event | None = None,
    ) -> None:
        """Begin with nothing; reads and writes of files are done on `collector`.

        `pods_wanted` is set when a new list of the kubelet's pods is needed.
        """
        self._pods_wanted = pods_wanted or asyncio.Event()
        self._inputs, self._vendor_manager, self._collector = inputs, vendor_manager, collector
        self._messages = messages
        live = inputs.is_live
        attach = inputs.settings.nri.attach
        self._uses_runtime = live and (attach == "on" or (attach == "auto" and clustered))
        self._uses_device_plugin = live and bool(inputs.settings.device_plugin.vendors)
        settings = inputs.settings
        own_uid = os.environ.get(OWN_POD_UID, "")
        devices = DevicesHook(inputs.vendors, settings.hooks, own_uid)
        self._devices = devices
        reads_kubelet = clustered and settings.kubelet.enabled
        self._hooks = (devices, *node_hooks(reads_kubelet=reads_kubelet, hooks=settings.hooks))
        self._modes = hook_modes(self._hooks, settings.enforce)
        proves = live and settings.proof.enabled
        self._allocation_monitor = AllocationMonitor(
            inputs.store,
            inputs.clock,
            build_host_device_reader(inputs),
            AllocationIndex(slicing_vendors(inputs.vendors).values()),
            self._build_verifier() if proves else None,
        )
        writes = live and (clustered or self._uses_runtime)
        self._pod_files = self._build_pod_files() if writes else None
        names = (writes or self._uses_device_plugin) and settings.cdi.write
        self._cdi_files = (
            CdiFileUpdater(settings, inputs.store, inputs.vendors, inputs.node_files)
            if names
            else None
        )
        self._adjuster: ContainerAdjuster | None = None
        self._nri: NriPlugin | None = None
        self._plugin: DevicePlugin | None = None
        self._allocator: Allocator | None = None
        self._offer_problems: frozenset[tuple[str, Problem]] = (
            frozenset()
        )  # of what is offered, and was told
        self._slicer: SliceManager | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def scheduled_loops(self) -> Iterator[ScheduledLoop]:
        """Return the loops of the collector thread."""
        yield from self._allocation_monitor.scheduled_loops()
        if self._pod_files is not None:
            yield from self._pod_files.scheduled_loops()
        if self._cdi_files is not None:
            yield from self._cdi_files.scheduled_loops()

    def _build_verifier(self) -> Verifier:
        return Verifier(
            self._inputs.node_files,
            self._devices,
            self._inputs.clock,
            exempt=self._is_exempt,
            injection=self._inputs.settings.device_plugin.injection,
        )

    def _build_pod_files(self) -> PodFileUpdater:
        inputs, writer = self._inputs, StateWriter("ledger")
        boot_id = inputs.store.current.node.boot_id
        reconciler = Reconciler(
            root=LiveHostFiles(),
            ledger=create_ledger(inputs.settings.node.state_dir, boot_id, writer),
            hooks=self._hooks,
            modes=self._modes,
            clock=inputs.clock,
        )
        locator = LayoutLocator(inputs.host_source.files, kubelet_root_reader(inputs))
        return PodFileUpdater(
            inputs.store, inputs.clock, locator, reconciler, writer, self._messages
        )

    async def start(self) -> None:
        """Look once, then answer the runtime and the kubelet, also if the look hangs."""
        event_loop = asyncio.get_running_loop()
        # before anybody asks: what the host has decides every answer
        look = event_loop.run_in_executor(self._collector, self._allocation_monitor.run_first)
        done, _ = await asyncio.wait({look}, timeout=FIRST_READ_DEADLINE_S)
        if not done:
            log.warning("first_look_late", extra={"waited_s": FIRST_READ_DEADLINE_S})
        if self._uses_runtime:
            self._start_nri_plugin()
        if self._uses_device_plugin:
            self._start_device_plugin(await asyncio.to_thread(load_device_plugin))
        if self._pod_files is not None and self._modes[DevicesHook.name] == ON:
            self._slicer = SliceManager(
                self._inputs.store,
                self._vendor_manager,
                self._messages,
                self._inputs.clock,
                slicers=slicing_vendors(self._inputs.vendors),
                grace_s=self._inputs.settings.proof.grace_s,
            )
            self._run_forever(self._slicer.run, "slices")

    def _start_nri_plugin(self) -> None:
        from agent.nri.plugin import NriPlugin  # noqa: PLC0415 - protobuf

        settings, keeping = self._inputs.settings, self._pod_files
        assert keeping is not None  # noqa: S101 - who dials keeps files, too
        self._adjuster = ContainerAdjuster(
            self._hooks,
            self._modes,
            self._inputs.store,
            self._inputs.clock,
            messages=self._messages,
            pod_files=keeping,
            files=self._collector,
            index=self._devices.index,
        )
        self._nri = NriPlugin(
            settings.nri,
            handler=self._adjuster,
            clock=self._inputs.clock,
            lock_path=_make_lock_folder(settings.node.run_dir),
        )
        self._run_forever(self._nri.run, "container runtime")

    def _start_device_plugin(self, plugin: type[DevicePlugin]) -> None:
        inputs = self._inputs
        self._allocator = Allocator(inputs.settings.device_plugin, inputs.vendors)
        self._plugin = plugin(
            PluginContext(
                folder=plugin_folder(inputs.settings.kubelet.root_dir),
                store=inputs.store,
                backend=self._allocator,
                clock=inputs.clock,
                socket_prefixes={
                    name: vendor.socket_prefixes
                    for name, vendor in kubelet_vendors(inputs.vendors).items()
                },
                state_dir=inputs.settings.node.state_dir,
                boot_id=inputs.store.current.node.boot_id,
                state_writer=inputs.state_writer,
                messages=self._messages,
                prepare=_prepare_folders,
                pods_wanted=self._pods_wanted,
            )
        )
        self._run_forever(self._plugin.run, "device plug-in")
        self._run_forever(self._follow_devices, "offered devices")
        self._run_forever(partial(self._follow_pods, self._plugin), "pods of the device plug-in")

    async def _follow_pods(self, plugin: DevicePlugin) -> None:
        """Update the lists of devices at once: the kubelet admits no pod if none is healthy.

        It admits a granted pod some milliseconds after the pod before it ended.
        """
        with self._inputs.store.subscribe("cluster.pods", "cluster.deleted_pods") as changes:
            while True:
                await changes.wait()
                plugin.notify_devices_changed()

    async def _follow_devices(self) -> None:
        with self._inputs.store.subscribe("devices") as refreshes:
            while True:
                await refreshes.wait()
                self.devices_changed()

    def devices_changed(self) -> None:
        """Tell the kubelet at once of what became better or worse."""
        if self._plugin is None or self._allocator is None:
            return
        self._plugin.notify_devices_changed()
        found = frozenset(self._allocator.problems(self._inputs.store.current))
        for _, problem in sorted(
            found - self._offer_problems, key=lambda one: (one[0], one[1].reason)
        ):
            self._messages.put(EventReported(problem.reason, problem.message))
        self._offer_problems = found

    def status(self) -> ContainerServiceStatus:
        """Return the state of every part. For any thread."""
        figures = self._adjuster.counters if self._adjuster is not None else None
        keeping = self._pod_files
        return ContainerServiceStatus(
            nri=self._nri.statistics if self._nri is not None else None,
            hooks=tuple(
                HookMetrics(
                    hook=name,
                    calls=figures.calls[name],
                    spent_s=figures.spent_s[name],
                    failures=figures.failures[name],
                    planned=figures.planned[name],
                )
                for name in sorted(figures.calls)
            )
            if figures is not None
            else (),
            refusals=tuple(sorted(figures.refusals.items())) if figures is not None else (),
            plugin=self._plugin.statistics() if self._plugin is not None else (),
            files_written=keeping.files_written if keeping is not None else 0,
            offer_problems=tuple(sorted(self._offer_problems, key=lambda one: one[0])),
            files_left=keeping.files_left if keeping is not None else None,
            file_problems=keeping.problems() if keeping is not None else None,
            cdi_problem=self._cdi_files.problem if self._cdi_files is not None else None,
            reclaimed=self._slicer.reclaimed_count if self._slicer is not None else 0,
        )

    def audit(self) -> tuple[AuditRecord, ...]:
        """Return the last changes of files on this host, oldest first."""
        return self._pod_files.audit() if self._pod_files is not None else ()

    async def stop(self) -> None:
        """Answer nobody any more; what is in force stays."""
        if self._nri is not None:
            await self._nri.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Close files; belongs to the collector thread, when all else has ended."""
        if self._pod_files is not None:
            self._pod_files.close()

    def _run_forever(self, work: Callable[[], Coroutine[object, object, None]], name: str) -> None:
        monotonic = self._inputs.clock.monotonic
        kept = run_forever(name, work, again_s=RETRY_S, monotonic=monotonic, sleep=asyncio.sleep)
        self._tasks.append(asyncio.create_task(kept, name=name))

    def _is_exempt(self, pod: PodSandbox) -> bool:
        """Return whether devices in a pod without a grant are not reported."""
        return self._inputs.settings.hooks.ungranted == "off" or self._devices.is_protected(pod)


async def _prepare_folders(edits: ContainerEdits) -> None:
    if edits.folders:
        await asyncio.to_thread(make_folders, edits.folders)


def _make_lock_folder(folder: str) -> str:
    """Return the file whose lock keeps a second agent from the runtime; its folder is made."""
    if not folder:
        return ""
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
    except OSError as error:
        log.warning("no_lock", extra={"path": folder, "error": error.strerror})
        return ""
    return os.path.join(folder, NRI_LOCK_FILE)
