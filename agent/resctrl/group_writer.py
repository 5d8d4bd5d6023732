"""Makes, fills and removes groups; each one is in the ledger before it exists."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from agent.cgroup.ledger import (
    GROUP_ABSENT,
    GROUP_PRESENT,
    RESCTRL_HIERARCHY,
    RESCTRL_KEY,
    ChangeLedger,
    LedgerEntry,
    LedgerError,
)
from agent.errors import HostFileError
from agent.resctrl.files import ResctrlContent, ResctrlFiles, ResctrlMount
from agent.resctrl.plan import monitor_path
from agent.resctrl.schemata import Schemata, parse_schemata

OWNER = "resctrl"  # the strategy's name
GONE = (errno.ENOENT, errno.ENODEV)  # the group or the mount was removed


class GroupWriter:
    """Changes single groups. Refusals are `HostFileError` with the errno. For one thread."""

    def __init__(self, files: ResctrlFiles, ledger: ChangeLedger) -> None:
        self._files = files
        self._ledger = ledger
        self.groups_made = self.groups_removed = self.schemata_written = self.tasks_moved = 0

    def own_inodes(self, mount: ResctrlMount) -> dict[str, int]:
        """Return the inodes of the agent's groups by path below the mount, from the ledger."""
        prefix = f"{mount.point}/"
        return {
            entry.path.removeprefix(prefix): entry.inode
            for entry in self._ledger.entries.values()
            if entry.hierarchy == RESCTRL_HIERARCHY and entry.path.startswith(prefix)
        }

    def has_entries(self) -> bool:
        """Return whether the ledger has any group."""
        return any(e.hierarchy == RESCTRL_HIERARCHY for e in self._ledger.entries.values())

    def drop_missing(self, content: ResctrlContent) -> None:
        """Drop entries of groups that were removed, or that another program made again."""
        present = {name for name, group in content.groups.items() if group.is_own and name}
        for name, group in content.groups.items():
            present |= {monitor_path(name, monitor) for monitor in group.monitored}
        for path in self.own_inodes(content.mount).keys() - present:
            self._drop(content.mount, path, "gone")

    def record_new_groups(self, mount: ResctrlMount, paths: Iterable[str]) -> None:
        """Record groups before they are made. Raises `LedgerError` if the disk refuses."""
        new_paths = tuple(paths)
        for path in new_paths:
            self._set(mount, path, 0)
        try:
            self._ledger.flush()
        except LedgerError:
            for path in new_paths:
                self._drop(mount, path, "gone")
            raise

    def flush(self) -> None:
        """Write the entries that changed. Raises `LedgerError`."""
        self._ledger.flush()

    def make(self, mount: ResctrlMount, path: str) -> None:
        """Make a group that was recorded."""
        folder = f"{mount.point}/{path}"
        try:
            self._files.make(folder)
        except HostFileError:
            self._drop(mount, path, "gone")
            raise
        self.groups_made += 1
        try:
            inode = self._files.inode(folder)
        except HostFileError:
            self.remove(mount, path)  # it could not be told from another program's group
            raise
        self._set(mount, path, inode)

    def cancel(self, mount: ResctrlMount, paths: Iterable[str]) -> None:
        """Drop entries of groups that were recorded and not made."""
        inodes = self.own_inodes(mount)
        for path in paths:
            if inodes.get(path) == 0:
                self._drop(mount, path, "gone")

    def remove(self, mount: ResctrlMount, path: str) -> None:
        """Remove a group; its tasks return to the group above."""
        folder = f"{mount.point}/{path}"
        try:
            self._files.remove(folder)
        except HostFileError as error:
            if error.errno not in GONE or self._files.exists(folder):
                raise
        self.groups_removed += 1
        self._drop(mount, path, "undone")
        for below in self.own_inodes(mount):
            if below.startswith(f"{path}/"):
                self._drop(mount, below, "undone")

    def write_schemata(self, mount: ResctrlMount, name: str, text: str) -> None:
        """Write lines of schemata."""
        self._files.write(f"{mount.point}/{name}/schemata", text)
        self.schemata_written += 1

    def read_schemata(self, mount: ResctrlMount, name: str) -> Schemata:
        """Return the values of a group."""
        data = self._files.read(f"{mount.point}/{name}/schemata")
        return parse_schemata(data.decode("ascii", "replace"))

    def move_task(self, mount: ResctrlMount, path: str, task: str) -> None:
        """Move one task into a group, an empty path is the root; one that has ended is ignored."""
        folder = f"{mount.point}/{path}" if path else mount.point
        try:
            self._files.write(f"{folder}/tasks", f"{task}\n")
        except HostFileError as error:
            if error.errno != errno.ESRCH:
                raise
        else:
            self.tasks_moved += 1

    def _set(self, mount: ResctrlMount, path: str, inode: int) -> None:
        self._ledger.set(
            LedgerEntry(
                hierarchy=RESCTRL_HIERARCHY,
                path=f"{mount.point}/{path}",
                inode=inode,
                key=RESCTRL_KEY,
                owner=OWNER,
                original=GROUP_ABSENT,
                own_values=(GROUP_PRESENT,),
            )
        )

    def _drop(self, mount: ResctrlMount, path: str, operation: str) -> None:
        entry = self._ledger.entries.get((RESCTRL_HIERARCHY, f"{mount.point}/{path}", RESCTRL_KEY))
        if entry is not None:
            self._ledger.drop(entry, operation)
