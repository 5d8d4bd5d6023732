"""Pods and containers as the cgroup tree shows them, kept up to date without walking it."""

from __future__ import annotations

from operator import attrgetter

import msgspec

from agent.cgroup.layout import (
    CgroupLayout,
    parse_container_dir,
    parse_pod_dir,
    parse_qos_dir,
    qos_of,
)
from agent.collect.reader import Door
from agent.errors import HostFileError
from agent.host.files import HostFiles
from agent.model.pod import ContainerView, PodView

_links = attrgetter("st_nlink")


class _Watch(msgspec.Struct):
    """One directory whose children matter; its sign changes when a child comes or goes."""

    fd: int | None
    sign: object = None
    names: tuple[str, ...] = ()


class PodTree:
    """The pods below the kubelet's root. `refresh` costs one `fstat` a directory when idle.

    A child that goes while another comes leaves the link count as it was: who reads the gone
    child's files notices, and sets `distrust`, which makes the next refresh list everything.
    """

    def __init__(self, host: HostFiles, door: Door, layout: CgroupLayout) -> None:
        self._host = host
        self._door = door
        self._root = layout.root or ""
        point = layout.mount("memory") or layout.mount("cpuacct") or layout.mount("cpu")
        self._point = point or ""
        self._watches: dict[str, _Watch] = {}  # root, QoS and pod directories, by cgroup
        self._fds: list[int] = []  # of all watches, when each has one and counts its links
        self._signs: list[int] = []
        self.pods: tuple[PodView, ...] = ()  # by uid
        self.distrust = False

    def refresh(self) -> bool:
        """Look for pods and containers that came or went; say whether there were any."""
        if not self.distrust and self._idle():
            return False
        forced, self.distrust = self.distrust, False
        changed = self._walk(forced)
        watches = self._watches.values()
        counted = all(watch.fd is not None and isinstance(watch.sign, int) for watch in watches)
        self._fds = [watch.fd for watch in watches if watch.fd is not None] if counted else []
        self._signs = [watch.sign for watch in watches if isinstance(watch.sign, int)]
        return changed

    def close(self) -> None:
        """Let go of all descriptors."""
        self._forget(set())

    def _idle(self) -> bool:
        signs = list(map(_links, self._door.stats(self._fds)))
        return bool(signs) and signs == self._signs

    def _walk(self, forced: bool) -> bool:
        """List the directories whose sign changed; rebuild the pods if a name did."""
        changed, pods = False, []
        alive = queue = [self._root]
        while queue:
            cgroup, queue = queue[0], queue[1:]
            changed |= self._look(cgroup, forced)
            for name in self._watches[cgroup].names:
                child = f"{cgroup}/{name}"
                if parse_pod_dir(name) is not None:
                    pods.append(child)
                    changed |= self._look(child, forced)
                elif parse_qos_dir(name) is not None and cgroup == self._root:
                    queue = [*queue, child]
                    alive = [*alive, child]
        changed |= self._forget({*alive, *pods})
        if changed:
            views = (_view(cgroup, self._watches[cgroup].names) for cgroup in pods)
            self.pods = tuple(sorted(views, key=lambda pod: (pod.uid, pod.cgroup)))
        return changed

    def _look(self, cgroup: str, forced: bool) -> bool:
        """List a directory if its sign changed; say whether the names that matter did."""
        path = self._point + cgroup
        watch = self._watches.get(cgroup)
        new = watch is None
        if watch is None:
            watch = self._watches[cgroup] = _Watch(self._door.open(path))
        sign = self._sign(watch, path)  # before listing: what comes after it changes it again
        if sign == watch.sign and not forced and not new:
            return False
        names = sign if isinstance(sign, tuple) else self._names(path)
        before, watch.names, watch.sign = watch.names, names, sign
        return new or before != names

    def _sign(self, watch: _Watch, path: str) -> object:
        if watch.fd is not None:
            (stat,) = self._door.stats([watch.fd])
            if stat.st_nlink >= 2:  # btrfs and overlays do not count: always one
                return stat.st_nlink
        return self._names(path)

    def _names(self, path: str) -> tuple[str, ...]:
        """Return the children that are pods, classes or containers; none when it is gone."""
        try:
            names = self._host.names(path)
        except HostFileError:
            return ()
        kinds = (parse_pod_dir, parse_container_dir, parse_qos_dir)
        return tuple(name for name in names if any(kind(name) is not None for kind in kinds))

    def _forget(self, alive: set[str]) -> bool:
        gone = [cgroup for cgroup in self._watches if cgroup not in alive]
        for cgroup in gone:
            fd = self._watches.pop(cgroup).fd
            if fd is not None:
                self._door.close(fd)
        return bool(gone)


def _view(cgroup: str, names: tuple[str, ...]) -> PodView:
    ids = ((parse_container_dir(name), name) for name in names)
    containers = (
        ContainerView(id=found, cgroup=f"{cgroup}/{name}") for found, name in ids if found
    )
    return PodView(
        uid=parse_pod_dir(cgroup.rpartition("/")[2]) or "",
        qos=qos_of(cgroup),
        cgroup=cgroup,
        containers=tuple(sorted(containers, key=lambda container: container.id)),
    )
