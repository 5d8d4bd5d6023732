"""What the host has for containers.

Which allocations hold, whether containers have them, and CDI files; on the collector thread.

Our CDI files kept as the devices are, on the collector thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from agent.allocation.cdi_files import AGENT_CDI_KINDS, build_cdi_files, kinds_in_use
from agent.allocation.cdi_folder import CdiFolder
from agent.allocation.check import check_allocations
from agent.allocation.host_devices import HostDeviceReader
from agent.allocation.index import AllocationIndex
from agent.allocation.nvidia_driver_files import NvidiaDriverFiles, find_driver_files
from agent.app.context import AppContext
from agent.app.threads import ScheduledLoop
from agent.clock import Clock
from agent.config.containers import DevicePluginSettings
from agent.containers.devices import DevicesHook
from agent.deviceplugin.allocations import CheckpointStamp, read_device_checkpoint
from agent.deviceplugin.kubelet_folder import plugin_folder
from agent.deviceplugin.resource_builder import parse_time_slicing
from agent.errors import BadConfig, HostFileError, ParseError, PublishError
from agent.loop import Loop
from agent.snapshot.device_plugin import KubeletAllocation
from agent.snapshot.node import NodeSnapshot, SnapshotMemo, SnapshotStore, are_same_objects
from agent.snapshot.part import SnapshotPart
from agent.snapshot.vendor import slicing_vendors
from agent.verification.schedule import IsExempt, exempt_none
from agent.verification.verifier import Verifier
from agent.workers.load import vendor_settings

HOST_DEVICES_INTERVAL_S = 2.0  # a node or a CDI file that comes later is known that soon

ALLOCATIONS_INTERVAL_S = 0.5

VERIFICATION_INTERVAL_S = 1.0


def host_device_reader(parts: AppContext) -> HostDeviceReader:
    """Return the reader of this host for the vendors that are wanted."""
    own = vendor_settings(parts.settings, parts.vendors)
    return HostDeviceReader(parts.host_files(), parts.vendors, own, parts.clock, parts.kubelet_root)


class AllocationMonitor:
    """Fills the snapshot's parts about containers; each run is cheap while nothing changes."""

    def __init__(
        self, parts: AppContext, hook: DevicesHook, *, proves: bool, exempt: IsExempt = exempt_none
    ) -> None:
        """`proves`: also look into running containers, which only a live host has.

        Pods without a grant that are `exempt` are not looked into.
        """
        self._store: SnapshotStore = parts.store
        self._clock: Clock = parts.clock
        self._host_device_reader = host_device_reader(parts)
        self._verifier = (
            Verifier(
                parts.host_files(),
                hook,
                parts.clock,
                exempt=exempt,
                injection=parts.settings.device_plugin.injection,
            )
            if proves
            else None
        )
        index = AllocationIndex(slicing_vendors(parts.vendors).values())
        self._check = SnapshotMemo(_check_inputs, lambda now, _: check_allocations(now, index))
        self._first_loops = (
            ScheduledLoop(Loop("means", HOST_DEVICES_INTERVAL_S, self.read_host_devices)),
            ScheduledLoop(Loop("grants", ALLOCATIONS_INTERVAL_S, self.check_allocations)),
        )

    def scheduled_loops(self) -> Iterator[ScheduledLoop]:
        """Return the loops; all belong to the collector thread."""
        yield from self._first_loops
        if self._verifier is not None:
            yield ScheduledLoop(
                Loop("proof", VERIFICATION_INTERVAL_S, self._verify), VERIFICATION_INTERVAL_S
            )

    def run_first(self) -> None:
        """Look once before anybody asks; what fails is told as any run's failure."""
        for timed in self._first_loops:
            timed.loop.step(self._clock.monotonic())

    def read_host_devices(self) -> None:
        """Read what the host has."""
        view = self._host_device_reader.read(self._store.current)
        self._store.put(means=SnapshotPart(view, self._clock.monotonic()))

    def check_allocations(self) -> None:
        """Check all grants, if anything they are judged by is another."""
        view = self._check(self._store.current)
        self._store.put(grants=SnapshotPart(view, self._clock.monotonic()))

    def _verify(self) -> None:
        if self._verifier is None:
            return
        view = self._verifier.run_once(self._store.current)
        if view != self._store.current.proof.value:
            self._store.put(proof=SnapshotPart(view, self._clock.monotonic()))


def _check_inputs(now: NodeSnapshot) -> tuple[object, ...]:
    """Return what `check_allocations` depends on."""
    cluster = now.cluster
    return (
        cluster.pods,
        cluster.has_pod_list,
        cluster.deleted_pods,
        now.runtime.value,
        now.devices.value,
        now.served.value.held,
    )


log = logging.getLogger(__name__)

CDI_FILES_INTERVAL_S = 2.0


class CdiFileUpdater:
    """Writes only what differs; a folder that cannot be written is told of, and tried again.

    Names that pods may hold stay. The kubelet's checkpoint is read here too: at a start nobody has
    read it yet, and pods keep what they were given by a device plug-in that was turned off since.
    """

    def __init__(self, parts: AppContext) -> None:
        self._context = parts
        self._folder = CdiFolder(parts.settings.cdi.dir)
        self._checkpoints = plugin_folder(parts.settings.kubelet.root_dir)
        self._renamed_resources = _renamed_resources(parts.settings.device_plugin)
        self._checkpoint: CheckpointStamp | None = None
        self._held_devices: tuple[KubeletAllocation, ...] | None = None  # None: nobody can tell
        self._last_inputs: tuple[object, ...] = ()
        self._error = ""
        self._left_out_message = ""

    def scheduled_loops(self) -> Iterator[ScheduledLoop]:
        """Return the loop; it belongs to the collector thread."""
        yield ScheduledLoop(Loop("cdi-files", CDI_FILES_INTERVAL_S, self.update_files))

    def update_files(self) -> None:
        """Have the files say what the devices are now; raise `PublishError`."""
        now = self._context.store.current
        held = self._read_held_devices()
        inputs = (now.means.value, now.devices.value, now.served.value, now.grants.value, held)
        if not self._error and are_same_objects(inputs, self._last_inputs):
            return
        if now.devices.taken_s is None or now.devices.value.awaited:
            return  # names of devices whose vendor has not answered yet must not go
        in_use = (
            AGENT_CDI_KINDS if held is None else kinds_in_use(now, held, self._renamed_resources)
        )
        try:
            found = build_cdi_files(now, self._context.vendors, self._driver(now))
            kept = self._folder.synchronize(found.files, in_use)
        except (PublishError, HostFileError) as error:
            self._error = str(error)
            raise
        self._error, self._last_inputs = "", inputs
        self._left_out_message = "; ".join(
            f"{one.reason}: {one.message}" for _, one in found.problems
        )
        if kept.written or kept.removed:
            fields = {"written": kept.written, "removed": kept.removed}
            log.info("cdi_files_changed", extra=fields)

    def _read_held_devices(self) -> tuple[KubeletAllocation, ...] | None:
        """Return what pods hold by the kubelet's checkpoint; `None` if it cannot be read."""
        try:
            found = read_device_checkpoint(self._checkpoints, self._checkpoint)
        except (FileNotFoundError, NotADirectoryError):
            self._checkpoint, self._held_devices = None, ()
        except (ParseError, OSError) as error:
            if self._held_devices is not None:
                fields = {"folder": self._checkpoints, "error": str(error)[:200]}
                log.warning("cdi_names_all_kept", extra=fields)
            self._checkpoint = self._held_devices = None
        else:
            if found is not None:
                self._checkpoint, self._held_devices = found
        return self._held_devices

    def _driver(self, now: NodeSnapshot) -> NvidiaDriverFiles | None:
        return (
            find_driver_files(now, self._context.host_files())
            if self._context.settings.cdi.nvidia
            else None
        )

    @property
    def problem(self) -> str:
        """Return why runtimes cannot find all devices in CDI files; empty if they can."""
        return self._error or self._left_out_message


def _renamed_resources(settings: DevicePluginSettings) -> dict[str, str]:
    """Return names of resources that settings give, with those that they stand for."""
    try:
        rows = {row.target_name: row.resource for row in parse_time_slicing(settings)}
    except BadConfig:  # who serves the kubelet refuses them
        rows = {}
    return {**rows, settings.rdma_resource: "rdma/hca"}
