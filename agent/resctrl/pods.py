"""The pods of a snapshot with their requests, and the tasks of their containers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.containers.resctrl import (
    NO_REQUEST,
    RESCTRL,
    ResctrlRequest,
    parse_resctrl_request,
    resctrl_class,
)
from agent.errors import HostFileError
from agent.resctrl.files import ResctrlFiles
from agent.resctrl.plan import ResctrlPod
from agent.snapshot.container import PodSandbox
from agent.snapshot.inventory import Problem
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES, PodView, mirrored_uid
from agent.wire_formats.annotations import AnnotationError, qos_class

BAD_ANNOTATION = "ResctrlAnnotationInvalid"
MAX_TASKS_READ = 1 << 20  # bytes of one container
MAX_BELOW = 256  # groups below one container that are read
READ_PER_CYCLE = 64  # containers whose tasks were read before


def resctrl_pods(
    snapshot: NodeSnapshot, protected_namespaces: Collection[str] = ()
) -> tuple[tuple[ResctrlPod, ...], tuple[Problem, ...]]:
    """Return all pods that run or start here by uid, and the annotations that are not valid.

    A pod whose sandbox runs may not be listed yet, or under another uid only: a static pod that
    the kubelet did not list has a mirror at the API server, which has no tasks. Pods of protected
    namespaces have no class: only their annotation gives them a group.
    """
    problems: list[Problem] = []
    pods = {
        pod.uid: _listed_pod(pod, problems)
        for pod in snapshot.pods.value
        if pod.phase not in ENDED_PHASES and not _is_mirror(pod)
    }
    listed = {pod.uid for pod in snapshot.pods.value if pod.name}
    for sandbox in snapshot.runtime.value.sandboxes.values():
        if sandbox.uid and not sandbox.stopped and sandbox.uid not in listed:
            pods[sandbox.uid] = starting_pod(sandbox, problems)
    ordered = (pods[uid] for uid in sorted(pods))
    return tuple(without_class(pod, protected_namespaces) for pod in ordered), tuple(problems)


def without_class(pod: ResctrlPod, protected_namespaces: Collection[str]) -> ResctrlPod:
    """Return a pod, without its class if its namespace is protected."""
    is_protected = pod.namespace in protected_namespaces
    return msgspec.structs.replace(pod, qos="") if is_protected else pod


def _is_mirror(pod: PodView) -> bool:
    """Return whether the tasks of a listed pod are those of a static pod with another uid."""
    runs = any(container.cgroup for container in pod.containers)
    return not runs and mirrored_uid(pod) not in (None, pod.uid)


def _listed_pod(pod: PodView, problems: list[Problem]) -> ResctrlPod:
    name = f"{pod.namespace}/{pod.name}" if pod.name else ""
    return ResctrlPod(
        uid=pod.uid,
        namespace=pod.namespace,
        name=name,
        qos=qos_class(pod),
        request=_request(pod.annotation(RESCTRL), name, problems),
        created=pod.created,
    )


def starting_pod(sandbox: PodSandbox, problems: list[Problem]) -> ResctrlPod:
    """Return the pod of a sandbox that the runtime creates."""
    name = f"{sandbox.namespace}/{sandbox.name}" if sandbox.name else ""
    return ResctrlPod(
        uid=sandbox.uid,
        namespace=sandbox.namespace,
        name=name,
        qos=resctrl_class(sandbox),
        request=_request(sandbox.annotation(RESCTRL), name, problems),
    )


def _request(text: str | None, name: str, problems: list[Problem]) -> ResctrlRequest:
    if text is None:
        return NO_REQUEST
    try:
        return parse_resctrl_request(text)
    except AnnotationError as error:
        problems.append(Problem(reason=BAD_ANNOTATION, message=f"pod {name}: {error}"))
        return NO_REQUEST


class TaskReader:
    """Reads the tasks of containers: new ones at once, the others in turn. For one thread.

    A new thread or process is in the group of the one that started it, so containers whose tasks
    were moved need no reading; a container that was started without a group needs one.
    """

    def __init__(self, files: ResctrlFiles) -> None:
        self._files = files
        self._tasks: dict[str, bytes] = {}  # by directory: the bytes of the last read
        self._next = 0  # index of the container that the next cycle starts with

    def read(
        self, pods: Iterable[PodView], layout: CgroupLayout | None, *, all_of_them: bool
    ) -> Mapping[str, frozenset[int]]:
        """Return the tasks by uid of the pods whose tasks changed, or of all."""
        directories = dict(self._directories(pods, layout)) if layout is not None else {}
        self._tasks = {path: data for path, data in self._tasks.items() if path in directories}
        tasks: dict[str, frozenset[int]] = {}
        for directory in self._due(list(directories), all_of_them=all_of_them):
            is_deep = all_of_them or directory not in self._tasks
            own, below = self._read(directory, layout, is_deep=is_deep)
            if is_deep or own != self._tasks[directory]:
                uid, words = directories[directory], (own + below).split()
                read = frozenset(int(word) for word in words if word.isdigit())
                tasks[uid] = tasks.get(uid, frozenset()) | read
            self._tasks[directory] = own
        return tasks

    def forget(self) -> None:
        """Read everything again in the next cycle."""
        self._tasks.clear()

    def _due(self, directories: list[str], *, all_of_them: bool) -> list[str]:
        """Return the directories to read now: those never read, and some of the others."""
        if all_of_them:
            return directories
        known = [path for path in directories if path in self._tasks]
        self._next = self._next if self._next < len(known) else 0
        turn = known[self._next : self._next + READ_PER_CYCLE]
        self._next += READ_PER_CYCLE
        return [path for path in directories if path not in self._tasks] + turn

    def _directories(
        self, pods: Iterable[PodView], layout: CgroupLayout
    ) -> Iterable[tuple[str, str]]:
        for pod in pods:
            for container in pod.containers:
                directory = layout.directory("cpu", container.cgroup) if container.cgroup else None
                if directory is not None:
                    yield directory, pod.uid

    def _read(
        self, directory: str, layout: CgroupLayout | None, *, is_deep: bool
    ) -> tuple[bytes, bytes]:
        """Return the tasks of a container, and with `is_deep` those of the groups below it."""
        name = "tasks" if layout is not None and layout.version == 1 else "cgroup.threads"
        own = self._read_file(f"{directory}/{name}")
        queue = list(self._files.folders(directory)) if is_deep else []
        below = b""
        for path in queue:
            below += self._read_file(f"{path}/{name}")
            if len(queue) < MAX_BELOW:
                queue += self._files.folders(path)
        return own, below

    def _read_file(self, path: str) -> bytes:
        try:
            return self._files.read(path, MAX_TASKS_READ)
        except HostFileError:
            return b""  # the container has ended
