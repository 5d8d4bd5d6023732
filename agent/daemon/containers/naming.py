"""Our CDI files kept as the devices are, on the collector thread."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from agent.cdi.devices import KINDS, kinds_in_use, wanted
from agent.cdi.driver import DriverFiles, driver_of
from agent.cdi.keeping import CdiFolder
from agent.config.containers import DevicePluginSettings
from agent.daemon.schedule import Timed
from agent.deviceplugin.serve.holding import File, read_checkpoint
from agent.deviceplugin.serve.names import plugin_folder
from agent.deviceplugin.sharing import sharing_of
from agent.errors import BadConfig, HostFileError, ParseError, PublishError
from agent.loop import Loop
from agent.model.runtime.served import Held
from agent.model.selfcheck import Check
from agent.model.snapshot import NodeSnapshot
from agent.node.parts import Parts

log = logging.getLogger(__name__)

KEEP_S = 2.0


class Naming:
    """Writes only what differs; a folder that cannot be written is told of, and tried again.

    Names that pods may hold stay. The kubelet's checkpoint is read here too: at a start nobody has
    read it yet, and pods keep what they were given by a device plug-in that was turned off since.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._folder = CdiFolder(parts.settings.cdi.dir)
        self._checkpoints = plugin_folder(parts.settings.kubelet.root_dir)
        self._renamed = _renamed(parts.settings.device_plugin)
        self._checkpoint: File | None = None
        self._held: tuple[Held, ...] | None = None  # None: nobody can tell
        self._seen: tuple[object, ...] = ()
        self._error = ""
        self._left_out = ""

    def timed(self) -> Iterator[Timed]:
        """Return the loop; it belongs to the collector thread."""
        yield Timed(Loop("cdi-files", KEEP_S, self.keep))

    def keep(self) -> None:
        """Have the files say what the devices are now; raise `PublishError`."""
        now = self._parts.store.current
        held = self._read()
        inputs = (now.means.value, now.devices.value, now.served.value, now.grants.value, held)
        if not self._error and self._same(inputs):
            return
        if now.devices.taken_s is None or now.devices.value.awaited:
            return  # names of devices whose vendor has not answered yet must not go
        in_use = KINDS if held is None else kinds_in_use(now, held, self._renamed)
        try:
            found = wanted(now, self._parts.vendors, self._driver(now))
            kept = self._folder.keep(found.files, in_use)
        except (PublishError, HostFileError) as error:
            self._error = str(error)
            raise
        self._error, self._seen = "", inputs
        self._left_out = "; ".join(f"{one.reason}: {one.message}" for _, one in found.problems)
        if kept.written or kept.removed:
            fields = {"written": kept.written, "removed": kept.removed}
            log.info("cdi_files_changed", extra=fields)

    def _read(self) -> tuple[Held, ...] | None:
        """Return what pods hold by the kubelet's checkpoint; `None` if it cannot be read."""
        try:
            found = read_checkpoint(self._checkpoints, self._checkpoint)
        except (FileNotFoundError, NotADirectoryError):
            self._checkpoint, self._held = None, ()
        except (ParseError, OSError) as error:
            if self._held is not None:
                fields = {"folder": self._checkpoints, "error": str(error)[:200]}
                log.warning("cdi_names_all_kept", extra=fields)
            self._checkpoint = self._held = None
        else:
            if found is not None:
                self._checkpoint, self._held = found
        return self._held

    def _driver(self, now: NodeSnapshot) -> DriverFiles | None:
        return driver_of(now, self._parts.host()) if self._parts.settings.cdi.nvidia else None

    def _same(self, inputs: tuple[object, ...]) -> bool:
        if len(self._seen) != len(inputs):
            return False
        return all(one is other for one, other in zip(inputs, self._seen, strict=True))

    def check(self) -> Check:
        """Say whether runtimes can be told our devices' names."""
        words = self._error or self._left_out
        return Check(name="cdi-files", ok=not words, message=words, gates_ready=False)


def _renamed(settings: DevicePluginSettings) -> dict[str, str]:
    """Return names of resources that settings give, with those that they stand for."""
    try:
        rows = {row.renamed: row.resource for row in sharing_of(settings)}
    except BadConfig:  # who serves the kubelet refuses them
        rows = {}
    return {**rows, settings.rdma_resource: "rdma/hca"}
