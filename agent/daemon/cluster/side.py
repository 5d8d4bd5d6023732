"""The agent as a citizen of a cluster: opens the session, follows, asks, writes, and stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.daemon.cluster.checks import cluster_checks
from agent.daemon.cluster.known import Known
from agent.daemon.cluster.outlet import ClusterOutlet
from agent.errors import ParseError
from agent.kube.apply.requests import Target, decode_object
from agent.kube.backoff import Backoff
from agent.kube.base import Api
from agent.kube.errors import ApiError, NotFound
from agent.kube.resources import DEVICES, NODE_METRICS
from agent.kube.session.opening import open_session
from agent.kube.session.target import ApiTarget
from agent.loop import keep
from agent.model.selfcheck import Check
from agent.node.identity import read_machine
from agent.node.parts import Parts
from agent.node.published_minors import PublishedMinors

if TYPE_CHECKING:
    from agent.daemon.cluster.kubelet_side import KubeletSide
    from agent.kube.session.client import Session
    from agent.kube.watch.runner import Watch
    from agent.publish.cluster.outbox import Outbox
    from agent.publish.eventing.sink import EventSink
    from agent.publish.series.cluster import ClusterStatus

log = logging.getLogger(__name__)

FIRST = "node"  # followed before all others: nothing is written until it is known
TICK_S = 2.0  # how often ages are carried into the snapshot
AGAIN_S = 1.0  # after a bug, doubled each time
MAX_UNTOLD = 16
MEET_S = 1.0  # at a start: an API server that is away keeps nobody from serving
FLUSH_S = 1.5  # at a stop: for what is still to be written, and as long for what is to be told


class ClusterSide:
    """Everything of one cluster. Belongs to the loop thread."""

    def __init__(
        self,
        parts: Parts,
        target: ApiTarget,
        changed: Callable[[], None],
        minors: PublishedMinors | None = None,
    ) -> None:
        """Call `changed`, which is quick, when something that is published may differ.

        `minors` are taken from the Device object if the state directory has none.
        """
        self._parts = parts
        self._minors = minors or PublishedMinors()
        self._changed = changed
        self._target = target
        name = parts.store.current.node.name
        machine = read_machine(parts.opened.files)
        self.known = Known(name, machine, parts.store, parts.clock, changed, self._aside)
        self._errands: set[asyncio.Task[None]] = set()  # short ones, which end by themselves
        self._tasks: list[asyncio.Task[None]] = []
        self._tell: Callable[[str, str], None] | None = None
        # what was to be told before anybody could; a start has few of them
        self._untold: deque[tuple[str, str]] = deque(maxlen=MAX_UNTOLD)
        self.watches: dict[str, Watch[Any, Any]] = {}  # by the snapshot's name of it
        self.session: Session | None = None
        self.outbox: Outbox | None = None
        self.sink: EventSink | None = None
        self.kubelet: KubeletSide | None = None

    async def open(self) -> ClusterOutlet:
        """Open the session and begin to follow; raise `NoApiServer`.

        Nothing waits for an answer: an API server that is away is one that comes back.
        """
        parts, api = self._parts, self._parts.settings.api
        self.session = session = await open_session(self._target, parts.clock, os.environ)
        # imported here: while the HTTP library is loaded in its thread, nothing else should be
        from agent.daemon.cluster.following import is_watched, watches  # noqa: PLC0415 - see above
        from agent.publish.cluster.outbox import Outbox  # noqa: PLC0415 - see above
        from agent.publish.cluster.site import Site  # noqa: PLC0415 - see above
        from agent.publish.cluster.state import Pace  # noqa: PLC0415 - see above
        from agent.publish.eventing.sink import EventSink  # noqa: PLC0415 - see above
        from agent.publish.topology import V1ALPHA1, version_for  # noqa: PLC0415 - see above

        name = parts.store.current.node.name
        pace = Pace(resync_s=api.resync_s, takeover_s=api.takeover_s, deadline_s=api.deadline_s)
        site = Site(
            api=session,
            clock=parts.clock,
            node_uid=lambda: self._uid_of("Node"),
            tell=self._told,
            is_watched=lambda kind: is_watched(self.watches, kind),
            pace=pace,
        )
        self.outbox = outbox = Outbox(site)
        self.watches = watches(
            session,
            name,
            self.known,
            parts.clock,
            on_version=outbox.observe,
            topology_version=lambda: version_for(parts.store.current) or V1ALPHA1,
        )
        self._keep(self.watches[FIRST].run, f"watch {FIRST}")
        self.known.metric_came = partial(outbox.look_again, NODE_METRICS.kind)
        self._spawn(outbox.run(), "outbox")
        if api.events:
            self.sink = EventSink(
                session,
                name,
                parts.clock,
                uid_of=self._uid_of,
                may_tell=lambda: self.known.standing().writes,
                deadline_s=api.deadline_s,
            )
            self._keep(self.sink.run, "events at the API server")
        self._keep(self._keep_ages, "ages")
        if not self._minors.complete:
            self._keep(partial(self._adopt_minors, session, name), "published minors")
        return ClusterOutlet(
            outbox,
            self.sink,
            parts.store,
            parts.clock,
            self.known.standing,
            asyncio.get_running_loop(),
        )

    async def _adopt_minors(self, api: Api, name: str) -> None:
        """Read the Device object and take its minors; no Device is published before that."""
        deadline_s = self._parts.settings.api.deadline_s
        self._minors.adopt(await read_device(api, name, deadline_s))
        self._changed()

    async def met(self) -> None:
        """Wait until the Node is known, or is known not to be had; not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MEET_S):
                await self.watches[FIRST].settled()

    def tell_by(self, tell: Callable[[str, str], None]) -> None:
        """Tell of what the writing finds by `tell`, as events; and begin with all that is left.

        No Device waits for it: pods, NodeSLO and NodeMetric, versions, the kubelet.
        """
        self._tell = tell
        while self._untold:
            tell(*self._untold.popleft())
        if self.session is None:
            return
        self._follow_the_rest(self.session)
        if not self._parts.settings.kubelet.enabled:
            return
        # imported here: the first Device object does not wait for it
        from agent.daemon.cluster.kubelet_side import KubeletSide  # noqa: PLC0415 - see above

        self.kubelet = KubeletSide(self._parts, self.session.credentials, self.known)
        for name, work in self.kubelet.work():
            self._keep(work, name)

    def _follow_the_rest(self, session: Session) -> None:
        """Begin with what the first Device does not need: each connection would hold it up 5 ms."""
        # imported here: as the kubelet's side
        from agent.kube.served import follow_versions  # noqa: PLC0415 - see above
        from agent.publish.topology import GROUP  # noqa: PLC0415 - see above

        for part, watch in self.watches.items():
            if part != FIRST:
                self._keep(watch.run, f"watch {part}")
        versions = partial(follow_versions, session, GROUP, self.known.topology_versions)
        self._keep(versions, "versions of the topology")

    def wake_pods(self) -> None:
        """Have the kubelet's list of pods read again soon; the poller bounds how often."""
        if self.kubelet is not None:
            self.kubelet.poller.poke()

    async def stop(self) -> None:
        """Write what is still to be written and told, each for a short while; end everything."""
        if self.outbox is not None:
            await self.outbox.close(FLUSH_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.sink is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.sink.step(), FLUSH_S)
        if self.kubelet is not None:
            await self.kubelet.close()
        if self.session is not None:
            await self.session.close()

    def checks(self) -> list[Check]:
        """Say how every part of the cluster side does."""
        return cluster_checks(self)

    def status(self) -> ClusterStatus | None:
        """Return how every part does, in figures."""
        # imported here: the first Device object does not wait for metrics
        from agent.publish.series.cluster import ClusterStatus  # noqa: PLC0415 - see above

        if self.session is None or self.outbox is None:
            return None
        return ClusterStatus(
            session=self.session.state,
            watches=tuple(watch.state for watch in self.watches.values()),
            writers=self.outbox.states(),
            events=self.sink.state if self.sink is not None else None,
            kubelet=self.kubelet.poller.state if self.kubelet is not None else None,
            slo_stale_s=self._parts.settings.api.slo_stale_s,
        )

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_tell_if_it_failed)
        self._tasks.append(task)

    def _keep(self, work: Callable[[], Coroutine[object, object, None]], name: str) -> None:
        """Run what can be begun again: a bug in taking one thing must not blind us for ever."""
        monotonic = self._parts.clock.monotonic
        kept = keep(name, work, again_s=AGAIN_S, monotonic=monotonic, sleep=asyncio.sleep)
        self._spawn(kept, name)

    def _aside(self, work: Callable[[], None]) -> None:
        errand = asyncio.create_task(asyncio.to_thread(work), name="errand")
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)
        errand.add_done_callback(_tell_if_it_failed)

    def _told(self, reason: str, message: str) -> None:
        if self._tell is None:
            self._untold.append((reason, message))
        else:
            self._tell(reason, message)

    def _uid_of(self, kind: str) -> str:
        if kind == "Node":
            return self._parts.store.current.node.uid
        states = self.outbox.states() if self.outbox is not None else ()
        return next((state.uid for state in states if state.kind == kind), "")

    async def _keep_ages(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self._parts.clock.monotonic()
            for part in ("node", "slo", "metric_policy"):
                state = self.watches[part].state
                self.known.confirmed(part, state.contact_s(now_s), state.last_error)
            if (absent_s := self.watches["slo"].state.absent_s) is not None:
                self.known.no_slos(absent_s)
            self.known.api_answers(not self.watches["pods"].state.last_error)
            if self.kubelet is not None:
                self.kubelet.look_at_pods()


async def read_device(
    api: Api,
    name: str,
    deadline_s: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    uniform: Callable[[float, float], float] = random.uniform,
) -> object:
    """Return the Device object as JSON data, `None` if there is none; try until one is certain."""
    request = Target(resource=DEVICES, name=name, deadline_s=deadline_s).read()
    backoff, failures = Backoff(), 0
    while True:
        try:
            return decode_object((await api.call(request)).body)
        except NotFound:
            return None
        except (ApiError, ParseError) as error:
            failures += 1
            after_s = error.retry_after_s if isinstance(error, ApiError) else None
            await sleep(backoff.wait_s(failures, after_s, uniform))


def _tell_if_it_failed(task: asyncio.Task[None]) -> None:
    error = None
    with contextlib.suppress(asyncio.CancelledError):
        error = task.exception()
    if error is not None:  # a bug of ours: that part of the cluster side stands still
        log.error("cluster_task_lost", extra={"task": task.get_name()}, exc_info=error)
