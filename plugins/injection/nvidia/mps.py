"""MPS: clients of one daemon a card, each with a share of its threads and memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agent.model.grant.container import Container
from agent.model.grant.edits import ContainerEdits, MountEdit
from agent.model.grant.granted import CORE, MEMORY, Match
from agent.model.grant.host import HostMeans
from agent.model.grant.refusal import GrantRefused, Refusal
from plugins.injection.identifiers import visible_id

ANNOTATION = "xpu-agent.io/gpu-isolation"
ROOT = "/run/xpu-agent/mps"  # each card's daemon has its folders below it
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PINNED = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
SHM = "/dev/shm"  # noqa: S108 - where CUDA looks for it
_MIB = 1 << 20


class MpsLimits(msgspec.Struct, frozen=True, kw_only=True):
    """One client's share, as the daemon spells it."""

    memory: str  # whole MiB: 20389M
    threads_percent: int


def asked_for(container: Container) -> bool:
    """Say whether the pod's annotation asks for MPS."""
    return container.annotation(ANNOTATION) == "mps"


def replica_limits(total_bytes: int, replicas: int) -> MpsLimits:
    """Return what NVIDIA's plugin gives each of so many clients; both figures rounded down."""
    return MpsLimits(memory=_mebibytes(total_bytes // replicas), threads_percent=100 // replicas)


def edits(granted: Sequence[Match], host: HostMeans) -> ContainerEdits:
    """Make the container a client of its card's daemon.

    `MPSDown` if none runs for the card, `MixedGrant` for several cards or a slice of one,
    `IncompleteGrant` without a memory amount.
    """
    if len(granted) != 1 or granted[0].partition is not None:
        raise GrantRefused(Refusal.MIXED_GRANT, "MPS shares one whole card with a container")
    (match,) = granted
    uuid = visible_id(match)
    root = f"{ROOT}/{uuid}"
    pipes = f"{root}/pipe"
    # a process may call itself a daemon and name any folder: only that of the card is believed
    if not any(daemon.serves(uuid) and daemon.pipe_dir == pipes for daemon in host.mps):
        raise GrantRefused(Refusal.MPS_DOWN, f"no MPS daemon runs for {uuid} at {pipes}")
    memory, core = match.entry.amount(MEMORY), match.entry.amount(CORE)
    if not memory or memory < 0:
        raise GrantRefused(Refusal.INCOMPLETE_GRANT, f"{match.device.key}: no {MEMORY}")
    env = [(PIPES, pipes), (PINNED, f"0={_mebibytes(memory)}")]
    if core is not None and 0 < core < 100:
        env.append((THREADS, str(core)))
    return ContainerEdits(
        env=tuple(env),
        mounts=(
            MountEdit(host_path=pipes, path=pipes, options=("rw", "rbind")),
            MountEdit(host_path=f"{root}/shm", path=SHM, options=("rw", "rbind")),
        ),
    )


def _mebibytes(amount_bytes: int) -> str:
    return f"{amount_bytes // _MIB}M"
