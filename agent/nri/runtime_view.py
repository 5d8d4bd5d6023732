"""The pods and containers of the container runtime; each change publishes a new `RuntimeView`."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeVar

from msgspec.structs import replace

from agent.nri.versions import RuntimePeer
from agent.snapshot.container import (
    Adjustment,
    ContainerState,
    HookRequest,
    PodSandbox,
    RuntimeContainer,
    RuntimeView,
)

MAX_SANDBOXES = 4096  # a node has a few hundred
MAX_CONTAINERS = 16384
NOT_ASKED = "NotAsked"  # created while the plug-in was not connected
T = TypeVar("T", PodSandbox, RuntimeContainer)
V = TypeVar("V")


class RuntimeHandler(Protocol):
    """Decides the answers to the container runtime. Both methods run on the loop thread."""

    def adjust(self, request: HookRequest) -> Adjustment | Awaitable[Adjustment]:
        """Return the adjustment, directly if nothing is awaited: that saves a turn of the loop."""
        ...

    def view_changed(self, view: RuntimeView) -> None:
        """Take the new view of the runtime; must not block."""
        ...


class RuntimeViewStore:
    """Builds the view of what exists in the runtime. Belongs to the loop thread."""

    def __init__(self, handler: RuntimeHandler) -> None:
        """Pass each new view to `handler`."""
        self._handler = handler
        self._sandboxes: dict[str, PodSandbox] = {}
        self._containers: dict[str, RuntimeContainer] = {}
        self._missed: dict[str, str] = {}
        self._changed_ids: set[str] | None = (
            None  # ids with an event while a full list is being read
        )
        self._has_pending = False  # a container is not in the view yet
        self.view = RuntimeView(state="waiting", reason="Starting")
        self._had_list = False
        self.dropped = 0

    def set_state(self, state: str, reason: str = "", message: str = "") -> None:
        """Publish the state of the connection."""
        view = replace(self.view, state=state, reason=reason, message=message[:200])
        if self.view.is_synchronized and not view.is_synchronized:
            view = replace(view, lost=view.lost + 1)
        if view != self.view:
            self._replace_view(view)

    def set_peer(self, peer: RuntimePeer) -> None:
        """Publish name and versions of the runtime."""
        self._replace_view(
            replace(
                self.view,
                runtime=peer.name,
                version=peer.version,
                nri_version=peer.nri,
                takes_cdi=peer.takes_cdi,
            )
        )

    def sandbox(self, sandbox_id: str) -> PodSandbox | None:
        """Return a sandbox, or `None` if the runtime did not report it."""
        return self._sandboxes.get(sandbox_id)

    def update(
        self, sandbox: PodSandbox | None = None, container: RuntimeContainer | None = None
    ) -> None:
        """Add or replace a sandbox, a container, or both."""
        if sandbox is not None:
            self._set_item(self._sandboxes, sandbox.id, sandbox, MAX_SANDBOXES)
        if container is not None:
            self._set_item(self._containers, container.id, container, MAX_CONTAINERS)
        self._publish(sandboxes=sandbox is not None, containers=container is not None)

    def add_requested(self, sandbox: PodSandbox | None, container: RuntimeContainer) -> None:
        """Add a container that is being created, and its sandbox if that is new.

        It is published together with the answer: most answers are immediate, each view is a copy.
        """
        self._set_item(self._containers, container.id, container, MAX_CONTAINERS)
        self._has_pending = True
        if sandbox is not None:
            self.update(sandbox)

    def publish_pending(self) -> None:
        """Publish a container whose answer is not immediate."""
        if self._has_pending:
            self._publish(containers=True)

    def mark_created(self, container_id: str) -> None:
        """Mark a requested container as created: from now on it owns its devices."""
        container = self._containers.get(container_id)
        if container is not None and container.state is ContainerState.UNKNOWN:
            self._note_change(container_id)
            self._containers[container_id] = replace(container, state=ContainerState.CREATED)
            self._has_pending = True
        if self._has_pending:
            self._publish(containers=True)

    def mark_started(self, container: RuntimeContainer) -> None:
        """Replace a container by its running form, unless it has ended.

        Runtimes report the end of a container that exits at once before its start.
        """
        is_in_list = self._changed_ids is not None and container.id not in self._changed_ids
        if container.id in self._containers or is_in_list:
            self.update(container=container)

    def remove_container(self, container_id: str) -> None:
        """Remove a container."""
        self._note_change(container_id)
        if self._containers.pop(container_id, None) is not None:
            was_missed = self._missed.pop(container_id, None) is not None
            self._publish(containers=True, missed=was_missed)

    def mark_stopped(self, sandbox_id: str) -> None:
        """Mark a sandbox as stopped: its devices are free, though it is listed for a while."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            self._note_change(sandbox_id)  # the list that is being read may have it as running
        elif not sandbox.stopped:
            self.update(replace(sandbox, stopped=True))

    def mark_pods_stopped(self, uids: Collection[str]) -> None:
        """Mark all sandboxes of these pods as stopped."""
        ended = [sandbox.id for sandbox in self._sandboxes.values() if sandbox.uid in uids]
        for sandbox_id in ended:
            self.mark_stopped(sandbox_id)

    def mark_stopped_if_empty(self, sandbox_id: str) -> None:
        """Mark a sandbox as stopped unless it has containers."""
        if all(container.sandbox_id != sandbox_id for container in self._containers.values()):
            self.mark_stopped(sandbox_id)

    def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox with all its containers."""
        self._note_change(sandbox_id)
        if self._sandboxes.pop(sandbox_id, None) is None:
            return
        container_ids = [
            key for key, container in self._containers.items() if container.sandbox_id == sandbox_id
        ]
        for key in container_ids:
            self._note_change(key)
            del self._containers[key]
        for key in (sandbox_id, *container_ids):
            self._missed.pop(key, None)
        self._publish(sandboxes=True, containers=True, missed=True)

    def mark_missed(self, key: str, reason: str) -> None:
        """Mark a sandbox or container that runs without the answer of its hooks."""
        if key in self._containers or key in self._sandboxes:
            self._missed[key] = reason
            self._publish(missed=True)

    def begin_list(self) -> None:
        """Record ids with events while a full list is read: an event is newer than the list."""
        self._changed_ids = set()

    def replace_all(
        self, sandboxes: Iterable[PodSandbox], containers: Iterable[RuntimeContainer]
    ) -> None:
        """Replace the contents by a full list, and mark the view as synchronized.

        Whatever is new in a list other than the first was created without the hooks: it is marked.
        A sandbox that was stopped once never runs again, whatever the list has of it.
        """
        changed_ids, previous_ids = (
            self._changed_ids or set(),
            self._containers.keys() | self._sandboxes.keys(),
        )
        self._changed_ids = None
        stopped_ids = {key for key, sandbox in self._sandboxes.items() if sandbox.stopped}
        listed = (
            replace(sandbox, stopped=True) if sandbox.id in stopped_ids else sandbox
            for sandbox in sandboxes
        )
        self._sandboxes = self._merge(self._sandboxes, listed, changed_ids, MAX_SANDBOXES)
        self._containers = self._merge(self._containers, containers, changed_ids, MAX_CONTAINERS)
        current_ids = self._sandboxes.keys() | self._containers.keys()
        if self._had_list:
            self._missed |= dict.fromkeys(current_ids - previous_ids, NOT_ASKED)
        self._had_list = True
        self._missed = {key: reason for key, reason in self._missed.items() if key in current_ids}
        self.view = replace(self.view, state="synchronized", reason="", message="")
        self._publish(sandboxes=True, containers=True, missed=True)

    def fail_list(self) -> None:
        """Mark the view as synchronized although the list of pods could not be read."""
        self._changed_ids = None
        self.set_state(
            "synchronized", "PodsUnread", "the list of pods was lost: see the agent's log"
        )

    def _note_change(self, key: str) -> None:
        if self._changed_ids is not None:
            self._changed_ids.add(key)

    def _set_item(self, table: dict[str, T], key: str, value: T, limit: int) -> None:
        if not key:
            return  # an entry without an id could never be removed
        self._note_change(key)
        if key in table or len(table) < limit:
            table[key] = value
        else:
            self.dropped += 1

    def _merge(
        self, table: dict[str, T], listed: Iterable[T], changed_ids: set[str], limit: int
    ) -> dict[str, T]:
        merged_items = {key: value for key, value in table.items() if key in changed_ids}
        for item in listed:
            if item.id in changed_ids or not item.id:
                continue
            if len(merged_items) >= limit:
                self.dropped += 1
                continue
            merged_items[item.id] = item
        return merged_items

    def _publish(
        self, *, sandboxes: bool = False, containers: bool = False, missed: bool = False
    ) -> None:
        view = self.view
        containers, self._has_pending = containers or self._has_pending, False
        self._replace_view(
            replace(
                view,
                sandboxes=_immutable_copy(self._sandboxes) if sandboxes else view.sandboxes,
                containers=_immutable_copy(self._containers) if containers else view.containers,
                missed=_immutable_copy(self._missed) if missed else view.missed,
            )
        )

    def _replace_view(self, view: RuntimeView) -> None:
        self.view = view
        self._handler.view_changed(view)


def _immutable_copy(table: dict[str, V]) -> Mapping[str, V]:
    return MappingProxyType(table.copy())
