"""HAMi-core: a library in the container that keeps it to its share of a card. Cooperative."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent.model.grant.container import Container
from agent.model.grant.edits import NONE, ContainerEdits, FolderEdit, MountEdit, Note
from agent.model.grant.granted import CORE, MEMORY, RATIO, Match
from agent.model.grant.host import HostMeans
from agent.model.grant.merge import by_depth
from agent.model.grant.refusal import GrantRefused, Refusal

PROVIDER_LABEL = "koordinator.sh/gpu-isolation-provider"
PROVIDER = "HAMi-core"
FOLDER = "/usr/local/vgpu"
LIBRARY = f"{FOLDER}/libvgpu.so"
PRELOAD_SOURCE = f"{FOLDER}/ld.so.preload"
PRELOAD_FILE = "/etc/ld.so.preload"
LOCK = "/tmp/vgpulock"  # noqa: S108 - where the library looks for it
MEMORY_LIMIT, CORE_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"
REGION = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
PRELOAD = "LD_PRELOAD"
MAX_CARDS = 16  # that the library limits, by position
WHOLE = 100

_LIMIT = re.compile(r"[ \t\n\v\f\r]*\+?(0[xX][0-9a-fA-F]+|[0-9]+)([kKmMgG]?).*", re.DOTALL)
_SUFFIX = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_POD_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,127}")
_CONTAINER = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SOFT = Note(
    reason="SoftIsolation",
    message="HAMi-core limits programs that load it: not musl images, not static binaries",
)


def asked_for(container: Container) -> bool:
    """Say whether the pod's label asks for this isolation."""
    return container.label(PROVIDER_LABEL) == PROVIDER


def edits(
    granted: Sequence[Match],
    container: Container,
    host: HostMeans,
    *,
    preload_file: bool = False,
    region: bool = True,
) -> ContainerEdits:
    """Return limits for shares of cards, in PCI order; nothing for cards granted whole.

    `HAMiCoreMissing` if the node lacks the library, `IncompleteGrant` if a share has no amount.
    """
    shares = [_ratio(match) < WHOLE for match in granted]
    if not any(shares):
        return NONE
    if LIBRARY not in host.paths or (preload_file and PRELOAD_SOURCE not in host.paths):
        needed = PRELOAD_SOURCE if LIBRARY in host.paths else LIBRARY
        raise GrantRefused(Refusal.HAMI_CORE_MISSING, f"{needed} does not exist on this node")
    env = _unbeaten(_limits(granted, shares), container)
    mounts = [
        MountEdit(host_path=LIBRARY, path=LIBRARY, options=("ro", "rbind")),
        MountEdit(host_path=LOCK, path=LOCK, options=("rw", "rbind")),
    ]
    folders = [FolderEdit(host_path=LOCK, mode=0o1777)]
    notes = [_SOFT, *_overridden(env, container)]
    if preload_file:
        options = ("ro", "rbind")
        mounts.append(MountEdit(host_path=PRELOAD_SOURCE, path=PRELOAD_FILE, options=options))
    else:
        env += _preload(container.value(PRELOAD))
    name = region_name(container)
    if region and name is None:
        text = "the container's names are odd: its use of the card is not counted"
        notes.append(Note(reason="RegionSkipped", message=text))
    elif region:
        source = f"{FOLDER}/containers/{name}"
        env.append((REGION, f"{FOLDER}/{name}.cache"))
        mounts.append(MountEdit(host_path=source, path=FOLDER, options=("rw", "rbind")))
        folder = FolderEdit(host_path=source, mode=0o700, owner=container.user, emptied=True)
        folders.append(folder)
    return ContainerEdits(
        env=tuple(env), mounts=by_depth(mounts), folders=tuple(folders), notes=tuple(notes)
    )


def region_name(container: Container) -> str | None:
    """Return `<podUID>_<container>`, the name of a region's folder; `None` for unsafe names."""
    if _POD_UID.fullmatch(container.pod_uid) and _CONTAINER.fullmatch(container.name):
        return f"{container.pod_uid}_{container.name}"
    return None


def memory_limit(text: str) -> int | None:
    """Return the bytes that HAMi-core reads from a limit; `None` is no limit.

    C number syntax with one of k, m, g behind it, in powers of 1024; 0, an empty text and a
    number beyond 64 bits limit nothing.
    """
    found = _LIMIT.fullmatch(text)
    if found is None:
        return None
    digits = found[1]
    if len(digits) > 32:
        return None
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    number = int(re.match(r"[0-7]+", digits)[0] if base == 8 else digits, base)  # type: ignore[index]  # starts with 0
    limit = number * _SUFFIX[found[2].lower()]
    return limit if 0 < limit < 1 << 64 else None


def _ratio(match: Match) -> int:
    ratio = match.entry.amount(RATIO)
    if ratio is None:
        raise GrantRefused(Refusal.INCOMPLETE_GRANT, f"{match.device.key}: no {RATIO}")
    return ratio


def _limits(granted: Sequence[Match], shares: Sequence[bool]) -> list[tuple[str, str]]:
    """Return the limits by position; one card needs no position."""
    if len(granted) > MAX_CARDS:
        raise GrantRefused(
            Refusal.INCOMPLETE_GRANT, f"HAMi-core limits {MAX_CARDS} cards, not {len(granted)}"
        )
    env: list[tuple[str, str]] = []
    for position, match in enumerate(granted):
        if not shares[position]:
            continue
        suffix = f"_{position}" if len(granted) > 1 else ""
        memory, core = match.entry.amount(MEMORY), match.entry.amount(CORE)
        if not memory or memory < 0:
            raise GrantRefused(Refusal.INCOMPLETE_GRANT, f"{match.device.key}: no {MEMORY}")
        env.append((MEMORY_LIMIT + suffix, str(memory)))
        if core is not None and 0 < core < WHOLE:
            env.append((CORE_LIMIT + suffix, str(core)))
    return env


def _unbeaten(env: list[tuple[str, str]], container: Container) -> list[tuple[str, str]]:
    """Say a plain limit by position too where the container does: that one wins in the library."""
    plain = [pair for pair in env if pair[0] in (MEMORY_LIMIT, CORE_LIMIT)]
    return env + [
        (f"{name}_0", value) for name, value in plain if container.value(f"{name}_0") is not None
    ]


def _overridden(env: Sequence[tuple[str, str]], container: Container) -> list[Note]:
    """Tell of limits that the container brings itself: those of the grant count."""
    return [
        Note(
            reason="LimitOverridden",
            message=f"{name} of the container is replaced by the grant's {value}",
        )
        for name, value in env
        if name.startswith(MEMORY_LIMIT)
        and (own := container.value(name)) is not None
        and memory_limit(own) != int(value)
    ]


def _preload(own: str | None) -> list[tuple[str, str]]:
    """Add the library behind what the container preloads itself; nothing if it is there."""
    kept = (own or "").partition("\0")[0]
    listed = re.split(r"[ :]+", kept)
    if LIBRARY in listed:
        return []
    return [(PRELOAD, f"{kept}:{LIBRARY}" if any(listed) else LIBRARY)]
