"""Regions of all containers below one folder of the host. Containers write there: trust nothing."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from itertools import islice

from agent.errors import AgentError, HostFileError, ParseError
from agent.model.grant.sharing import SharedRegion
from agent.model.inventory import Problem
from agent.model.pod import PodView
from agent.sharing.layouts import BY_SIZE, MAX_SLOTS
from agent.sharing.region import Content, Crowded, read_region

MAX_FOLDERS = 1024  # containers on one node
MAX_FILES = 256  # names looked at in one container's folder
MAX_PROBLEMS = 16
FEW = 64  # processes; who claims more is read after all others
MAX_CROWDED = 8  # such regions in one look: a full one takes some hundredths of a second
SUFFIX = ".cache"
_FOLDER = re.compile(r"([0-9A-Za-z][0-9A-Za-z-]{0,127})_([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)")
_PLAIN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_FOLDER_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY


def read_regions(
    root: str, pods: Iterable[PodView]
) -> tuple[tuple[SharedRegion, ...], tuple[Problem, ...]]:
    """Return the regions of containers that are on the node, and why others are missing.

    Nothing is written and no link below `root` is followed. Files are read, not mapped: a
    container that cuts its file would end a process that has it mapped. An absent folder holds
    no regions.
    """
    try:
        folder = os.open(root, _FOLDER_FLAGS)
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        return (), (_problem(root, HostFileError(root, error.errno or 0)),)
    look = _Look(root, folder)
    try:
        named = list(_folders(folder, {pod.uid: pod for pod in pods}))
        crowded = [who for who in named if not look.read(*who, most=FEW)]
        for who in crowded[:MAX_CROWDED]:
            look.read(*who, most=MAX_SLOTS)
    finally:
        os.close(folder)
    for name, _, _ in crowded[MAX_CROWDED:]:
        look.problems.append(_problem(f"{root}/{name}", Crowded(f"more than {FEW} processes")))
    regions = sorted(look.regions, key=lambda region: (region.pod_uid, region.container))
    return tuple(regions), tuple(look.problems[:MAX_PROBLEMS])


class _Look:
    """What one look has found so far."""

    def __init__(self, root: str, folder: int) -> None:
        self._root = root
        self._folder = folder
        self.regions: list[SharedRegion] = []
        self.problems: list[Problem] = []

    def read(self, name: str, pod_uid: str, container: str, *, most: int) -> bool:
        """Read one container's region; say whether it was not too crowded for that."""
        where = f"{self._root}/{name}"
        try:
            content = _read_folder(self._folder, name, most)
        except Crowded:
            return False
        except FileNotFoundError:
            return True  # it went with its container while it was looked at
        except OSError as error:
            self.problems.append(_problem(where, HostFileError(where, error.errno or 0)))
        except ParseError as error:
            self.problems.append(_problem(where, error))
        else:
            if content is not None:
                self.regions.append(_region(pod_uid, container, content))
        return True


def _problem(where: str, error: AgentError) -> Problem:
    told = str(error)
    message = told if told.startswith(where) else f"{where}: {told}"
    return Problem(reason="RegionUnreadable", message=message)


def _region(pod_uid: str, container: str, content: Content) -> SharedRegion:
    return SharedRegion(
        pod_uid=pod_uid,
        container=container,
        layout=content.layout,
        cards=content.cards,
        last_kernel_s=content.last_kernel_s,
    )


def _folders(folder: int, known: dict[str, PodView]) -> Iterator[tuple[str, str, str]]:
    """Yield folders named for a container of a pod that is here, in order of their names."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in islice(entries, MAX_FOLDERS))
    for name in names:
        match = _FOLDER.fullmatch(name)
        pod = known.get(match[1]) if match else None
        if match is None or pod is None:
            continue
        containers = {container.name for container in pod.containers if container.name}
        if not containers or match[2] in containers:
            yield name, match[1], match[2]


def _read_folder(parent: int, name: str, most: int) -> Content | None:
    """Read the newest region of one folder; `None` if there is none yet."""
    folder = os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=parent)
    try:
        newest = _newest(folder)
        if newest is None:
            return None
        file = os.open(newest, _PLAIN | os.O_NOFOLLOW, dir_fd=folder)
        try:
            return _read_file(file, most)
        finally:
            os.close(file)
    finally:
        os.close(folder)


def _newest(folder: int) -> str | None:
    """Return the regular `.cache` file that was written last; of equals the last by name."""
    found: list[tuple[int, str]] = []
    with os.scandir(folder) as entries:
        for entry in islice(entries, MAX_FILES):
            if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
    return max(found)[1] if found else None


def _read_file(file: int, most: int) -> Content:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_size not in BY_SIZE:
        raise ParseError("HAMi-core region", f"{status.st_size} bytes")
    return read_region(lambda size, offset: os.pread(file, size, offset), status.st_size, most)
