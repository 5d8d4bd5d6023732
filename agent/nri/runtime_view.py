"""The pods and containers of the container runtime; each change publishes a new RuntimeView."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
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

NOT_ASKED = "NotAsked"  # made while the runtime and we were apart

T = TypeVar("T", PodSandbox, RuntimeContainer)
V = TypeVar("V")


class RuntimeHandler(Protocol):
    """Decides what the container runtime is answered. Both methods run on the loop thread."""

    def adjust(self, request: HookRequest) -> Adjustment | Awaitable[Adjustment]:
        """Return what changes; at once where nothing must be awaited: that costs no loop turn."""
        ...

    def view_changed(self, view: RuntimeView) -> None:
        """Take the new view of the runtime; must not block."""
        ...


class RuntimeViewStore:
    """Builds the view; it holds only what still exists. Belongs to the loop thread."""

    def __init__(self, handler: RuntimeHandler) -> None:
        """Pass each new view to `handler`."""
        self._handler = handler
        self._sandboxes: dict[str, PodSandbox] = {}
        self._containers: dict[str, RuntimeContainer] = {}
        self._missed: dict[str, str] = {}
        self._changed_ids: set[str] | None = None  # ids told of while a full list is being read
        self._has_pending = False  # there is a container that the view does not have
        self.view = RuntimeView(state="waiting", reason="Starting")
        self._had_list = False
        self.dropped = 0

    def set_state(self, state: str, reason: str = "", message: str = "") -> None:
        """Show how it stands with the runtime."""
        view = replace(self.view, state=state, reason=reason, message=message[:200])
        if self.view.is_synchronized and not view.is_synchronized:
            view = replace(view, lost=view.lost + 1)
        if view != self.view:
            self._replace_view(view)

    def set_peer(self, peer: RuntimePeer) -> None:
        """Show who the runtime is."""
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
        """Return a sandbox that was told of."""
        return self._sandboxes.get(sandbox_id)

    def update(
        self, sandbox: PodSandbox | None = None, container: RuntimeContainer | None = None
    ) -> None:
        """Take in a sandbox, a container, or both, new or changed."""
        if sandbox is not None:
            self._put(self._sandboxes, sandbox.id, sandbox, MAX_SANDBOXES)
        if container is not None:
            self._put(self._containers, container.id, container, MAX_CONTAINERS)
        self._publish_parts(sandboxes=sandbox is not None, containers=container is not None)

    def add_requested(self, sandbox: PodSandbox | None, container: RuntimeContainer) -> None:
        """Take in a container that is to be made, and its sandbox if that is new.

        It is shown with what comes of it: most answers come at once, and a picture is a copy.
        """
        self._put(self._containers, container.id, container, MAX_CONTAINERS)
        self._has_pending = True
        if sandbox is not None:
            self.update(sandbox)

    def publish_pending(self) -> None:
        """Show a container whose answer takes its time."""
        if self._has_pending:
            self._publish_parts(containers=True)

    def mark_created(self, container_id: str) -> None:
        """Mark a requested container as created: its devices count as its own from now on."""
        container = self._containers.get(container_id)
        if container is not None and container.state is ContainerState.UNKNOWN:
            self._note_change(container_id)
            self._containers[container_id] = replace(container, state=ContainerState.CREATED)
            self._has_pending = True
        if self._has_pending:
            self._publish_parts(containers=True)

    def remove_container(self, container_id: str) -> None:
        """Take out a container."""
        self._note_change(container_id)
        if self._containers.pop(container_id, None) is not None:
            missed = self._missed.pop(container_id, None) is not None
            self._publish_parts(containers=True, missed=missed)

    def mark_stopped(self, sandbox_id: str) -> None:
        """Mark a sandbox as ended: what its pod held is free, though it is listed for a while."""
        found = self._sandboxes.get(sandbox_id)
        if found is not None and not found.stopped:
            self.update(replace(found, stopped=True))

    def remove_sandbox(self, sandbox_id: str) -> None:
        """Take out a sandbox with all its containers."""
        self._note_change(sandbox_id)
        if self._sandboxes.pop(sandbox_id, None) is None:
            return
        held = [key for key, one in self._containers.items() if one.sandbox_id == sandbox_id]
        for key in held:
            self._note_change(key)
            del self._containers[key]
        for key in (sandbox_id, *held):
            self._missed.pop(key, None)
        self._publish_parts(sandboxes=True, containers=True, missed=True)

    def mark_missed(self, key: str, reason: str) -> None:
        """Mark a sandbox or container that went on without what its hooks say."""
        if key in self._containers or key in self._sandboxes:
            self._missed[key] = reason
            self._publish_parts(missed=True)

    def begin_list(self) -> None:
        """Begin to note what is told while a full list is being read: it is newer than the list."""
        self._changed_ids = set()

    def replace_all(
        self, sandboxes: Iterable[PodSandbox], containers: Iterable[RuntimeContainer]
    ) -> None:
        """Replace the picture by a full list, and show that the runtime is in step with us.

        What is new in it, but for a first list, came while there was no connection: it is marked.
        """
        touched, before = (
            self._changed_ids or set(),
            self._containers.keys() | self._sandboxes.keys(),
        )
        self._changed_ids = None
        self._sandboxes = self._merge(self._sandboxes, sandboxes, touched, MAX_SANDBOXES)
        self._containers = self._merge(self._containers, containers, touched, MAX_CONTAINERS)
        known = self._sandboxes.keys() | self._containers.keys()
        if self._had_list:
            self._missed |= dict.fromkeys(known - before, NOT_ASKED)
        self._had_list = True
        self._missed = {key: why for key, why in self._missed.items() if key in known}
        self.view = replace(self.view, state="synchronized", reason="", message="")
        self._publish_parts(sandboxes=True, containers=True, missed=True)

    def fail_list(self) -> None:
        """Show that the runtime is in step with us, though its list could not be read."""
        self._changed_ids = None
        self.set_state(
            "synchronized", "PodsUnread", "the list of pods was lost: see the agent's log"
        )

    def _note_change(self, key: str) -> None:
        if self._changed_ids is not None:
            self._changed_ids.add(key)

    def _put(self, known: dict[str, T], key: str, value: T, limit: int) -> None:
        if not key:
            return  # nothing could ever take it out again
        self._note_change(key)
        if key in known or len(known) < limit:
            known[key] = value
        else:
            self.dropped += 1

    def _merge(
        self, known: dict[str, T], told: Iterable[T], touched: set[str], limit: int
    ) -> dict[str, T]:
        fresh = {key: value for key, value in known.items() if key in touched}
        for one in told:
            if one.id in touched or not one.id:
                continue
            if len(fresh) >= limit:
                self.dropped += 1
                continue
            fresh[one.id] = one
        return fresh

    def _publish_parts(
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


def _immutable_copy(parts: dict[str, V]) -> Mapping[str, V]:
    return MappingProxyType(parts.copy())
