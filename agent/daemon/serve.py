"""The daemon: starts every part, serves, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent.daemon.assembly import build_containers, build_view, load_the_rest
from agent.daemon.listen import Site
from agent.daemon.options import ServeOptions
from agent.daemon.runtime import settle
from agent.daemon.schedule import (
    DEVICES_AGAIN_S,
    Heartbeat,
    collector_thread,
    devices_thread,
    done_within,
    end_hanging,
    keep_running,
    run_when_changed,
)
from agent.errors import AgentError
from agent.loop import Loop
from agent.node.crew import Enlisted
from agent.node.fleet import Fleet
from agent.node.lock import stop_signals
from agent.node.parts import Parts

if TYPE_CHECKING:
    from agent.daemon.cluster.side import ClusterSide
    from agent.daemon.containers.side import ContainerSide
    from agent.daemon.loops import Loops
    from agent.daemon.reactions.wiring import Reactions
    from agent.daemon.telling.device_changes import DeviceChanges
    from agent.daemon.telling.outlet import Outlet
    from agent.daemon.view import DaemonView
    from agent.node.host_facts import HostFacts

log = logging.getLogger(__name__)

CANNOT = 3  # exit status
STOP_S = 3.0  # for the runs in progress on the threads; the vendors get two more
# then it serves: until then the runtime makes containers without us, and the kubelet has no
# devices; the Device object still waits for all vendors
FIRST_ANSWERS_S = 1.0


class Daemon:
    """One run of the agent. `run` returns the exit status."""

    def __init__(self, parts: Parts, crew: Iterable[Enlisted], options: ServeOptions) -> None:
        self._parts = parts
        self._options = options
        self._executor: ThreadPoolExecutor = collector_thread()
        self._devices: ThreadPoolExecutor = devices_thread()
        self._pool = ThreadPoolExecutor(thread_name_prefix="pool")  # the event loop's own
        self._heartbeat = Heartbeat(parts.clock)
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[object]] = []
        self._site = Site(options.listen)
        self._loops: Loops | None = None
        self._reactions: Reactions | None = None
        self._cluster: ClusterSide | None = None
        self._containers: ContainerSide | None = None
        self._kept = parts.health_file()
        self._minors = parts.published_minors(stores=True, adopts=parts.settings.publish.device)
        self._fleet = Fleet(
            crew,
            parts.settings,
            parts.store,
            parts.clock,
            self._changed.set,
            self._executor,
            self._kept,
        )

    async def run(self) -> int:
        """Serve until a signal of `STOP`; then stop everything in less than ten seconds."""
        event_loop = asyncio.get_running_loop()
        event_loop.set_default_executor(self._pool)
        for number in stop_signals():
            event_loop.add_signal_handler(number, self._leave)
        start = asyncio.create_task(self._start(), name="start")
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        failed: BaseException | None = None
        try:
            # a start may hang in a read of the host; whoever wants it to end must not wait for it
            await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                await start
            await stop
        except BaseException as error:
            failed = error
            raise
        finally:
            stop.cancel()
            if not await self._end(start):
                end_hanging(CANNOT if failed else 0, failed)
        return 0

    def _leave(self) -> None:
        """Stop; who looks at the lock sees that this stop was wanted."""
        if self._options.lock is not None:
            try:
                self._options.lock.leave()
            except AgentError as error:
                log.warning("leaving_not_marked", extra={"error": str(error)})
        self._stop.set()

    async def _start(self) -> None:
        event_loop = asyncio.get_running_loop()
        self._fleet.start()
        opening = asyncio.create_task(self._open_outlet(), name="outlet")
        self._tasks.append(opening)
        try:
            facts = await event_loop.run_in_executor(self._executor, self._read_host)
            outlet = await opening
        finally:
            opening.cancel()  # where it is of no use any more
        from agent.daemon.telling.device_changes import DeviceChanges  # noqa: PLC0415 - loaded by now

        changes = DeviceChanges(self._parts, outlet, facts)
        await self._first_answers()
        first = Loop("devices", DEVICES_AGAIN_S, changes.publish)
        await event_loop.run_in_executor(self._devices, first.step, self._parts.clock.monotonic())
        loops = await event_loop.run_in_executor(
            self._executor, self._build_loops, changes, outlet, event_loop
        )
        await event_loop.run_in_executor(self._executor, load_the_rest)
        await event_loop.run_in_executor(self._executor, settle)
        tell = loops.event_queue(self._devices).put
        reactions = self._reactions = self._build_reactions(loops, tell)
        containers = self._containers = build_containers(
            self._parts,
            self._fleet,
            self._executor,
            tell,
            loops.devices,
            self._cluster,
        )
        await containers.start()
        periodic = (*loops.timed, *containers.timed(), reactions.welcoming())
        beats = [*(timed.loop for timed in periodic), self._fleet.beat]
        url = await self._site.open(self._build_view(loops, beats))
        print(f"xpu-agent serves {url}", flush=True)  # noqa: T201 - asked for
        self._spawn(self._react(loops.devices), "devices")
        self._spawn(self._find_places(changes.facts, loops.host_changed), "places")
        self._spawn(self._heartbeat.run(loops.own.lateness), "heartbeat")
        for timed in periodic:
            thread = self._devices if timed.devices else self._executor
            self._spawn(
                keep_running(timed.loop, thread, self._parts.clock, timed.first_in_s),
                timed.loop.name,
            )
        await reactions.serve_admin(self._options.out)
        hotplug = reactions.hotplug(timed.loop for timed in periodic)
        if hotplug is not None:
            self._spawn(hotplug, "hotplug")

    def _build_reactions(self, loops: Loops, tell: Callable[[str, str], None]) -> Reactions:
        # imported here: as the loops
        from agent.daemon.reactions.wiring import Reactions  # noqa: PLC0415 - see above

        if self._cluster is not None:
            self._cluster.tell_by(tell)
        crash = self._options.lock.crash() if self._options.lock is not None else None
        if crash is not None:
            tell("AgentEndedUnexpectedly", crash)
        return Reactions(self._parts, self._fleet, self._executor, loops.host_changed, tell)

    def _build_view(self, loops: Loops, beats: list[Loop]) -> DaemonView:
        more = [loops.check_events, loops.check_devices, self._kept.check, self._minors.check]
        more += [self._heartbeat.check]
        more += [self._reactions.check] if self._reactions is not None else []
        more += [self._options.lock.check] if self._options.lock is not None else []
        return build_view(
            self._parts,
            self._executor,
            self._options.notice,
            loops,
            beats,
            more,
            self._cluster,
            self._containers,
        )

    async def _open_outlet(self) -> Outlet:
        """Open where everything is published to; no answer of a server is waited for."""
        if self._options.cluster is None:
            # imported here, and all that follows: the vendors' workers need longer to start
            from agent.daemon.telling.outlet import Folder  # noqa: PLC0415 - see above

            return Folder(self._options.out, self._parts.store, self._parts.clock)
        from agent.daemon.cluster.side import ClusterSide  # noqa: PLC0415 - see above

        self._cluster = ClusterSide(
            self._parts, self._options.cluster, self._changed.set, self._minors
        )
        return await self._cluster.open()

    def _read_host(self) -> HostFacts:
        import agent.daemon.telling.device_changes  # noqa: F401, PLC0415 - loaded on this thread

        if self._options.cluster is None and not self._minors.complete:
            # imported here: few starts have lost their state
            from agent.publish.device import FILE_NAME  # noqa: PLC0415 - see above
            from agent.publish.files import read_object  # noqa: PLC0415 - see above

            self._minors.adopt(read_object(Path(self._options.out, FILE_NAME)))
        facts = self._parts.facts(self._minors)
        facts.read()
        return facts

    def _build_loops(
        self, changes: DeviceChanges, outlet: Outlet, event_loop: asyncio.AbstractEventLoop
    ) -> Loops:
        # imported here: the first Device object does not wait for it
        from agent.daemon.loops import Loops  # noqa: PLC0415 - see above

        def on_host() -> None:
            event_loop.call_soon_threadsafe(self._changed.set)

        self._loops = Loops(self._parts, changes, outlet, on_host)
        return self._loops

    async def _first_answers(self) -> None:
        """Wait until every vendor, and the API server, has answered or failed to; not for long."""
        met = [self._cluster.met()] if self._cluster is not None else []
        await asyncio.gather(self._vendors_answered(), *met)

    async def _vendors_answered(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWERS_S):
                while not self._fleet.settled():
                    self._changed.clear()
                    await self._changed.wait()

    async def _react(self, devices: Loop) -> None:
        """Publish devices when they change, once for all that changes within a short window."""
        window_s = self._parts.settings.publish.coalesce_ms / 1000
        await run_when_changed(self._changed, devices, self._devices, self._parts.clock, window_s)

    async def _find_places(self, facts: HostFacts, read_host: Callable[[], None]) -> None:
        """Read the host when a new device waits for its place, on the collector thread.

        Devices are joined again after the read, or after `PLACE_S` if it hangs: a device that has
        waited that long is published without a place.
        """
        from agent.hotplug.complete import PLACE_S  # noqa: PLC0415 - loaded by now

        unplaced = asyncio.Event()
        event_loop = asyncio.get_running_loop()
        facts.on_unplaced = partial(event_loop.call_soon_threadsafe, unplaced.set)
        reading = Loop("places", PLACE_S, read_host)
        read: asyncio.Future[float] | None = None
        while True:
            await unplaced.wait()
            unplaced.clear()
            if read is None or read.done():
                now_s = self._parts.clock.monotonic()
                read = event_loop.run_in_executor(self._executor, reading.step, now_s)
            await asyncio.wait({read}, timeout=PLACE_S)
            await asyncio.sleep(DEVICES_AGAIN_S)
            self._changed.set()

    def _let_go(self) -> None:
        """Wait for all threads, then write and close what was theirs."""
        self._devices.shutdown()
        self._parts.state_writer.close()
        self._executor.shutdown()
        if self._containers is not None:
            self._containers.close()
        if self._loops is not None:
            self._loops.measuring.close()
        self._pool.shutdown()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _end(self, start: asyncio.Task[None]) -> bool:
        """Stop what is being opened, serving, the loops, the workers, the threads, in that order.

        Say whether the threads have ended.
        """
        if self._stop.is_set():
            log.info("stopping")
        start.cancel()
        await asyncio.wait({start})
        await self._site.close()
        if self._containers is not None:
            await self._containers.stop()
        if self._reactions is not None:
            await self._reactions.stop()
        if self._cluster is not None:
            await self._cluster.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fleet.stop()
        for thread in (self._devices, self._executor, self._pool):
            thread.shutdown(wait=False, cancel_futures=True)
        return await done_within(STOP_S, self._let_go)


def serve(parts: Parts, crew: Iterable[Enlisted], options: ServeOptions) -> int:
    """Run the daemon on this thread, which must be the one that enlisted the crew."""
    if options.cluster is not None:
        # imported here: a standalone agent does without
        from agent.kube.session.opening import believe_only_the_given  # noqa: PLC0415 - see above

        believe_only_the_given(options.cluster, os.environ)

    async def run() -> int:
        return await Daemon(parts, crew, options).run()

    return asyncio.run(run())
