"""Keeps the picture of the runtime's pods and containers; every change gives a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from msgspec.structs import replace

from agent.model.runtime.seen import ContainerSeen, ContainerState, RuntimeView, SandboxSeen
from agent.nri.versions import Peer

MAX_SANDBOXES = 4096  # a node has a few hundred
MAX_CONTAINERS = 16384

NOT_ASKED = "NotAsked"  # made while the runtime and we were apart

Seen = Callable[[RuntimeView], None]
T = TypeVar("T", SandboxSeen, ContainerSeen)
V = TypeVar("V")


class Picture:
    """The view and its making. What ended is not in it. Belongs to the loop thread."""

    def __init__(self, seen: Seen) -> None:
        """`seen` gets each new picture."""
        self._seen = seen
        self._sandboxes: dict[str, SandboxSeen] = {}
        self._containers: dict[str, ContainerSeen] = {}
        self._missed: dict[str, str] = {}
        self._touched: set[str] | None = None  # ids told of while a full list is being read
        self._unshown = False  # there is a container that the view does not have
        self.view = RuntimeView(state="waiting", reason="Starting")
        self._had_list = False
        self.left_out = 0

    def stands(self, state: str, reason: str = "", message: str = "") -> None:
        """Show how it stands with the runtime."""
        view = replace(self.view, state=state, reason=reason, message=message[:200])
        if self.view.in_force and not view.in_force:
            view = replace(view, lost=view.lost + 1)
        if view != self.view:
            self._show(view)

    def met(self, peer: Peer) -> None:
        """Show who the runtime is."""
        self._show(
            replace(
                self.view,
                runtime=peer.name,
                version=peer.version,
                nri_version=peer.nri,
                takes_cdi=peer.takes_cdi,
            )
        )

    def sandbox(self, sandbox_id: str) -> SandboxSeen | None:
        """Return a sandbox that was told of."""
        return self._sandboxes.get(sandbox_id)

    def told(
        self, sandbox: SandboxSeen | None = None, container: ContainerSeen | None = None
    ) -> None:
        """Take in a sandbox, a container, or both, new or changed."""
        if sandbox is not None:
            self._keep(self._sandboxes, sandbox.id, sandbox, MAX_SANDBOXES)
        if container is not None:
            self._keep(self._containers, container.id, container, MAX_CONTAINERS)
        self._show_parts(sandboxes=sandbox is not None, containers=container is not None)

    def asked(self, sandbox: SandboxSeen | None, container: ContainerSeen) -> None:
        """Take in a container that is to be made, and its sandbox if that is new.

        It is shown with what comes of it: most answers come at once, and a picture is a copy.
        """
        self._keep(self._containers, container.id, container, MAX_CONTAINERS)
        self._unshown = True
        if sandbox is not None:
            self.told(sandbox)

    def show(self) -> None:
        """Show a container whose answer takes its time."""
        if self._unshown:
            self._show_parts(containers=True)

    def created(self, container_id: str) -> None:
        """Mark a container that was asked about as made: what it was given is its own now."""
        found = self._containers.get(container_id)
        if found is not None and found.state is ContainerState.UNKNOWN:
            self.told(container=replace(found, state=ContainerState.CREATED))
        self.show()

    def ended(self, container_id: str) -> None:
        """Take out a container."""
        self._touch(container_id)
        if self._containers.pop(container_id, None) is not None:
            missed = self._missed.pop(container_id, None) is not None
            self._show_parts(containers=True, missed=missed)

    def stopped(self, sandbox_id: str) -> None:
        """Mark a sandbox as ended: what its pod held is free, though it is listed for a while."""
        found = self._sandboxes.get(sandbox_id)
        if found is not None and not found.stopped:
            self.told(replace(found, stopped=True))

    def removed(self, sandbox_id: str) -> None:
        """Take out a sandbox with all its containers."""
        self._touch(sandbox_id)
        if self._sandboxes.pop(sandbox_id, None) is None:
            return
        held = [key for key, one in self._containers.items() if one.sandbox_id == sandbox_id]
        for key in held:
            self._touch(key)
            del self._containers[key]
        for key in (sandbox_id, *held):
            self._missed.pop(key, None)
        self._show_parts(sandboxes=True, containers=True, missed=True)

    def missed(self, key: str, reason: str) -> None:
        """Mark a sandbox or container that went on without what its hooks say."""
        if key in self._containers or key in self._sandboxes:
            self._missed[key] = reason
            self._show_parts(missed=True)

    def begin_list(self) -> None:
        """Begin to note what is told while a full list is being read: it is newer than the list."""
        self._touched = set()

    def listed(self, sandboxes: Iterable[SandboxSeen], containers: Iterable[ContainerSeen]) -> None:
        """Replace the picture by a full list, and show that the runtime is in step with us.

        What is new in it, but for a first list, came while there was no connection: it is marked.
        """
        touched, before = self._touched or set(), self._containers.keys() | self._sandboxes.keys()
        self._touched = None
        self._sandboxes = self._joined(self._sandboxes, sandboxes, touched, MAX_SANDBOXES)
        self._containers = self._joined(self._containers, containers, touched, MAX_CONTAINERS)
        known = self._sandboxes.keys() | self._containers.keys()
        if self._had_list:
            self._missed |= dict.fromkeys(known - before, NOT_ASKED)
        self._had_list = True
        self._missed = {key: why for key, why in self._missed.items() if key in known}
        self.view = replace(self.view, state="synchronized", reason="", message="")
        self._show_parts(sandboxes=True, containers=True, missed=True)

    def unlisted(self) -> None:
        """Show that the runtime is in step with us, though its list could not be read."""
        self._touched = None
        self.stands("synchronized", "PodsUnread", "the list of pods was lost: see the agent's log")

    def _touch(self, key: str) -> None:
        if self._touched is not None:
            self._touched.add(key)

    def _keep(self, known: dict[str, T], key: str, value: T, limit: int) -> None:
        if not key:
            return  # nothing could ever take it out again
        self._touch(key)
        if key in known or len(known) < limit:
            known[key] = value
        else:
            self.left_out += 1

    def _joined(
        self, known: dict[str, T], told: Iterable[T], touched: set[str], limit: int
    ) -> dict[str, T]:
        fresh = {key: value for key, value in known.items() if key in touched}
        for one in told:
            if one.id in touched or not one.id:
                continue
            if len(fresh) >= limit:
                self.left_out += 1
                continue
            fresh[one.id] = one
        return fresh

    def _show_parts(
        self, *, sandboxes: bool = False, containers: bool = False, missed: bool = False
    ) -> None:
        view = self.view
        containers, self._unshown = containers or self._unshown, False
        self._show(
            replace(
                view,
                sandboxes=_frozen(self._sandboxes) if sandboxes else view.sandboxes,
                containers=_frozen(self._containers) if containers else view.containers,
                missed=_frozen(self._missed) if missed else view.missed,
            )
        )

    def _show(self, view: RuntimeView) -> None:
        self.view = view
        self._seen(view)


def _frozen(parts: dict[str, V]) -> Mapping[str, V]:
    return MappingProxyType(parts.copy())
