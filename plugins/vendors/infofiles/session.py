"""Reads a folder of device-info files inside the agent; keeps the last valid content."""

from __future__ import annotations

import errno

from msgspec.structs import replace

from agent.errors import HostFileError, NotSupported, ParseError
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory, Problem
from agent.snapshot.vendor import LIVE_CONTEXT, SessionContext
from agent.wire_formats.device_info import DIRECTORY, OWN_FILE
from plugins.vendors.infofiles.file_format import decode_array
from plugins.vendors.infofiles.inventory import NAME, inventory_of
from plugins.vendors.infofiles.settings import InfofilesSettings

MAX_FILES = 64
MAX_BYTES = 1 << 20  # of one file; a thousand cards need half of it
UNREADABLE = "DeviceInfoUnreadable"

Content = tuple[tuple[str, bytes], ...]


class InfofilesSession:
    """Reads the folder at each discovery, and reports changes as events."""

    def __init__(
        self,
        host: HostFiles,
        settings: InfofilesSettings,
        context: SessionContext = LIVE_CONTEXT,
    ) -> None:
        self._host = host
        self._directory = (settings.directory or DIRECTORY).rstrip("/")
        self._is_replay = context.is_replay
        self._last = Inventory(vendor=NAME)
        self._last_content: Content | str | None = None

    def discover(self) -> Inventory:
        """Return what the files describe; if one cannot be read, the last valid inventory."""
        try:
            content = self._content()
            self._last_content = content
            self._last = inventory_of([(name, _decode(name, data)) for name, data in content])
        except (HostFileError, ParseError) as error:
            if isinstance(error, HostFileError):
                self._last_content = str(error)
            problem = Problem(reason=UNREADABLE, message=f"what was known before stays: {error}")
            return replace(self._last, problems=(*self._last.problems, problem))
        return self._last

    def sample(self) -> tuple[DeviceSample, ...]:
        """Raise `NotSupported`: the files contain no usage."""
        raise NotSupported("device-info files tell of no usage")

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Return an event if the files differ from those of the last discovery; never wait."""
        if self._is_replay:
            raise NotSupported(f"a recorded host has no events, not even within {wait_s:g} s")
        try:
            content: Content | str = self._content()
        except HostFileError as error:
            content = str(error)
        if content == self._last_content:
            return ()
        return (DeviceEvent(key="", reason="DeviceInfoChanged", message=self._directory),)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _content(self) -> Content:
        """Read all files of other programs; hidden ones are being written."""
        names = (name for name in self._host.names(self._directory) if not name.startswith("."))
        content: list[tuple[str, bytes]] = []
        for name in [name for name in names if name != OWN_FILE][:MAX_FILES]:
            try:
                data = self._host.read(f"{self._directory}/{name}", MAX_BYTES + 1)
            except HostFileError as error:
                if error.errno in (errno.EISDIR, errno.ENOENT, errno.ENXIO):
                    continue  # a folder, a file that was just replaced, or a socket
                raise
            content.append((name, data))
        return tuple(content)


def _decode(name: str, data: bytes) -> list[object]:
    if len(data) > MAX_BYTES:
        raise ParseError(f"device-info file {name}: larger than {MAX_BYTES} bytes", "")
    try:
        return decode_array(data)
    except ParseError as error:
        raise ParseError(f"device-info file {name} ({error})", "") from error
