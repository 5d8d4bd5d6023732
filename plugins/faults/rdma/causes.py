"""What the kernel log says of NICs, kept for as long as it counts."""

from __future__ import annotations

from collections.abc import Iterable

from agent.errors import HostFileError, NotSupported
from agent.host.files import HostFiles
from agent.host.kmsg import KernelLog
from agent.model.device import Health
from agent.model.inventory import Problem
from plugins.faults.rdma.kernel_log import Cause, logged, looked, parse_line

MAX_CAUSES = 512
UNREAD = "KernelLogUnread"


class Causes:
    """Causes by address of the function. One thread at a time; reading never waits.

    A recorded host has no log. A log that is refused is a problem to tell, and nothing else.
    """

    def __init__(self, host: HostFiles, *, replay: bool) -> None:
        self.problem: Problem | None = None
        self._found: dict[str, Cause] = {}
        self._seen: set[str] = set()  # functions whose port was looked at
        self._log: KernelLog | None = None
        try:
            self._log = None if replay else KernelLog(host)
        except (HostFileError, NotSupported) as error:
            self.problem = self._told(error)

    def read(self, now_s: float) -> None:
        """Take in what the log holds since the last time. Both clocks start with the boot."""
        if self._log is None:
            return
        try:
            records = self._log.read()
        except HostFileError as error:
            self.problem = self._told(error)
            self.close()
            return
        for record in records:
            line = parse_line(record.text)
            if line is None or (line.address not in self._found and len(self._found) >= MAX_CAUSES):
                continue
            at_s = min(now_s, record.stamp_us / 1e6)
            self._found[line.address] = logged(self._found.get(line.address), line, at_s)

    def look(self, address: str, *, active: bool, now_s: float) -> None:
        """Take in whether a function's port is active now."""
        cause = self._found.get(address)
        first = address not in self._seen
        self._seen.add(address)
        after = looked(cause, active=active, now_s=now_s, first=first) if cause else None
        if after is not None:
            self._found[address] = after
        elif cause is not None:
            del self._found[address]

    def health(self, address: str | None) -> Health | None:
        """Return the verdict on a function; `None` if nothing is known against it."""
        cause = self._found.get(address or "")
        return cause.health if cause is not None else None

    def forget(self, addresses: Iterable[str]) -> None:
        """Drop what was said of functions that left: whatever comes back starts anew."""
        for address in addresses:
            self._found.pop(address, None)
            self._seen.discard(address)

    def close(self) -> None:
        """Let go of the log; may be called twice."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _told(self, error: Exception) -> Problem | None:
        if isinstance(error, NotSupported):
            return None
        message = f"{error}: fatal errors of firmware and of the bus are not heard"
        return Problem(reason=UNREAD, message=message)
