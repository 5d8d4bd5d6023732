"""Services that reach containers: the runtime's hooks, the device plug-in, slices, their files."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from agent.allocation.index import AllocationIndex, has_ended
from agent.allocation.slices import SliceManager
from agent.app.allocation import AllocationMonitor, CdiFileUpdater, KubeletDeviceMonitor
from agent.app.composition import AgentInputs, build_layout_locator
from agent.app.lock import NRI_LOCK_FILE
from agent.app.oneshot import build_host_device_reader
from agent.app.pod_files import (
    Enforcers,
    Explanations,
    PodFileUpdater,
    create_audit_trail,
    create_ledger,
)
from agent.app.threads import BackgroundTasks, ScheduledLoop
from agent.cgroup.reclaim import MemoryReclaimer
from agent.clock import Clock
from agent.config.containers import NriSettings
from agent.containers.cpu_quota import NormalizationHook
from agent.containers.devices import DevicesHook
from agent.containers.dispatch import OFF, ON, ContainerAdjuster, hook_modes
from agent.containers.hooks import Hook, node_hooks
from agent.deviceplugin.allocator import Allocator
from agent.deviceplugin.context import PluginContext
from agent.deviceplugin.kubelet_folder import plugin_folder
from agent.host.files import LiveHostFiles
from agent.kube.eviction import EvictionService
from agent.kubelet.container_runtime import ContainerRuntime
from agent.messages import EventReported, MessageQueue
from agent.qos.cpu_suppression import NAME as CPU_SUPPRESSION
from agent.qos.engine import QosEngine, StrategyRunner, strategy_modes
from agent.qos.eviction.history_file import EvictionHistoryFile
from agent.qos.pressure import PressureMonitor
from agent.qos.strategies import strategies
from agent.qos.strategy import AnyStrategy
from agent.reconcile.reconciler import Reconciler
from agent.resctrl.group_writer import OWNER as RESCTRL_STRATEGY
from agent.resctrl.manager import ResctrlManager
from agent.snapshot.container import (
    ContainerServiceStatus,
    HookMetrics,
    NriStatistics,
    PodSandbox,
)
from agent.snapshot.device_plugin import ResourceStatistics
from agent.snapshot.inventory import Problem
from agent.snapshot.node import SnapshotStore
from agent.snapshot.publications import AuditRecord
from agent.snapshot.vendor import kubelet_vendors, slicing_vendors
from agent.state_writer import StateWriter
from agent.verification.verifier import Verifier
from agent.workers.manager import VendorManager

if TYPE_CHECKING:
    from agent.deviceplugin.plugin import DevicePlugin
    from agent.nri.plugin import NriPlugin

log = logging.getLogger(__name__)

# After this time the agent answers without the first read: without an answer a container starts
# without its card; while the host is not read, it is refused.
FIRST_READ_DEADLINE_S = 1.0
OWN_POD_UID = "POD_UID"  # variable of the environment, set by the manifest


class ContainerLoops(msgspec.Struct, frozen=True, kw_only=True):
    """The services for containers on the collector thread."""

    allocations: AllocationMonitor
    explanations: Explanations
    pod_files: PodFileUpdater | None = None
    cdi_files: CdiFileUpdater | None = None
    kubelet_devices: KubeletDeviceMonitor | None = None
    pod_files_interval_s: float = 1.0

    def scheduled_loops(self) -> Iterator[ScheduledLoop]:
        """Return their loops."""
        yield from self.allocations.scheduled_loops()
        if self.pod_files is not None:
            yield from self.pod_files.scheduled_loops(self.pod_files_interval_s)
        if self.cdi_files is not None:
            yield from self.cdi_files.scheduled_loops()
        if self.kubelet_devices is not None:
            yield from self.kubelet_devices.scheduled_loops()


class RuntimeService:
    """The NRI plug-in of the container runtime. Belongs to the loop thread."""

    def __init__(
        self,
        settings: NriSettings,
        run_dir: str,
        clock: Clock,
        adjuster: ContainerAdjuster,
        store: SnapshotStore,
    ) -> None:
        """Answer with `adjuster`; the lock file against a second agent is in `run_dir`."""
        self._store = store
        self._settings = settings
        self._run_dir = run_dir
        self._clock = clock
        self._adjuster = adjuster
        self._plugin: NriPlugin | None = None

    def start(self, tasks: BackgroundTasks) -> None:
        """Connect to the runtime, now and whenever it is there again."""
        from agent.nri.plugin import NriPlugin  # noqa: PLC0415 - protobuf

        self._plugin = NriPlugin(
            self._settings,
            handler=self._adjuster,
            clock=self._clock,
            lock_path=_make_lock_folder(self._run_dir),
        )
        tasks.start_forever(self._plugin.run, "container runtime", self._clock)
        follow_pods = partial(self._follow_pods, self._plugin)
        tasks.start_forever(follow_pods, "pods of the container runtime", self._clock)

    async def _follow_pods(self, plugin: NriPlugin) -> None:
        """Mark the sandboxes of pods as stopped that have ended or were deleted.

        The runtime reports no end while it is not connected.
        """
        with self._store.subscribe("cluster.pods", "cluster.deleted_pods") as changes:
            while True:
                await changes.wait()
                cluster = self._store.current.cluster
                ended = {pod.uid for pod in cluster.pods if has_ended(pod)}
                plugin.mark_pods_stopped(ended | cluster.deleted_pods)

    @property
    def statistics(self) -> NriStatistics | None:
        """Return the figures of the connection; `None` before the start."""
        return self._plugin.statistics if self._plugin is not None else None

    def hook_metrics(self) -> tuple[HookMetrics, ...]:
        """Return the figures of each hook that was called."""
        counters = self._adjuster.counters
        return tuple(
            HookMetrics(
                hook=name,
                calls=counters.calls[name],
                spent_s=counters.spent_s[name],
                failures=counters.failures[name],
                planned=counters.planned[name],
            )
            for name in sorted(counters.calls)
        )

    def refusals(self) -> tuple[tuple[str, int], ...]:
        """Return how many containers were refused, by reason."""
        return tuple(sorted(self._adjuster.counters.refusals.items()))

    async def stop(self) -> None:
        """Close the connection; containers keep their adjustments."""
        if self._plugin is not None:
            await self._plugin.stop()


class DevicePluginService:
    """The kubelet's device plug-in. Belongs to the loop thread."""

    def __init__(self, store: SnapshotStore, allocator: Allocator, context: PluginContext) -> None:
        """`allocator` is also the backend of `context`."""
        self._store = store
        self._allocator = allocator
        self._context = context
        self._plugin: DevicePlugin | None = None
        self.problems: frozenset[tuple[str, Problem]] = frozenset()  # of the offered devices

    async def start(self, tasks: BackgroundTasks) -> None:
        """Serve the kubelet, and follow the devices of the snapshot."""
        create = await asyncio.to_thread(load_device_plugin)
        plugin = self._plugin = create(self._context)
        clock = self._context.clock
        tasks.start_forever(plugin.run, "device plug-in", clock)
        tasks.start_forever(self._follow_devices, "offered devices", clock)
        tasks.start_forever(partial(self._follow_pods, plugin), "pods of the device plug-in", clock)

    def statistics(self) -> tuple[ResourceStatistics, ...]:
        """Return the figures of each resource."""
        return self._plugin.statistics() if self._plugin is not None else ()

    def devices_changed(self) -> None:
        """Update the lists of devices, and report new problems of the offered devices."""
        if self._plugin is None:
            return
        self._plugin.notify_devices_changed()
        problems = frozenset(self._allocator.problems(self._store.current))
        new = problems - self.problems
        for _, problem in sorted(new, key=lambda one: (one[0], one[1].reason)):
            self._context.messages.put(EventReported(problem.reason, problem.message))
        self.problems = problems

    async def _follow_pods(self, plugin: DevicePlugin) -> None:
        """Update the lists of devices after each change of pods.

        The kubelet admits a pod milliseconds after the end of the pod before it, and only while
        the list has healthy devices.
        """
        with self._store.subscribe("cluster.pods", "cluster.deleted_pods") as changes:
            while True:
                await changes.wait()
                plugin.notify_devices_changed()

    async def _follow_devices(self) -> None:
        with self._store.subscribe("devices") as refreshes:
            while True:
                await refreshes.wait()
                self.devices_changed()


class ContainerService:
    """Starts and stops all services for containers. Belongs to the loop thread."""

    def __init__(
        self,
        collector: Executor,
        clock: Clock,
        loops: ContainerLoops,
        runtime: RuntimeService | None,
        device_plugin: DevicePluginService | None,
        slices: SliceManager | None,
        evictions: EvictionService,
    ) -> None:
        """Start nothing yet; a service that is `None` is switched off, as on a recorded host."""
        self._collector = collector
        self._clock = clock
        self._loops = loops
        self._runtime = runtime
        self._device_plugin = device_plugin
        self._slices = slices
        self.evictions = evictions
        self._tasks = BackgroundTasks()

    def scheduled_loops(self) -> Iterator[ScheduledLoop]:
        """Return the loops of the collector thread."""
        return self._loops.scheduled_loops()

    async def start(self) -> None:
        """Read the host's devices, then answer runtime and kubelet, even if the read hangs."""
        event_loop = asyncio.get_running_loop()
        # before the first request: each answer depends on what the host has
        read = event_loop.run_in_executor(self._collector, self._loops.allocations.run_first)
        finished, _ = await asyncio.wait({read}, timeout=FIRST_READ_DEADLINE_S)
        if not finished:
            log.warning("first_look_late", extra={"waited_s": FIRST_READ_DEADLINE_S})
        if self._runtime is not None:
            self._runtime.start(self._tasks)
        if self._device_plugin is not None:
            await self._device_plugin.start(self._tasks)
        if self._slices is not None:
            self._tasks.start_forever(self._slices.run, "slices", self._clock)

    def status(self) -> ContainerServiceStatus:
        """Return the state of every part. For any thread."""
        runtime, plugin, loops = self._runtime, self._device_plugin, self._loops
        pod_files, cdi_files = loops.pod_files, loops.cdi_files
        problems = plugin.problems if plugin is not None else ()
        return ContainerServiceStatus(
            nri=runtime.statistics if runtime is not None else None,
            hooks=runtime.hook_metrics() if runtime is not None else (),
            refusals=runtime.refusals() if runtime is not None else (),
            plugin=plugin.statistics() if plugin is not None else (),
            files_written=pod_files.files_written if pod_files is not None else 0,
            offer_problems=tuple(sorted(problems, key=lambda one: one[0])),
            files_left=pod_files.files_left if pod_files is not None else None,
            file_problems=pod_files.problems() if pod_files is not None else None,
            cdi_problem=cdi_files.problem if cdi_files is not None else None,
            enforcement=pod_files.counters() if pod_files is not None else None,
            reclaimed=self._slices.reclaimed_count if self._slices is not None else 0,
            evictions=self.evictions.status(),
        )

    def audit(self) -> tuple[AuditRecord, ...]:
        """Return the last changes of files on this host, oldest first."""
        return self._loops.pod_files.audit() if self._loops.pod_files is not None else ()

    @property
    def explanations(self) -> Explanations:
        """Return the source of explanations for files and containers. For the collector thread."""
        return self._loops.explanations

    async def stop(self) -> None:
        """End all connections and tasks; containers keep their adjustments."""
        if self._runtime is not None:
            await self._runtime.stop()
        await self._tasks.stop()

    def close(self) -> None:
        """Close the files of pods; call it when the collector thread has ended."""
        if self._loops.pod_files is not None:
            self._loops.pod_files.close()


class ContainerServiceBuilder:
    """Builds the services for containers that the settings and the host allow."""

    def __init__(
        self,
        inputs: AgentInputs,
        vendor_manager: VendorManager,
        collector: Executor,
        messages: MessageQueue,
    ) -> None:
        """Choose the hooks; `collector` is the thread that reads and writes files."""
        self._inputs = inputs
        self._vendor_manager = vendor_manager
        self._collector = collector
        self._messages = messages
        self._own_uid = os.environ.get(OWN_POD_UID, "")
        self._devices_hook = DevicesHook(
            inputs.vendors,
            inputs.settings.hooks,
            self._own_uid,
            checks_stored_nodes=inputs.settings.device_plugin.check_occupancy,
        )
        eviction = inputs.settings.enforce.eviction
        runtime = ContainerRuntime(eviction.runtime_socket) if eviction.kill_fallback else None
        self._evictions = EvictionService(messages, inputs.clock, runtime)

    def build(self, pods_wanted: asyncio.Event | None) -> ContainerService:
        """Return all services for containers.

        In a cluster, `pods_wanted` requests a new list of the kubelet's pods; else it is `None`.
        """
        inputs, settings = self._inputs, self._inputs.settings
        in_cluster = pods_wanted is not None
        hooks = (
            self._devices_hook,
            *node_hooks(
                reads_kubelet=in_cluster and settings.kubelet.enabled,
                hooks=settings.hooks,
                reacts_to_pressure=settings.enforce.cpu_suppression.pressure,
            ),
        )
        modes = hook_modes(hooks, settings.enforce)
        attach = settings.nri.attach
        uses_runtime = inputs.is_live and (attach == "on" or (attach == "auto" and in_cluster))
        uses_plugin = inputs.is_live and bool(settings.device_plugin.vendors)
        pod_files = None
        if inputs.is_live and (in_cluster or uses_runtime):
            pod_files = self._build_pod_files(
                hooks,
                modes,
                strategies(
                    settings.enforce,
                    self._own_uid,
                    scales_quota=modes.get(NormalizationHook.name) == ON,
                ),
            )
        runtime = slices = None
        if uses_runtime and pod_files is not None:
            runtime = self._build_runtime(hooks, modes, pod_files)
        if pod_files is not None and modes[DevicesHook.name] == ON:
            slices = self._build_slices()
        writes_cdi = (pod_files is not None or uses_plugin) and settings.cdi.write
        loops = ContainerLoops(
            allocations=self._build_allocation_monitor(),
            explanations=Explanations(inputs.store, self._devices_hook, pod_files),
            pod_files=pod_files,
            cdi_files=self._build_cdi_files() if writes_cdi else None,
            kubelet_devices=(
                self._build_kubelet_devices() if inputs.is_live and not uses_plugin else None
            ),
            pod_files_interval_s=settings.enforce.interval_s,
        )
        device_plugin = None
        if uses_plugin:
            device_plugin = self._build_device_plugin(pods_wanted or asyncio.Event())
        return ContainerService(
            self._collector,
            inputs.clock,
            loops,
            runtime,
            device_plugin,
            slices,
            self._evictions,
        )

    def _build_kubelet_devices(self) -> KubeletDeviceMonitor:
        folder = plugin_folder(self._inputs.settings.kubelet.root_dir)
        return KubeletDeviceMonitor(self._inputs.store, self._inputs.clock, folder)

    def _build_allocation_monitor(self) -> AllocationMonitor:
        inputs, settings = self._inputs, self._inputs.settings
        verifier = None
        if inputs.is_live and settings.proof.enabled:
            verifier = Verifier(
                inputs.node_files,
                self._devices_hook,
                inputs.clock,
                exempt=self._is_exempt,
                injection=settings.device_plugin.injection,
            )
        return AllocationMonitor(
            inputs.store,
            inputs.clock,
            build_host_device_reader(inputs),
            AllocationIndex(slicing_vendors(inputs.vendors).values()),
            verifier,
        )

    def _is_exempt(self, pod: PodSandbox) -> bool:
        """Return whether devices in a pod without an allocation are not reported."""
        return self._inputs.settings.hooks.ungranted == "off" or self._devices_hook.is_protected(
            pod
        )

    def _build_pod_files(
        self,
        hooks: tuple[Hook, ...],
        modes_of_hooks: Mapping[str, str],
        strategies: tuple[AnyStrategy, ...],
    ) -> PodFileUpdater:
        inputs, writer = self._inputs, StateWriter("ledger")
        settings = inputs.settings
        modes = strategy_modes((strategy.name for strategy in strategies), settings.enforce)
        engine = QosEngine(
            strategies,
            modes,
            settings.collect.interval_s,
            settings.api.slo_stale_s,
            settings.enforce.brake,
            settings.enforce.protected_namespaces,
        )
        boot_id = inputs.store.current.node.boot_id
        reconciler = Reconciler(
            root=LiveHostFiles(),
            ledger=create_ledger(settings.node.state_dir, boot_id, writer),
            hooks=hooks,
            modes={**modes_of_hooks, **modes},
            clock=inputs.clock,
            slo_stale_s=settings.api.slo_stale_s,
            audits=create_audit_trail(settings.enforce, settings.node.state_dir),
        )
        locator = build_layout_locator(inputs, inputs.host_source.files)
        pressure = None
        if settings.enforce.cpu_suppression.pressure and modes.get(CPU_SUPPRESSION, OFF) != OFF:
            pressure = PressureMonitor(inputs.store, inputs.clock)
        resctrl = ResctrlManager(
            ledger=reconciler.ledger,
            clock=inputs.clock,
            mode=strategy_modes((RESCTRL_STRATEGY,), settings.enforce)[RESCTRL_STRATEGY],
            settings=settings.resctrl,
            slo_stale_s=settings.api.slo_stale_s,
            protected_namespaces=settings.enforce.protected_namespaces,
        )
        return PodFileUpdater(
            inputs.store,
            inputs.clock,
            locator,
            Enforcers(
                reconciler=reconciler,
                strategies=StrategyRunner(
                    engine,
                    self._evictions,
                    MemoryReclaimer(LiveHostFiles()),
                    EvictionHistoryFile(settings.node.state_dir, boot_id, inputs.state_writer),
                ),
                resctrl=resctrl,
                ledger_writer=writer,
            ),
            self._messages,
            pressure,
        )

    def _build_cdi_files(self) -> CdiFileUpdater:
        inputs = self._inputs
        return CdiFileUpdater(inputs.settings, inputs.store, inputs.vendors, inputs.node_files)

    def _build_runtime(
        self, hooks: tuple[Hook, ...], modes: Mapping[str, str], pod_files: PodFileUpdater
    ) -> RuntimeService:
        inputs = self._inputs
        adjuster = ContainerAdjuster(
            hooks,
            modes,
            inputs.store,
            inputs.clock,
            messages=self._messages,
            pod_files=pod_files,
            files=self._collector,
            index=self._devices_hook.index,
        )
        return RuntimeService(
            inputs.settings.nri, inputs.settings.node.run_dir, inputs.clock, adjuster, inputs.store
        )

    def _build_device_plugin(self, pods_wanted: asyncio.Event) -> DevicePluginService:
        inputs, store, clock = self._inputs, self._inputs.store, self._inputs.clock
        allocator = Allocator(inputs.settings.device_plugin, inputs.vendors)

        context = PluginContext(
            folder=plugin_folder(inputs.settings.kubelet.root_dir),
            store=store,
            backend=allocator,
            clock=clock,
            socket_prefixes={
                name: vendor.socket_prefixes
                for name, vendor in kubelet_vendors(inputs.vendors).items()
            },
            state_dir=inputs.settings.node.state_dir,
            boot_id=store.current.node.boot_id,
            state_writer=inputs.state_writer,
            messages=self._messages,
            pods_wanted=pods_wanted,
        )
        return DevicePluginService(store, allocator, context)

    def _build_slices(self) -> SliceManager:
        inputs = self._inputs
        return SliceManager(
            inputs.store,
            self._vendor_manager,
            self._messages,
            inputs.clock,
            slicers=slicing_vendors(inputs.vendors),
            grace_s=inputs.settings.proof.grace_s,
        )


def load_device_plugin() -> type[DevicePlugin]:
    """Import the device plug-in with gRPC: 100 ms and 12 MB, so on a thread and only if used."""
    from agent.deviceplugin.plugin import DevicePlugin  # noqa: PLC0415 - grpc

    return DevicePlugin


def _make_lock_folder(folder: str) -> str:
    """Return the lock file that excludes a second agent from the runtime; create its folder."""
    if not folder:
        return ""
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
    except OSError as error:
        log.warning("no_lock", extra={"path": folder, "error": error.strerror})
        return ""
    return os.path.join(folder, NRI_LOCK_FILE)
