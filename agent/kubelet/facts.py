"""Keeps the kubelet's settings and what it gave away of CPUs known; they seldom change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from agent.clock import Clock
from agent.errors import HostFileError, ParseError
from agent.host.files import HostFiles
from agent.kube.errors import ApiError
from agent.kubelet.base import (
    ABSENT,
    OK,
    STARTING,
    Kubelet,
    KubeletConfig,
    Offload,
    in_thread,
    state_of,
)
from agent.kubelet.checkpoint import CpuCheckpoint, read_checkpoint
from agent.model.cluster.facts import KubeletFacts
from agent.model.cluster.kubelet_choice import kubelet_choice
from agent.model.part import Part
from agent.topology.cpu import CpuTopology

log = logging.getLogger(__name__)

STATIC = "static"
AGAIN_S = 300.0  # settings change with a restart of the kubelet only
READ_S = 3.0  # for a file of the host
RETRY_S = 20.0  # after a first failure; doubles up to `AGAIN_S`
NOT_OFFERED = "the kubelet's read-only port has no /configz"


Sources = tuple[KubeletConfig | None, CpuCheckpoint | None, CpuTopology]


def facts_of(
    config: KubeletConfig | None, checkpoint: CpuCheckpoint | None, cpus: CpuTopology
) -> KubeletFacts | None:
    """Join what the two sources say; `None` if neither says anything.

    The checkpoint names the policy too, where the settings may not be asked for.
    """
    if config is None and checkpoint is None:
        return None
    known, given = config or KubeletConfig(), checkpoint or CpuCheckpoint()
    policy = known.cpu_manager_policy or given.policy
    reserved = None
    if policy == STATIC and config is not None:
        reserved = known.reserved_system_cpus or kubelet_choice(
            cpus, known.reserved_milli, dict(known.cpu_manager_options)
        )
    return KubeletFacts(
        cpu_manager_policy=policy,
        cpu_manager_options=known.cpu_manager_options,
        reserved_cpus=reserved,
        topology_policy=known.topology_policy,
        topology_scope=known.topology_scope,
        cgroup_driver=known.cgroup_driver,
        cgroup_root=known.cgroup_root,
        pod_cpus=given.pod_cpus if policy == STATIC else (),
    )


class FactsSource:
    """Asks seldom, reads the checkpoint each time, and keeps the last good answer of both.

    `files` is the host's; `None` where its folder of the kubelet is not to be seen.
    """

    def __init__(
        self,
        client: Kubelet,
        clock: Clock,
        cpus: Callable[[], CpuTopology],
        files: HostFiles | None,
        root_dir: str,
        offload: Offload = in_thread,
    ) -> None:
        """`root_dir` is the kubelet's folder on the host."""
        self.state = STARTING
        self._client = client
        self._clock = clock
        self._cpus = cpus
        self._files = files
        self._root_dir = root_dir
        self._offload = offload
        self._config: Part[KubeletConfig | None] = Part(None)
        self._given: Part[CpuCheckpoint | None] = Part(None)
        self._due_s = clock.monotonic()
        self._failures = 0
        self._reading: asyncio.Future[CpuCheckpoint | None] | None = None
        self._made_of: Sources | None = None
        self._facts: KubeletFacts | None = None

    def expire(self) -> None:
        """Ask for the settings at the next look."""
        self._due_s = self._clock.monotonic()

    async def look(self, *, ask: bool) -> Part[KubeletFacts | None]:
        """Return what is known now; its time is that of the last answer of `/configz`.

        Without one it is the checkpoint's, and `error` says what is lacking.
        """
        if ask and self._clock.monotonic() >= self._due_s:
            await self._ask()
        await self._read()
        facts = await self._joined()
        error = self._config.error or self._given.error
        if facts is None:
            return Part(None, None, error)
        taken_s = self._given.taken_s if self._config.taken_s is None else self._config.taken_s
        return Part(facts, taken_s, error)

    async def _joined(self) -> KubeletFacts | None:
        """Join anew only when a source changed: on a large machine that takes milliseconds."""
        sources = (self._config.value, self._given.value, self._cpus())
        if sources != self._made_of:
            self._facts = await self._offload(lambda: facts_of(*sources))
            self._made_of = sources
        return self._facts

    async def _ask(self) -> None:
        try:
            config = await self._client.config()
        except ApiError as error:
            self._lack(state_of(error), str(error))
            return
        if config is None:
            self._lack(ABSENT, NOT_OFFERED)
            return
        before = self._config.value
        if config.odd and (before is None or config.odd != before.odd):
            log.warning("kubelet_config_odd", extra={"keys": ", ".join(config.odd)})
        self.state, self._failures = OK, 0
        self._config = Part(config, self._clock.monotonic())
        self._due_s = self._clock.monotonic() + AGAIN_S

    def _lack(self, state: str, error: str) -> None:
        if self.state != state:
            log.warning("kubelet_config_unknown", extra={"state": state, "error": error})
        self.state = state
        self._config = Part(self._config.value, self._config.taken_s, error)
        self._due_s = self._clock.monotonic() + min(
            AGAIN_S, RETRY_S * 2.0 ** min(self._failures, 8)
        )
        self._failures += 1

    async def _read(self) -> None:
        """Read the checkpoint; a read that hangs holds one thread, and no look at the pods."""
        files = self._files
        if files is None:
            return
        if self._reading is None:
            read = self._offload(lambda: read_checkpoint(files, self._root_dir))
            self._reading = asyncio.ensure_future(read)
        done, _ = await asyncio.wait({self._reading}, timeout=READ_S)
        if not done:
            self._keep(f"{self._root_dir}: its checkpoint was not read within {READ_S:g} s")
            return
        reading, self._reading = self._reading, None
        try:
            self._given = Part(reading.result(), self._clock.monotonic())
        except (HostFileError, ParseError) as error:
            self._keep(str(error))

    def _keep(self, error: str) -> None:
        self._given = Part(self._given.value, self._given.taken_s, error)
