"""Container edits for shared cards, with HAMi-core or MPS.

HAMi-core is a library in the container that limits its programs to a share of a card; programs
that do not load it have no limit. With MPS, containers are clients of one daemon for each card,
with a share of threads and memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent.snapshot.allocation import (
    CORE,
    MEMORY,
    RATIO,
    AllocationRefused,
    DeviceMatch,
    RefusalReason,
)
from agent.snapshot.container import ContainerSpec
from agent.snapshot.edits import (
    NO_EDITS,
    ContainerEdits,
    ContainerNote,
    FolderEdit,
    MountEdit,
    sort_by_depth,
)
from agent.snapshot.host_devices import HostDevices
from plugins.shared.injection import visible_id

PROVIDER_LABEL = "koordinator.sh/gpu-isolation-provider"
PROVIDER = "HAMi-core"
FOLDER = "/usr/local/vgpu"
LIBRARY = f"{FOLDER}/libvgpu.so"
PRELOAD_SOURCE = f"{FOLDER}/ld.so.preload"
PRELOAD_FILE = "/etc/ld.so.preload"
HAMI_LOCK = "/tmp/vgpulock"  # noqa: S108 - path in HAMi-core
MEMORY_LIMIT, CORE_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"
REGION = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
PRELOAD = "LD_PRELOAD"
MAX_CARDS = 16  # limit of HAMi-core
WHOLE = 100
_LIMIT = re.compile(r"[ \t\n\v\f\r]*\+?(0[xX][0-9a-fA-F]+|[0-9]+)([kKmMgG]?).*", re.DOTALL)
_SUFFIX = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_POD_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,127}")
_CONTAINER = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

_SOFT = ContainerNote(
    reason="SoftIsolation",
    message="HAMi-core limits programs that load it: not musl images, not static binaries",
)


def requests_hami(container: ContainerSpec) -> bool:
    """Return whether the pod's label requests HAMi-core."""
    return container.label(PROVIDER_LABEL) == PROVIDER


def hami_edits(
    matches: Sequence[DeviceMatch],
    container: ContainerSpec,
    host: HostDevices,
    *,
    preload_file: bool = False,
    region: bool = True,
) -> ContainerEdits:
    """Return limits for shares of cards, in PCI order; nothing for whole cards.

    Refuses with `HAMiCoreMissing` if the node lacks the library, and with `IncompleteGrant` if a
    share has no amount.
    """
    shares = [_ratio(match) < WHOLE for match in matches]
    if not any(shares):
        return NO_EDITS
    if LIBRARY not in host.paths or (preload_file and PRELOAD_SOURCE not in host.paths):
        needed = PRELOAD_SOURCE if LIBRARY in host.paths else LIBRARY
        raise AllocationRefused(
            RefusalReason.HAMI_CORE_MISSING, f"{needed} does not exist on this node"
        )
    env = _positional_limits(_limits(matches, shares), container)
    mounts = [
        MountEdit(host_path=LIBRARY, path=LIBRARY, options=("ro", "rbind")),
        MountEdit(host_path=HAMI_LOCK, path=HAMI_LOCK, options=("rw", "rbind")),
    ]
    folders = [FolderEdit(host_path=HAMI_LOCK, mode=0o1777)]
    notes = [_SOFT, *_override_notes(env, container)]
    if preload_file:
        options = ("ro", "rbind")
        mounts.append(MountEdit(host_path=PRELOAD_SOURCE, path=PRELOAD_FILE, options=options))
    else:
        env += _preload(container.env_value(PRELOAD))
    name = region_name(container)
    if region and name is None:
        text = "the container's names are odd: its use of the card is not counted"
        notes.append(ContainerNote(reason="RegionSkipped", message=text))
    elif region:
        source = f"{FOLDER}/containers/{name}"
        env.append((REGION, f"{FOLDER}/{name}.cache"))
        mounts.append(MountEdit(host_path=source, path=FOLDER, options=("rw", "rbind")))
        folder = FolderEdit(host_path=source, mode=0o700, owner=container.user, emptied=True)
        folders.append(folder)
    return ContainerEdits(
        env=tuple(env), mounts=sort_by_depth(mounts), folders=tuple(folders), notes=tuple(notes)
    )


def region_name(container: ContainerSpec) -> str | None:
    """Return `<podUID>_<container>`, the name of a region's folder; `None` for unsafe names."""
    if _POD_UID.fullmatch(container.pod_uid) and _CONTAINER.fullmatch(container.name):
        return f"{container.pod_uid}_{container.name}"
    return None


def memory_limit(text: str) -> int | None:
    """Return the bytes that HAMi-core parses from a limit; `None` is no limit.

    The syntax is a C number with an optional suffix k, m or g in powers of 1024. 0, an empty text
    and a number beyond 64 bits set no limit.
    """
    match = _LIMIT.fullmatch(text)
    if match is None:
        return None
    digits = match[1]
    if len(digits) > 32:
        return None
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    number = int(re.match(r"[0-7]+", digits)[0] if base == 8 else digits, base)  # type: ignore[index]  # starts with 0
    limit = number * _SUFFIX[match[2].lower()]
    return limit if 0 < limit < 1 << 64 else None


def _ratio(match: DeviceMatch) -> int:
    ratio = match.entry.amount(RATIO)
    if ratio is None:
        raise AllocationRefused(RefusalReason.INCOMPLETE_GRANT, f"{match.device.key}: no {RATIO}")
    return ratio


def _limits(matches: Sequence[DeviceMatch], shares: Sequence[bool]) -> list[tuple[str, str]]:
    """Return the limits by the card's position; a single card has no position."""
    if len(matches) > MAX_CARDS:
        raise AllocationRefused(
            RefusalReason.INCOMPLETE_GRANT,
            f"HAMi-core limits {MAX_CARDS} cards, not {len(matches)}",
        )
    env: list[tuple[str, str]] = []
    for position, match in enumerate(matches):
        if not shares[position]:
            continue
        suffix = f"_{position}" if len(matches) > 1 else ""
        memory, core = match.entry.amount(MEMORY), match.entry.amount(CORE)
        if not memory or memory < 0:
            raise AllocationRefused(
                RefusalReason.INCOMPLETE_GRANT, f"{match.device.key}: no {MEMORY}"
            )
        env.append((MEMORY_LIMIT + suffix, str(memory)))
        if core is not None and 0 < core < WHOLE:
            env.append((CORE_LIMIT + suffix, str(core)))
    return env


def _positional_limits(
    env: list[tuple[str, str]], container: ContainerSpec
) -> list[tuple[str, str]]:
    """Add limits with position 0 if the container sets them, because they have precedence."""
    plain = [pair for pair in env if pair[0] in (MEMORY_LIMIT, CORE_LIMIT)]
    return env + [
        (f"{name}_0", value)
        for name, value in plain
        if container.env_value(f"{name}_0") is not None
    ]


def _override_notes(
    env: Sequence[tuple[str, str]], container: ContainerSpec
) -> list[ContainerNote]:
    """Return notes about memory limits of the container that the allocation replaces."""
    return [
        ContainerNote(
            reason="LimitOverridden",
            message=f"{name} of the container is replaced by the grant's {value}",
        )
        for name, value in env
        if name.startswith(MEMORY_LIMIT)
        and (container_limit := container.env_value(name)) is not None
        and memory_limit(container_limit) != int(value)
    ]


def _preload(container_value: str | None) -> list[tuple[str, str]]:
    """Return LD_PRELOAD with the library after the container's own; empty if it has it."""
    preloaded = (container_value or "").partition("\0")[0]
    libraries = re.split(r"[ :]+", preloaded)
    if LIBRARY in libraries:
        return []
    return [(PRELOAD, f"{preloaded}:{LIBRARY}" if any(libraries) else LIBRARY)]


ISOLATION_ANNOTATION = "xpu-agent.io/gpu-isolation"
MPS_ROOT = "/run/xpu-agent/mps"  # has the folders of each card's daemon
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PINNED = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
SHM = "/dev/shm"  # noqa: S108 - path in CUDA
_MIB = 1 << 20


def requests_mps(container: ContainerSpec) -> bool:
    """Return whether the pod's annotation requests MPS."""
    return container.annotation(ISOLATION_ANNOTATION) == "mps"


def mps_edits(matches: Sequence[DeviceMatch], host: HostDevices) -> ContainerEdits:
    """Return edits that make the container a client of its card's daemon.

    Refuses with `MPSDown` if no daemon runs for the card, with `MixedGrant` for several cards or
    a slice, and with `IncompleteGrant` without a memory amount.
    """
    if len(matches) != 1 or matches[0].partition is not None:
        raise AllocationRefused(
            RefusalReason.MIXED_GRANT, "MPS shares one whole card with a container"
        )
    (match,) = matches
    uuid = visible_id(match)
    root = f"{MPS_ROOT}/{uuid}"
    pipes = f"{root}/pipe"
    # any process may claim to be a daemon, so only the folder of this card is accepted
    if not any(daemon.serves(uuid) and daemon.pipe_dir == pipes for daemon in host.mps):
        raise AllocationRefused(RefusalReason.MPS_DOWN, f"no MPS daemon runs for {uuid} at {pipes}")
    memory, core = match.entry.amount(MEMORY), match.entry.amount(CORE)
    if not memory or memory < 0:
        raise AllocationRefused(RefusalReason.INCOMPLETE_GRANT, f"{match.device.key}: no {MEMORY}")
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
