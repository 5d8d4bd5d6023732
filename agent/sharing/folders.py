"""Regions of all containers below one folder of the host. Containers write there: trust nothing."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from itertools import islice

from agent.errors import HostFileError, ParseError
from agent.model.grant.sharing import SharedRegion
from agent.model.inventory import Problem
from agent.model.pod import PodView
from agent.sharing.layouts import BY_SIZE
from agent.sharing.region import Content, read_region

MAX_FOLDERS = 1024  # containers on one node
MAX_FILES = 256  # names looked at in one container's folder
MAX_PROBLEMS = 16
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
    known = {pod.uid: pod for pod in pods}
    problems: list[Problem] = []
    regions: list[SharedRegion] = []
    try:
        folder = os.open(root, _FOLDER_FLAGS)
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        return (), (_problem(HostFileError(root, error.errno or 0)),)
    try:
        for name, pod_uid, container in _folders(folder, known):
            try:
                content = _read_folder(folder, name)
            except OSError as error:
                problems.append(_problem(HostFileError(f"{root}/{name}", error.errno or 0)))
            except ParseError as error:
                problems.append(_problem(error, f"{root}/{name}: "))
            else:
                if content is not None:
                    regions.append(_region(pod_uid, container, content))
    finally:
        os.close(folder)
    return tuple(regions), tuple(problems[:MAX_PROBLEMS])


def _problem(error: Exception, where: str = "") -> Problem:
    return Problem(reason="RegionUnreadable", message=f"{where}{error}")


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


def _read_folder(parent: int, name: str) -> Content | None:
    """Read the newest region of one folder; `None` if there is none yet."""
    folder = os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=parent)
    try:
        newest = _newest(folder)
        if newest is None:
            return None
        file = os.open(newest, _PLAIN | os.O_NOFOLLOW, dir_fd=folder)
        try:
            return _read_file(file)
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


def _read_file(file: int) -> Content:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_size not in BY_SIZE:
        raise ParseError("HAMi-core region", f"{status.st_size} bytes")
    return read_region(lambda size, offset: os.pread(file, size, offset), status.st_size)
