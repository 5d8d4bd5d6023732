"""Path look-up inside one host: links lead nowhere else, and loops end."""

from __future__ import annotations

import errno
from collections.abc import Callable

from agent.errors import HostFileError
from agent.host.files import check_path
from agent.recording.entries import DeviceNode, Entry, Kind, Link

MAX_LINKS = 40  # as the kernel: the next one is ELOOP
MAX_TARGET = 4095  # characters of a link that is followed, as PATH_MAX
_MAX_KNOWN = 65_536  # directories remembered before starting afresh

Lookup = Callable[[str, str], Entry | None]
"""(resolved directory, name) -> the entry there; the root directory is the empty string."""


class Resolver:
    """Finds what a path leads to, one component at a time, as the kernel does in a chroot.

    `..` above the root stays at the root and absolute links start at it. Resolved directories
    are remembered; a directory that is not there is looked up again each time.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._known: dict[str, str] = {"": ""}

    def find(self, path: str, *, follow: bool = True) -> tuple[str, Entry]:
        """Return the resolved path and its entry; `HostFileError` if it leads nowhere.

        With `follow` the entry is no link; without, a link at the very end is returned.
        """
        check_path(path)
        above, _, name = path.rpartition("/")
        known = self._known.get(above)
        if known is None:
            known, kind = self._walk(path, "", above, follow=True)
            if kind is not Kind.DIRECTORY:
                raise HostFileError(path, errno.ENOTDIR)
            if len(self._known) >= _MAX_KNOWN:
                self._known = {"": ""}
            self._known[above] = known
        return self._walk(path, known, name, follow=follow)

    def _walk(self, asked: str, at: str, rest: str, *, follow: bool) -> tuple[str, Entry]:
        todo = rest.split("/")[::-1]
        links = 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                at = at.rpartition("/")[0]
                continue
            entry = self._lookup(at, part)
            if entry is None:
                raise HostFileError(asked, errno.ENOENT)
            if isinstance(entry, Link) and (todo or follow):
                links += 1
                if links > MAX_LINKS:
                    raise HostFileError(asked, errno.ELOOP)
                if len(entry.text) > MAX_TARGET:
                    raise HostFileError(asked, errno.ENAMETOOLONG)
                at = "" if entry.text.startswith("/") else at
                todo.extend(entry.text.split("/")[::-1])
            elif entry is Kind.DIRECTORY:
                at = f"{at}/{part}"
            elif todo:
                raise HostFileError(asked, errno.ENOTDIR)
            else:
                return f"{at}/{part}", entry
        return at, Kind.DIRECTORY


class Resolved:
    """What every host whose links are resolved by us answers alike."""

    resolver: Resolver

    def link(self, path: str) -> str | None:
        """Return a link's text."""
        try:
            _, entry = self.resolver.find(path, follow=False)
        except HostFileError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise
        return entry.text if isinstance(entry, Link) else None

    def exists(self, path: str) -> bool:
        """Say whether the path leads to anything, readable or not."""
        try:
            self.resolver.find(path)
        except HostFileError:
            return False
        return True

    def device_number(self, path: str) -> tuple[int, int] | None:
        """Return the numbers of a device node."""
        try:
            _, entry = self.resolver.find(path)
        except HostFileError:
            return None
        return (entry.major, entry.minor) if isinstance(entry, DeviceNode) else None
