"""The device plug-in as a whole: what is offered is served, registered, and told of.

Two agents on one node do not serve at once: who does not hold the node's lock has not begun. The
next one registers when the lock is its own, by which time the first one's streams have ended. Two
with different locks take each other's streams, until the one that lost three gives way and says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial

import msgspec

from agent.deviceplugin.base import Resource
from agent.deviceplugin.kubelet.folder import File as SocketFile
from agent.deviceplugin.kubelet.folder import KubeletFolder
from agent.deviceplugin.kubelet.kept import KeptFile
from agent.deviceplugin.kubelet.life import Life
from agent.deviceplugin.serve.answering import Answering
from agent.deviceplugin.serve.bell import Bell
from agent.deviceplugin.serve.figures import ResourceFigures
from agent.deviceplugin.serve.holding import File, Holding, read_checkpoint
from agent.deviceplugin.serve.site import Site
from agent.errors import ParseError
from agent.kubelet.base import in_thread
from agent.loop import keep
from agent.model.runtime.served import Held, ResourceServed, ServedView
from agent.model.snapshot import NodeSnapshot

log = logging.getLogger(__name__)

MAX_RESOURCES = 64
ASTRAY = "GrantGivenToAnotherPod"
WITHDRAWN = "DeviceWithdrawn"
AGAIN_S = 1.0  # after a bug, doubled each time
ANSWERED = ("ready", "released")  # states of a vendor whose devices are those it told of


def load_grpc() -> None:
    """Load gRPC and the messages: 100 ms and 12 MB, so in a thread and only where they are used."""
    from grpc import aio  # noqa: F401, PLC0415 - see above

    import agent.deviceplugin.serve.messages  # noqa: F401, PLC0415 - see above


class DevicePlugin:
    """Belongs to the loop thread. `run` it as a task; cancelled, it ends everything in good order.

    Nothing of it is needed where `device_plugin.vendors` is empty, and nothing is loaded then.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._bell = Bell()  # one for all: each looks whether it is for him
        self._folder = KubeletFolder(
            site.folder, self._looked_at, poll_s=site.pace.poll_s, absent_s=site.pace.absent_s
        )
        self._holding = Holding(site.clock.monotonic, self._publish)
        self._file = KeptFile(site.state_dir, site.boot_id, site.state_writer)
        self._kept: dict[str, Resource] = {}  # of vendors that have not answered yet
        self._lives: dict[str, Life] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._kubelet: SocketFile | None = None  # whose socket was there last
        self._checkpoint: File | None = None
        self._unread = ""  # why the checkpoint could not be read
        self._stirred = False
        self._began_s = site.clock.monotonic()
        self._view = ServedView()

    async def run(self) -> None:
        """Serve until cancelled; a bug in one part begins that part again."""
        await in_thread(load_grpc)
        self._kept = {one.name: one for one in await in_thread(self._file.load)}
        self._began_s = self._site.clock.monotonic()
        await in_thread(self._folder.sweep)
        self._folder.look()
        try:
            self._keep("folder", self._folder.run)
            self._keep("offers", self._follow)
            self._keep("files", self._keep_files)
            await asyncio.Event().wait()
        finally:
            await self.stop()

    async def stop(self) -> None:
        """End the streams, stop the servers, remove their sockets; takes a second at most."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lives.clear()

    def changed(self) -> None:
        """Look at once at what is offered: devices or their health may be others."""
        self._stirred = True
        self._bell.ring()

    def state(self) -> ServedView:
        """Return how every resource stands with the kubelet, and who holds what."""
        return self._view

    def figures(self) -> tuple[ResourceFigures, ...]:
        """Return what was asked for and answered, by resource."""
        return tuple(life.answering.counts.figures() for _, life in sorted(self._lives.items()))

    def _keep(self, name: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        kept = keep(
            f"device plug-in: {name}",
            work,
            again_s=AGAIN_S,
            monotonic=self._site.clock.monotonic,
            sleep=asyncio.sleep,
        )
        self._tasks.append(asyncio.create_task(kept, name=f"device plug-in: {name}"))

    async def _follow(self) -> None:
        """Offer what is decided, whenever it may be another."""
        while True:
            self._stirred = False
            self._offer(self._site.current())
            self._publish()
            await self._bell.until(lambda: self._stirred, self._site.pace.look_s)

    async def _keep_files(self) -> None:
        """Keep what is offered, and follow the kubelet's checkpoint."""
        while True:
            seen = self._folder.looks
            self._file.write(self._offers())
            await self._read_checkpoint()
            self._holding.forget_old()
            await self._bell.until(partial(self._looked, seen), self._site.pace.poll_s)

    def _looked_at(self) -> None:
        """Hear of a look at the folder; another kubelet knows of no answer but the written ones."""
        found = self._folder.seen.socket
        if found is not None and found != self._kubelet:
            if self._kubelet is not None:
                self._holding.forget()
            self._kubelet = found
        self._bell.ring()

    def _looked(self, seen: int) -> bool:
        return self._folder.looks != seen

    def _offer(self, snapshot: NodeSnapshot) -> None:
        offered = {one.name: one for one in self._site.decide.resources(snapshot)}
        kept = self._kept.items()
        self._kept = {name: one for name, one in kept if awaited(snapshot, one.vendor)}
        for name in self._kept:
            offered.pop(name, None)
        for resource in offered.values():
            self._put(resource, live=True)
        for resource in self._kept.values():
            self._put(self._aged(resource), live=False)
        for name in self._lives.keys() - offered.keys() - self._kept.keys():
            self._lives[name].answering.put_out()

    def _put(self, resource: Resource, *, live: bool) -> None:
        life = self._lives.get(resource.name)
        if resource.withdrawn_ids and not (life is not None and life.answering.offer.withdrawn_ids):
            self._tell_withdrawal(resource)
        if life is not None:
            life.answering.put(resource, live=live)
        elif resource.devices and len(self._lives) < MAX_RESOURCES:
            answering = Answering(resource, self._site, self._bell, self._holding, live=live)
            life = Life(self._site, self._folder, self._bell, answering, self._publish)
            self._lives[resource.name] = life
            self._keep(resource.name, life.run)

    def _tell_withdrawal(self, resource: Resource) -> None:
        """Tell that devices are withdrawn; more of them while there are some are told by metric."""
        text = (
            f"{resource.name}: {', '.join(resource.withdrawn_ids)[:200]} is in use by a pod whose "
        )
        text += (
            "device the kubelet does not account, and is listed as unhealthy until that pod ends"
        )
        self._site.tell(WITHDRAWN, text)

    def _aged(self, resource: Resource) -> Resource:
        """Return what was kept; without the vendor's word nobody can tell after a while."""
        if self._site.clock.monotonic() - self._began_s < self._site.pace.kept_s:
            return resource
        devices = (msgspec.structs.replace(one, healthy=False) for one in resource.devices)
        return msgspec.structs.replace(resource, devices=tuple(devices))

    def _offers(self) -> tuple[Resource, ...]:
        """Return what a next start of this boot begins with."""
        live = (life.answering for _, life in sorted(self._lives.items()) if life.answering.live)
        return (*(one.offer for one in live if one.devices), *self._kept.values())

    async def _read_checkpoint(self) -> None:
        try:
            found = await in_thread(partial(read_checkpoint, self._site.folder, self._checkpoint))
        except FileNotFoundError:
            self._checkpoint, self._unread = None, ""
            self._holding.written(())
            return
        except (ParseError, OSError) as error:
            if not self._unread:
                log.warning("device_checkpoint_unread", extra={"error": str(error)[:200]})
            self._unread = str(error)
            return
        self._unread = ""
        if found is not None:
            self._checkpoint, held = found
            for answer, entry in self._holding.written(held):
                self._astray(answer, entry)

    def _astray(self, answer: Held, entry: Held) -> None:
        """Tell of a grant that the kubelet gave to a pod of which nobody had told in time."""
        snapshot = self._site.current()
        granted = snapshot.grants.value.pods.get(answer.pod_uid)
        if granted is None or granted.refusal:
            return  # it got what the kubelet chose, whosever it is
        names = {pod.uid: f"{pod.namespace}/{pod.name}" for pod in snapshot.cluster.pods}
        other = names.get(entry.pod_uid, f"pod {entry.pod_uid}")
        text = f"{entry.resource}: {other} was given what {granted.namespace}/{granted.name} was "
        text += "granted, as nobody had told of it when the kubelet asked: delete that pod"
        self._site.tell(ASTRAY, text)

    def _publish(self) -> None:
        view = ServedView(
            resources=tuple(_served(life) for _, life in sorted(self._lives.items())),
            held=self._holding.held,
        )
        if view != self._view:
            self._view = view
            self._site.served(view)


def awaited(snapshot: NodeSnapshot, vendor: str) -> bool:
    """Say whether what is known of a vendor's devices is no answer of its own yet."""
    states = {state.state for state in snapshot.vendors if state.vendor == vendor}
    joined = snapshot.devices.taken_s is not None and vendor not in snapshot.devices.value.awaited
    return bool(states) and (not joined or states.isdisjoint(ANSWERED))


def _served(life: Life) -> ResourceServed:
    answering, standing = life.answering, life.standing
    return ResourceServed(
        name=answering.offer.name,
        vendor=answering.offer.vendor,
        state=standing.state,
        reason=standing.reason,
        message=standing.message,
        devices=len(answering.devices),
        healthy=sum(device.healthy for device in answering.devices),
        withdrawn_ids=answering.offer.withdrawn_ids,
        registrations=answering.counts.registrations,
        lists_sent=answering.counts.lists_sent,
    )
