"""Polls the kubelet's pods, settings and CPU checkpoint; keeps the last good answers."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from agent.clock import Clock
from agent.config.cluster import KubeletSettings
from agent.errors import HostFileError, ParseError
from agent.kube.errors import ApiError, Unreachable
from agent.kube.flow_control import Backoff, TokenBucket
from agent.kubelet.client import KubeletApi, PodList, classify_error
from agent.loop import ThreadRunner, run_in_thread
from agent.snapshot.cluster import (
    KUBELET_ABSENT,
    KUBELET_EMPTY,
    KUBELET_HANGING,
    KUBELET_OK,
    KUBELET_STARTING,
    KubeletStatus,
    KubeletView,
)
from agent.snapshot.cpu import CpuTopology
from agent.snapshot.host_files import HostFiles
from agent.snapshot.node import SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from agent.topology.cpu_manager import reserved_cpus
from agent.wire_formats.kubelet import (
    CHECKPOINT_NAME,
    MAX_CHECKPOINT_BYTES,
    CpuCheckpoint,
    KubeletConfig,
    parse_checkpoint,
)

log = logging.getLogger(__name__)

STATIC = "static"
CONFIG_INTERVAL_S = 300.0  # the settings change only when the kubelet restarts
READ_S = 3.0  # for a file of the host
RETRY_S = 20.0  # after a first failure; doubles up to `CONFIG_INTERVAL_S`
NO_CONFIGZ = "the kubelet's read-only port has no /configz"


FactSources = tuple[KubeletConfig | None, CpuCheckpoint | None, CpuTopology]


def join_facts(
    config: KubeletConfig | None, checkpoint: CpuCheckpoint | None, cpus: CpuTopology
) -> KubeletView | None:
    """Join the settings and the checkpoint; `None` if both are missing.

    The checkpoint also has the policy, if the settings may not be read.
    """
    if config is None and checkpoint is None:
        return None
    configuration, cpu_checkpoint = config or KubeletConfig(), checkpoint or CpuCheckpoint()
    policy = configuration.cpu_manager_policy or cpu_checkpoint.policy
    reserved = None
    if policy == STATIC and config is not None:
        reserved = configuration.reserved_system_cpus or reserved_cpus(
            cpus, configuration.reserved_milli, dict(configuration.cpu_manager_options)
        )
    return KubeletView(
        cpu_manager_policy=policy,
        cpu_manager_options=configuration.cpu_manager_options,
        reserved_cpus=reserved,
        topology_policy=configuration.topology_policy,
        topology_scope=configuration.topology_scope,
        cgroup_driver=configuration.cgroup_driver,
        cgroup_root=configuration.cgroup_root,
        pod_cpus=cpu_checkpoint.pod_cpus if policy == STATIC else (),
    )


class KubeletFactsSource:
    """Reads the settings seldom and the checkpoint each time; keeps the last good answer of both.

    `files` is the host's; `None` if the kubelet's folder is not visible.
    """

    def __init__(
        self,
        client: KubeletApi,
        clock: Clock,
        store: SnapshotStore,
        files: HostFiles | None,
        root_dir: str,
        offload: ThreadRunner = run_in_thread,
    ) -> None:
        """`root_dir` is the kubelet's folder on the host."""
        self.state = KUBELET_STARTING
        self._client = client
        self._clock = clock
        self._store = store
        self._files = files
        self._root_dir = root_dir
        self._offload = offload
        self._config: SnapshotPart[KubeletConfig | None] = SnapshotPart(None)
        self._checkpoint: SnapshotPart[CpuCheckpoint | None] = SnapshotPart(None)
        self._due_s = clock.monotonic()
        self._failures = 0
        self._read_task: asyncio.Future[CpuCheckpoint | None] | None = None
        self._joined_sources: FactSources | None = None
        self._facts: KubeletView | None = None

    def expire(self) -> None:
        """Read the settings at the next poll."""
        self._due_s = self._clock.monotonic()

    async def refresh(self, *, may_read_config: bool) -> SnapshotPart[KubeletView | None]:
        """Return the present facts; their time is that of the last answer of `/configz`.

        Without such an answer it is the checkpoint's, and `error` says what is missing.
        """
        if may_read_config and self._clock.monotonic() >= self._due_s:
            await self._read_config()
        await self._read_checkpoint()
        facts = await self._join()
        error = self._config.error or self._checkpoint.error
        if facts is None:
            return SnapshotPart(None, None, error)
        taken_s = self._checkpoint.taken_s if self._config.taken_s is None else self._config.taken_s
        return SnapshotPart(facts, taken_s, error)

    async def _join(self) -> KubeletView | None:
        """Join again only if a source changed: on a large machine that takes milliseconds."""
        sources = (self._config.value, self._checkpoint.value, self._store.current.cpus.value)
        if sources != self._joined_sources:
            self._facts = await self._offload(lambda: join_facts(*sources))
            self._joined_sources = sources
        return self._facts

    async def _read_config(self) -> None:
        try:
            config = await self._client.config()
        except ApiError as error:
            self._record_config_error(classify_error(error), str(error))
            return
        if config is None:
            self._record_config_error(KUBELET_ABSENT, NO_CONFIGZ)
            return
        previous = self._config.value
        if config.mistyped_keys and (
            previous is None or config.mistyped_keys != previous.mistyped_keys
        ):
            log.warning("kubelet_config_odd", extra={"keys": ", ".join(config.mistyped_keys)})
        self.state, self._failures = KUBELET_OK, 0
        self._config = SnapshotPart(config, self._clock.monotonic())
        self._due_s = self._clock.monotonic() + CONFIG_INTERVAL_S

    def _record_config_error(self, state: str, error: str) -> None:
        if self.state != state:
            log.warning("kubelet_config_unknown", extra={"state": state, "error": error})
        self.state = state
        self._config = SnapshotPart(self._config.value, self._config.taken_s, error)
        self._due_s = self._clock.monotonic() + min(
            CONFIG_INTERVAL_S, RETRY_S * 2.0 ** min(self._failures, 8)
        )
        self._failures += 1

    async def _read_checkpoint(self) -> None:
        """Read the checkpoint; a read that hangs blocks one thread, but not the poll of pods."""
        files = self._files
        if files is None:
            return
        if self._read_task is None:
            read = self._offload(lambda: read_checkpoint(files, self._root_dir))
            self._read_task = asyncio.ensure_future(read)
        done, _ = await asyncio.wait({self._read_task}, timeout=READ_S)
        if not done:
            self._record_checkpoint_error(
                f"{self._root_dir}: its checkpoint was not read within {READ_S:g} s"
            )
            return
        reading, self._read_task = self._read_task, None
        try:
            self._checkpoint = SnapshotPart(reading.result(), self._clock.monotonic())
        except (HostFileError, ParseError) as error:
            self._record_checkpoint_error(str(error))

    def _record_checkpoint_error(self, error: str) -> None:
        self._checkpoint = SnapshotPart(self._checkpoint.value, self._checkpoint.taken_s, error)


Sleep = Callable[[float], Awaitable[None]]

Uniform = Callable[[float, float], float]


MAX_BACKOFF_S = 30.0

EARLY_POLLS_BURST, EARLY_POLL_REFILL_S = 10, 0.2  # polls out of turn, as many as koordlet makes


class KubeletListener(Protocol):
    """Takes the answers of the kubelet; belongs to the loop thread."""

    def update_kubelet_pods(self, part: SnapshotPart[tuple[PodView, ...]]) -> None:
        """Take the kubelet's pods."""
        ...

    def update_kubelet_facts(self, part: SnapshotPart[KubeletView | None]) -> None:
        """Take the kubelet's settings and the CPUs that it allocated."""
        ...


class KubeletPoller:
    """Polls the kubelet.

    Belongs to the loop thread; the listener gets pods and facts after every poll.

    A poll that fails, or returns no pods at all, leaves the pods and their time as they were, with
    the reason in `error`: a node without pods cannot run this agent, so an empty list is that of a
    kubelet that has just started.
    """

    def __init__(
        self,
        client: KubeletApi,
        clock: Clock,
        kubelet: KubeletSettings,
        *,
        facts: KubeletFactsSource,
        listener: KubeletListener,
        sleep: Sleep = asyncio.sleep,
        uniform: Uniform = random.uniform,
    ) -> None:
        """`kubelet` has the interval; `facts` reads the settings of the same kubelet."""
        self.state = KubeletStatus()
        self._client = client
        self._clock = clock
        self._interval_s = kubelet.interval_s
        self._backoff = Backoff(max_s=max(MAX_BACKOFF_S, kubelet.interval_s))
        self._facts = facts
        self._listener = listener
        self._sleep = sleep
        self._uniform = uniform
        self._pods: SnapshotPart[tuple[PodView, ...]] = SnapshotPart(())
        self._early_poll = asyncio.Event()
        self._bucket = TokenBucket(EARLY_POLLS_BURST, EARLY_POLL_REFILL_S)
        self._poll_counts: Counter[str] = Counter()
        self._connections = 0

    def poll_soon(self) -> None:
        """Poll soon: something changed on this node.

        Calls before that poll have no further effect.
        """
        if not self._early_poll.is_set():
            self.state = msgspec.structs.replace(self.state, early_polls=self.state.early_polls + 1)
            self._early_poll.set()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self._pause(await self.poll())

    async def poll(self) -> float:
        """Poll once; return the seconds until the next poll, unless `poll_soon` is called."""
        self._early_poll.clear()
        started_s = self._clock.monotonic()
        has_answered = True
        try:
            self._record_pods(await self._client.pods())
        except ApiError as error:
            has_answered = not isinstance(error, Unreachable)
            self._record_error(classify_error(error), str(error))
        self.state = msgspec.structs.replace(
            self.state, duration_s=self._clock.monotonic() - started_s
        )
        self._listener.update_kubelet_pods(self._pods)
        facts = await self._facts.refresh(may_read_config=has_answered)
        self._record_facts(facts)
        self._listener.update_kubelet_facts(facts)
        if not self.state.failures:
            return self._interval_s
        return self._backoff.wait_s(self.state.failures, None, self._uniform)

    def _record_pods(self, pods: PodList) -> None:
        is_back = self.state.pods in (KUBELET_ABSENT, KUBELET_HANGING)
        has_new_connection = self._client.connections != self._connections
        self._connections = self._client.connections
        if is_back or (has_new_connection and self._facts.state == KUBELET_OK):
            self._facts.expire()  # the kubelet may have restarted with other settings
        if is_back:
            restarts = self.state.restarts + 1
            self.state = msgspec.structs.replace(self.state, restarts=restarts)
        if not pods.pods:
            malformed = f", {pods.malformed} malformed ones beside" if pods.malformed else ""
            self._record_error(KUBELET_EMPTY, f"the kubelet lists no pods{malformed}")
            return
        previous = self._pods.value
        # equal pods stay the same object, so that comparisons are fast
        is_unchanged = previous == pods.pods
        self._pods = SnapshotPart(previous if is_unchanged else pods.pods, self._clock.monotonic())
        self._update_state(KUBELET_OK, "", failures=0, left_out=pods.malformed)

    def _record_error(self, state: str, detail: str) -> None:
        if self.state.pods != state:
            log.warning("kubelet_pods_unknown", extra={"state": state, "error": detail})
        self._pods = SnapshotPart(self._pods.value, self._pods.taken_s, detail)
        self._update_state(
            state, detail, failures=self.state.failures + 1, left_out=self.state.malformed
        )

    def _update_state(self, state: str, detail: str, failures: int, left_out: int) -> None:
        self._poll_counts[state] += 1
        is_new_state = self.state.pods != state
        self.state = msgspec.structs.replace(
            self.state,
            pods=state,
            detail=detail,
            failures=failures,
            malformed=left_out,
            since_s=self._clock.monotonic() if is_new_state else self.state.since_s,
            polls=tuple(sorted(self._poll_counts.items())),
        )

    def _record_facts(self, facts: SnapshotPart[KubeletView | None]) -> None:
        detail = self.state.detail or facts.error
        self.state = msgspec.structs.replace(self.state, config=self._facts.state, detail=detail)

    async def _pause(self, wait_s: float) -> None:
        """Wait, or until a `poll_soon` that the rate limit accepts."""
        sleeper = asyncio.ensure_future(self._sleep(wait_s))
        early_poll = asyncio.ensure_future(self._early_poll.wait())
        try:
            await asyncio.wait((sleeper, early_poll), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()
            early_poll.cancel()
        if self._early_poll.is_set():
            delay_s = self._bucket.reserve(self._clock.monotonic())
            if delay_s:
                await self._sleep(delay_s)


def read_checkpoint(files: HostFiles, root_dir: str) -> CpuCheckpoint | None:
    """Return the checkpoint below the kubelet's folder; `None` if there is none.

    Raises `HostFileError`, and `ParseError` for a damaged file.
    """
    try:
        data = files.read(f"{root_dir}/{CHECKPOINT_NAME}", MAX_CHECKPOINT_BYTES + 1)
    except HostFileError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    return parse_checkpoint(data)
