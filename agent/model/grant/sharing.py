"""Cards that several containers share: what HAMi-core counts, and which MPS daemons run."""

from __future__ import annotations

import msgspec

from agent.model.inventory import Problem


class SharedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process on one card of a region; `host_pid` is 0 while HAMi-core has not found it."""

    host_pid: int
    memory_bytes: int


class SharedCard(msgspec.Struct, frozen=True, kw_only=True):
    """One card of a container as HAMi-core counts it: sums over the container's processes."""

    index: int  # position in the container
    uuid: str
    used_bytes: int = 0
    context_bytes: int = 0
    module_bytes: int = 0
    buffer_bytes: int = 0
    offset_bytes: int = 0
    core_percent: int = 0
    limit_bytes: int | None = None  # None: unlimited
    core_limit_percent: int | None = None  # None: unlimited
    processes: tuple[SharedProcess, ...] = ()
    measured_bytes: int | None = None  # the driver's, told where the count has drifted off


class SharedRegion(msgspec.Struct, frozen=True, kw_only=True):
    """What one container's region says."""

    pod_uid: str
    container: str  # name
    layout: str  # A, B, O
    cards: tuple[SharedCard, ...] = ()
    last_kernel_s: int | None = None  # Unix time; None: no kernel yet, or the layout has no such


class MpsDaemon(msgspec.Struct, frozen=True, kw_only=True):
    """One running MPS control daemon."""

    pid: int
    pipe_dir: str | None = None  # None: its environment is not readable
    log_dir: str | None = None
    cards: tuple[str, ...] = ()  # as its CUDA_VISIBLE_DEVICES; empty: all, or not readable
    servers: tuple[int, ...] = ()  # pids of its servers, one for each user at work

    def serves(self, uuid: str) -> bool:
        """Say whether the daemon was started for this very card."""
        return uuid in self.cards

    def reaches(self, uuid: str) -> bool:
        """Say whether its clients can use the card; one that was told no cards reaches them all."""
        return uuid in self.cards or (self.pipe_dir is not None and not self.cards)


class SharingView(msgspec.Struct, frozen=True, kw_only=True):
    """All regions and daemons of the node, and what could not be read of them."""

    regions: tuple[SharedRegion, ...] = ()  # by pod uid, then container
    mps: tuple[MpsDaemon, ...] = ()  # by pid
    problems: tuple[Problem, ...] = ()
    wall_s: float = 0.0  # Unix time of the look, which times in the regions are compared with
