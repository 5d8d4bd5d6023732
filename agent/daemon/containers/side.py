"""The way into containers: hooks for the runtime, devices for the kubelet, slices, proof."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.daemon.containers.asking import Asker
from agent.daemon.containers.folders import make_folders
from agent.daemon.containers.keeping import Keeping
from agent.daemon.containers.looking import Looking
from agent.daemon.containers.naming import Naming
from agent.daemon.schedule import Timed
from agent.hooks.builtin import node_hooks
from agent.hooks.devices import DevicesHook
from agent.hooks.dispatch import ON, modes_of
from agent.loop import keep
from agent.model.grant.edits import ContainerEdits
from agent.model.inventory import Problem
from agent.model.part import Part
from agent.model.runtime.seen import RuntimeView, SandboxSeen
from agent.model.runtime.served import ServedView
from agent.model.selfcheck import Check
from agent.node.fleet import Fleet
from agent.node.parts import Parts
from agent.probe.life import Cut
from agent.publish.eventing.event import PodRef
from agent.publish.series.containers import ContainerStatus, HookRow
from agent.slicing.keeping import Slicer

if TYPE_CHECKING:
    from agent.cgroup.writing.audit import Audit
    from agent.deviceplugin.deciding import Deciding
    from agent.deviceplugin.kubelet.plugin import DevicePlugin
    from agent.model.runtime.slices import SlicesKept, SliceWish
    from agent.nri.plugin import NriPlugin

log = logging.getLogger(__name__)

AGAIN_S = 1.0  # after a bug, doubled each time
# then it answers: without an answer a container starts without its card, an unread host refuses it
FIRST_LOOK_S = 1.0
LOCK = "nri.lock"
OWN_POD = "POD_UID"  # of the environment, set by the manifest

Tell = Callable[[str, str, PodRef | None], None]


class ContainerSide:
    """Belongs to the loop thread. On a recorded host it only looks: nothing is reached there."""

    def __init__(
        self,
        parts: Parts,
        fleet: Fleet,
        collector: Executor,
        tell: Tell,
        *,
        clustered: bool,
        wake_pods: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin with nothing; reads and writes of files are done on `collector`.

        `wake_pods` has the kubelet's list of pods read again soon, and returns at once.
        """
        self._wake_pods = wake_pods
        self._parts, self._fleet, self._collector = parts, fleet, collector
        self._tell = tell
        live = parts.opened.spec is None
        attach = parts.settings.nri.attach
        self._dials = live and (attach == "on" or (attach == "auto" and clustered))
        self._serves = live and bool(parts.settings.device_plugin.vendors)
        self._own_uid = os.environ.get(OWN_POD, "")
        settings = parts.settings
        devices = DevicesHook(parts.vendors, settings.hooks, self._own_uid)
        asks_kubelet = clustered and settings.kubelet.enabled
        self._hooks = (devices, *node_hooks(asks_kubelet=asks_kubelet, hooks=settings.hooks))
        self._modes = modes_of(self._hooks, settings.enforce)
        proves = live and settings.proof.enabled
        self._looking = Looking(parts, devices, proves=proves, exempt=self._exempts)
        writes = live and (clustered or self._dials)
        self._keeping = Keeping(parts, self._hooks, self._modes, tell) if writes else None
        names = (writes or self._serves) and settings.cdi.write
        self._naming = Naming(parts) if names else None
        self._asker: Asker | None = None
        self._nri: NriPlugin | None = None
        self._plugin: DevicePlugin | None = None
        self._deciding: Deciding | None = None
        self._odd: frozenset[tuple[str, Problem]] = frozenset()  # of what is offered, and was told
        self._slicer: Slicer | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def timed(self) -> Iterator[Timed]:
        """Return the loops of the collector thread."""
        yield from self._looking.timed()
        if self._keeping is not None:
            yield from self._keeping.timed()
        if self._naming is not None:
            yield from self._naming.timed()

    async def start(self) -> None:
        """Look once, then answer the runtime and the kubelet, also if the look hangs."""
        event_loop = asyncio.get_running_loop()
        # before anybody asks: what the host has decides every answer
        look = event_loop.run_in_executor(self._collector, self._looking.first)
        done, _ = await asyncio.wait({look}, timeout=FIRST_LOOK_S)
        if not done:
            log.warning("first_look_late", extra={"waited_s": FIRST_LOOK_S})
        if self._dials:
            self._dial()
        if self._serves:
            self._serve()
        if self._keeping is not None and self._modes[DevicesHook.name] == ON:
            self._slicer = Slicer(
                lambda: self._parts.store.current,
                self._cut,
                self._tell_of,
                self._parts.clock,
                grace_s=self._parts.settings.proof.grace_s,
            )
            self._keep(self._slicer.run, "slices")

    def _dial(self) -> None:
        # imported here: protobuf is of no use to an agent that dials no runtime
        from agent.nri.plugin import NriPlugin  # noqa: PLC0415 - see above

        settings, keeping = self._parts.settings, self._keeping
        assert keeping is not None  # noqa: S101 - who dials keeps files, too
        self._asker = Asker(
            self._hooks,
            self._modes,
            lambda: self._parts.store.current,
            self._parts.clock,
            tell=self._tell,
            write_pod=keeping.write_pod,
            given=keeping.given,
            files=self._collector,
        )
        self._nri = NriPlugin(
            settings.nri,
            ask=self._asker.ask,
            seen=self._seen,
            clock=self._parts.clock,
            protects=self._protects,
            lock_path=_lock_path(settings.node.run_dir),
        )
        self._keep(self._nri.run, "container runtime")

    def _serve(self) -> None:
        # imported here: gRPC is of no use to an agent that serves no kubelet
        from agent.deviceplugin.deciding import Deciding  # noqa: PLC0415 - see above
        from agent.deviceplugin.kubelet.plugin import DevicePlugin  # noqa: PLC0415 - see above
        from agent.deviceplugin.serve.names import plugin_folder  # noqa: PLC0415 - see above
        from agent.deviceplugin.serve.site import Site  # noqa: PLC0415 - see above

        parts = self._parts
        self._deciding = Deciding(parts.settings.device_plugin, parts.vendors)
        self._plugin = DevicePlugin(
            Site(
                folder=plugin_folder(parts.settings.kubelet.root_dir),
                current=lambda: parts.store.current,
                decide=self._deciding,
                clock=parts.clock,
                state_dir=parts.settings.node.state_dir,
                boot_id=parts.store.current.node.boot_id,
                state_writer=parts.state_writer,
                served=self._served,
                tell=lambda reason, message: self._tell(reason, message, None),
                prepare=_prepare,
                wake=self._wake_pods,
            )
        )
        self._keep(self._plugin.run, "device plug-in")

    def pods_changed(self) -> None:
        """Update the lists of devices at once: the kubelet admits no pod if none is healthy.

        It admits a granted pod some milliseconds after the pod before it ended.
        """
        if self._plugin is not None:
            self._plugin.changed()

    def devices_changed(self) -> None:
        """Tell the kubelet at once of what became better or worse."""
        if self._plugin is None or self._deciding is None:
            return
        self._plugin.changed()
        found = frozenset(self._deciding.problems(self._parts.store.current))
        for _, problem in sorted(found - self._odd, key=lambda one: (one[0], one[1].reason)):
            self._tell(problem.reason, problem.message, None)
        self._odd = found

    def checks(self) -> list[Check]:
        """Say how every way into containers does; none gates readiness but for people."""
        runtime = self._parts.store.current.runtime.value
        found = []
        if self._dials:
            words = f"{runtime.state} {runtime.reason} {runtime.message}".strip()
            found.append(
                Check(name="runtime", ok=runtime.in_force, message=words, gates_ready=False)
            )
        for one in self._parts.store.current.served.value.resources:
            words = f"{one.state} {one.reason} {one.message}".strip()
            ok = one.state == "watched"
            found.append(Check(name=f"kubelet:{one.name}", ok=ok, message=words, gates_ready=False))
        for vendor, problem in sorted(self._odd, key=lambda one: one[0]):
            words = f"{problem.reason}: {problem.message}"
            found.append(
                Check(name=f"offered:{vendor}", ok=False, message=words, gates_ready=False)
            )
        if self._keeping is not None:
            found += self._keeping.checks()
        if self._naming is not None:
            found.append(self._naming.check())
        return found

    def status(self) -> ContainerStatus:
        """Return how every part does, in figures."""
        figures = self._asker.figures if self._asker is not None else None
        keeping = self._keeping
        return ContainerStatus(
            nri=self._nri.state if self._nri is not None else None,
            hooks=tuple(
                HookRow(
                    hook=name,
                    calls=figures.calls[name],
                    spent_s=figures.spent_s[name],
                    failures=figures.failures[name],
                    planned=figures.planned[name],
                )
                for name in sorted(figures.calls)
            )
            if figures is not None
            else (),
            refusals=tuple(sorted(figures.refusals.items())) if figures is not None else (),
            plugin=self._plugin.figures() if self._plugin is not None else (),
            files_written=keeping.written if keeping is not None else 0,
            files_left=keeping.left if keeping is not None else None,
            reclaimed=self._slicer.reclaimed if self._slicer is not None else 0,
        )

    def audit(self) -> tuple[Audit, ...]:
        """Return the last changes of files on this host, oldest first."""
        return self._keeping.audit() if self._keeping is not None else ()

    async def stop(self) -> None:
        """Answer nobody any more; what is in force stays."""
        if self._nri is not None:
            await self._nri.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Close files; belongs to the collector thread, when all else has ended."""
        if self._keeping is not None:
            self._keeping.close()

    def _keep(self, work: Callable[[], Coroutine[object, object, None]], name: str) -> None:
        monotonic = self._parts.clock.monotonic
        kept = keep(name, work, again_s=AGAIN_S, monotonic=monotonic, sleep=asyncio.sleep)
        self._tasks.append(asyncio.create_task(kept, name=name))

    def _protects(self, pod: SandboxSeen) -> bool:
        """Say whether a pod's containers are left alone unless they were granted something."""
        namespaces = self._parts.settings.hooks.protected_namespaces
        return pod.namespace in namespaces or (bool(pod.uid) and pod.uid == self._own_uid)

    def _exempts(self, pod: SandboxSeen) -> bool:
        """Return whether devices in a pod without a grant are not reported."""
        return self._parts.settings.hooks.ungranted == "off" or self._protects(pod)

    def _seen(self, view: RuntimeView) -> None:
        before = self._parts.store.current.runtime.value
        turned = before.turned_s is None or before.in_force is not view.in_force
        turned_s = self._parts.clock.wall() if turned else before.turned_s
        view = replace(view, turned_s=turned_s)
        self._parts.store.put(runtime=Part(view, self._parts.clock.monotonic()))
        if self._keeping is not None:
            self._keeping.mark(before, view)

    def _served(self, view: ServedView) -> None:
        self._parts.store.put(served=Part(view, self._parts.clock.monotonic()))

    async def _cut(
        self, vendor: str, wishes: tuple[SliceWish, ...], pods: tuple[str, ...] | None
    ) -> SlicesKept:
        return await self._fleet.have(vendor, Cut(wishes, pods))

    def _tell_of(self, pod: str, reason: str, message: str) -> None:
        """Tell of a pod by its uid, as far as anybody knows its name."""
        grant = self._parts.store.current.grants.value.pods.get(pod)
        ref = None
        if grant is not None:
            ref = PodRef(namespace=grant.namespace or "default", name=grant.name, uid=pod)
        self._tell(reason, message if ref or not pod else f"pod {pod}: {message}", ref)


async def _prepare(edits: ContainerEdits) -> None:
    if edits.folders:
        await asyncio.to_thread(make_folders, edits.folders)


def _lock_path(folder: str) -> str:
    """Return the file whose lock keeps a second agent from the runtime; its folder is made."""
    if not folder:
        return ""
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
    except OSError as error:
        log.warning("no_lock", extra={"path": folder, "error": error.strerror})
        return ""
    return os.path.join(folder, LOCK)
