"""Our CDI files kept as the devices are, on the collector thread."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from agent.cdi.devices import kinds_in_use, wanted
from agent.cdi.driver import DriverFiles, driver_of
from agent.cdi.keeping import CdiFolder
from agent.daemon.schedule import Timed
from agent.errors import PublishError
from agent.loop import Loop
from agent.model.selfcheck import Check
from agent.model.snapshot import NodeSnapshot
from agent.node.parts import Parts

log = logging.getLogger(__name__)

KEEP_S = 2.0


class Naming:
    """Writes only what differs; a folder that cannot be written is told of, and tried again."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._folder = CdiFolder(parts.settings.cdi.dir)
        self._seen: tuple[object, ...] = ()
        self._error = ""
        self._left_out = ""

    def timed(self) -> Iterator[Timed]:
        """Return the loop; it belongs to the collector thread."""
        yield Timed(Loop("cdi-files", KEEP_S, self.keep))

    def keep(self) -> None:
        """Have the files say what the devices are now; raise `PublishError`."""
        now = self._parts.store.current
        inputs = (now.means.value, now.devices.value, now.served.value, now.grants.value)
        if not self._error and self._same(inputs):
            return
        if now.devices.taken_s is None or now.devices.value.awaited:
            return  # names of devices whose vendor has not answered yet must not go
        found = wanted(now, self._parts.vendors, self._driver(now))
        self._left_out = "; ".join(f"{one.reason}: {one.message}" for _, one in found.problems)
        try:
            kept = self._folder.keep(found.files, kinds_in_use(now))
        except PublishError as error:
            self._error = str(error)
            raise
        self._error, self._seen = "", inputs
        if kept.written or kept.removed:
            fields = {"written": kept.written, "removed": kept.removed}
            log.info("cdi_files_changed", extra=fields)

    def _driver(self, now: NodeSnapshot) -> DriverFiles | None:
        return driver_of(now, self._parts.opened.files) if self._parts.settings.cdi.nvidia else None

    def _same(self, inputs: tuple[object, ...]) -> bool:
        if len(self._seen) != len(inputs):
            return False
        return all(one is other for one, other in zip(inputs, self._seen, strict=True))

    def check(self) -> Check:
        """Say whether runtimes can be told our devices' names."""
        words = self._error or self._left_out
        return Check(name="cdi-files", ok=not words, message=words, gates_ready=False)
