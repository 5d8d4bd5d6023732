"""Loops of the collector thread about allocations, verification and CDI files."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from agent.allocation.cdi_files import build_cdi_files, kinds_in_use
from agent.allocation.cdi_folder import CdiFolder
from agent.allocation.check import check_allocations
from agent.allocation.host_devices import HostDeviceReader
from agent.allocation.index import AllocationIndex
from agent.app.threads import ScheduledLoop
from agent.clock import Clock
from agent.config.containers import CdiSettings, DevicePluginSettings
from agent.config.settings import Settings
from agent.deviceplugin.allocations import CheckpointStamp, read_device_checkpoint
from agent.deviceplugin.kubelet_folder import plugin_folder
from agent.deviceplugin.resource_builder import parse_time_slicing
from agent.errors import BadConfig, HostFileError, ParseError, PublishError
from agent.loop import Loop
from agent.snapshot.device_plugin import KubeletAllocation
from agent.snapshot.edits import CdiEdits
from agent.snapshot.host_files import HostFiles
from agent.snapshot.node import NodeSnapshot, SnapshotMemo, SnapshotStore, are_same_objects
from agent.snapshot.part import SnapshotPart
from agent.snapshot.vendor import DeviceVendor, SuppliesDriverFiles
from agent.verification.verifier import Verifier
from agent.workers.load import cdi_namings

log = logging.getLogger(__name__)

HOST_DEVICES_INTERVAL_S = 2.0  # the longest delay for a new device node or CDI file
ALLOCATIONS_INTERVAL_S = 0.5
VERIFICATION_INTERVAL_S = 1.0
CDI_FILES_INTERVAL_S = 2.0
KUBELET_DEVICES_INTERVAL_S = 5.0


def read_driver_edits(
    settings: CdiSettings,
    vendors: Mapping[str, DeviceVendor],
    files: HostFiles,
    now: NodeSnapshot,
) -> dict[str, CdiEdits]:
    """Return, by vendor, the driver files for the CDI files that the settings enable.

    Blocks; raises `HostFileError`.
    """
    edits: dict[str, CdiEdits] = {}
    for name, vendor in vendors.items():
        if isinstance(vendor, SuppliesDriverFiles) and settings.is_enabled(name):
            means = now.host_devices.value.vendors.get(name)
            driver_edits = vendor.driver_edits(files, means.driver_version if means else None)
            if driver_edits is not None:
                edits[name] = driver_edits
    return edits


class AllocationMonitor:
    """Fills the snapshot's parts about containers; each run is cheap while nothing changes."""

    def __init__(
        self,
        store: SnapshotStore,
        clock: Clock,
        reader: HostDeviceReader,
        index: AllocationIndex,
        verifier: Verifier | None,
    ) -> None:
        """Without `verifier`, as on a recording, running containers are not verified."""
        self._store = store
        self._clock = clock
        self._host_device_reader = reader
        self._verifier = verifier
        self._check = SnapshotMemo(_check_inputs, lambda now: check_allocations(now, index))
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
        """Read and check once before the runtime and the kubelet ask."""
        for loop in self._first_loops:
            loop.loop.step(self._clock.monotonic())

    def read_host_devices(self) -> None:
        """Read device nodes, drivers and CDI files of the host."""
        view = self._host_device_reader.read(self._store.current)
        self._store.put(host_devices=SnapshotPart(view, self._clock.monotonic()))

    def check_allocations(self) -> None:
        """Check all allocations if an input of the check changed."""
        view = self._check(self._store.current)
        self._store.put(allocations=SnapshotPart(view, self._clock.monotonic()))

    def _verify(self) -> None:
        if self._verifier is None:
            return
        view = self._verifier.run_once(self._store.current)
        if view != self._store.current.verification.value:
            self._store.put(verification=SnapshotPart(view, self._clock.monotonic()))


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


class KubeletDeviceMonitor:
    """Reads which devices the kubelet gave to which containers, by its checkpoint.

    For nodes on which other device plug-ins serve the kubelet: the labels of device series depend
    on it, and no decision does. Belongs to the collector thread.
    """

    def __init__(self, store: SnapshotStore, clock: Clock, folder: str) -> None:
        self._store = store
        self._clock = clock
        self._folder = folder
        self._stamp: CheckpointStamp | None = None
        self._error = ""

    def scheduled_loops(self) -> Iterator[ScheduledLoop]:
        """Return the loop that reads."""
        yield ScheduledLoop(Loop("kubelet-devices", KUBELET_DEVICES_INTERVAL_S, self.read))

    def read(self) -> None:
        """Read the checkpoint if it has changed. A node without the file has no allocations."""
        try:
            checkpoint = read_device_checkpoint(self._folder, self._stamp)
        except FileNotFoundError:
            self._put(None, ())
        except (OSError, ParseError) as error:
            if not self._error:
                log.warning("kubelet_devices_not_read", extra={"error": str(error)[:200]})
            self._put(None, (), str(error)[:200])
        else:
            if checkpoint is not None:
                self._put(*checkpoint)

    def _put(
        self,
        stamp: CheckpointStamp | None,
        allocations: tuple[KubeletAllocation, ...],
        error: str = "",
    ) -> None:
        self._stamp, self._error = stamp, error
        part = SnapshotPart(allocations, self._clock.monotonic(), error)
        self._store.put(kubelet_devices=part)


class CdiFileUpdater:
    """Writes the CDI files that differ, and tries again after an error.

    It keeps names that pods may use. It reads the kubelet's checkpoint itself: at a start nothing
    else has read it, and pods keep devices of a device plug-in that was switched off meanwhile.
    """

    def __init__(
        self,
        settings: Settings,
        store: SnapshotStore,
        vendors: Mapping[str, DeviceVendor],
        files: HostFiles,
    ) -> None:
        """`files` are those of the host as its drivers see them."""
        self._store = store
        self._vendors = vendors
        self._files = files
        self._cdi_settings = settings.cdi
        self._namings = cdi_namings()
        self._all_kinds = frozenset(naming.kind for naming in self._namings.values())
        self._folder = CdiFolder(settings.cdi.dir)
        self._checkpoints = plugin_folder(settings.kubelet.root_dir)
        self._renamed_resources = _renamed_resources(settings.device_plugin)
        self._checkpoint: CheckpointStamp | None = None
        self._held_devices: tuple[KubeletAllocation, ...] | None = None  # None: unknown
        self._last_inputs: tuple[object, ...] = ()
        self._error = ""
        self._left_out_message = ""

    def scheduled_loops(self) -> Iterator[ScheduledLoop]:
        """Return the loop; it belongs to the collector thread."""
        yield ScheduledLoop(Loop("cdi-files", CDI_FILES_INTERVAL_S, self.update_files))

    def update_files(self) -> None:
        """Write the CDI files of the present devices; raise `PublishError`."""
        now = self._store.current
        allocations = self._read_held_devices()
        inputs = (
            now.host_devices.value,
            now.devices.value,
            now.served.value,
            now.allocations.value,
            allocations,
        )
        if not self._error and are_same_objects(inputs, self._last_inputs):
            return
        if now.devices.taken_s is None or now.devices.value.awaited:
            return  # the names of devices whose vendor has not answered yet must stay
        in_use = (
            self._all_kinds
            if allocations is None
            else kinds_in_use(now, self._namings, allocations, self._renamed_resources)
        )
        try:
            edits = read_driver_edits(self._cdi_settings, self._vendors, self._files, now)
            built = build_cdi_files(now, self._vendors, edits)
            changes = self._folder.synchronize(built.files, in_use)
        except (PublishError, HostFileError) as error:
            self._error = str(error)
            raise
        self._error, self._last_inputs = "", inputs
        self._left_out_message = "; ".join(
            f"{one.reason}: {one.message}" for _, one in built.problems
        )
        if changes.written or changes.removed:
            fields = {"written": changes.written, "removed": changes.removed}
            log.info("cdi_files_changed", extra=fields)

    def _read_held_devices(self) -> tuple[KubeletAllocation, ...] | None:
        """Return the devices of pods in the kubelet's checkpoint; `None` if it cannot be read."""
        try:
            checkpoint = read_device_checkpoint(self._checkpoints, self._checkpoint)
        except (FileNotFoundError, NotADirectoryError):
            self._checkpoint, self._held_devices = None, ()
        except (ParseError, OSError) as error:
            if self._held_devices is not None:
                fields = {"folder": self._checkpoints, "error": str(error)[:200]}
                log.warning("cdi_names_all_kept", extra=fields)
            self._checkpoint = self._held_devices = None
        else:
            if checkpoint is not None:
                self._checkpoint, self._held_devices = checkpoint
        return self._held_devices

    @property
    def problem(self) -> str:
        """Return why runtimes cannot find all devices in CDI files; empty if they can."""
        return self._error or self._left_out_message


def _renamed_resources(settings: DevicePluginSettings) -> dict[str, str]:
    """Return the resource names of the settings, each with the name that it replaces."""
    try:
        rows = {row.target_name: row.resource for row in parse_time_slicing(settings)}
    except BadConfig:  # the device plug-in reports it
        rows = {}
    return {**rows, settings.rdma_resource: "rdma/hca"}
