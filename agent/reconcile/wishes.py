"""Adjustments as values of files. Pure; conversions to the host's version happen here."""

from __future__ import annotations

from collections.abc import Iterator

from agent.cgroup.paths import BadCgroupPath, of_cgroups_path, of_parent
from agent.cgroup.values import bandwidth, keys, shares
from agent.cgroup.values.bandwidth import Bandwidth
from agent.cgroup.values.keys import Key, Value
from agent.cgroup.values.shares import Formula
from agent.cgroup.writing.wish import Wish
from agent.errors import ParseError
from agent.model.grant.edits import Note
from agent.model.runtime.adjustment import Adjustment
from agent.reconcile.asking import Asked
from agent.topology.text import parse_cpu_list

POD, CONTAINER, SANDBOX = "pod", "container", "sandbox"

Found = tuple[Key, Value, tuple[Value, ...], str, str]  # key, value, equals, message, owner


def wishes_of(
    cgroup: str, level: str, asked: Asked, version: int, formula: Formula
) -> tuple[tuple[Wish, ...], tuple[Note, ...]]:
    """Return the wishes for one cgroup, and notes on values that the kernel could only refuse.

    The path is checked again: a container's must lie in a pod's, or nothing is written at all.
    """
    try:
        if level == POD:
            of_parent(cgroup)
        else:
            of_cgroups_path(cgroup)
    except BadCgroupPath as error:
        return (), (Note(reason="BadCgroupPath", message=str(error)),)
    wishes: list[Wish] = []
    notes: list[Note] = []
    try:
        found = tuple(_values(asked, level, version, formula))
    except ParseError as error:  # a hook's own text
        return (), (Note(reason="ValueOutOfRange", message=str(error)),)
    for key, raw, also, what, owner in found:
        try:
            value = key.check(version, raw)
        except ParseError as error:
            notes.append(Note(reason="ValueOutOfRange", message=f"{owner}: {error}"))
            continue
        wishes.append(
            Wish(
                cgroup=cgroup,
                key=key,
                value=value,
                also=also,
                owner=owner,
                message=f"set {level} {what}",
            )
        )
    return tuple(wishes), tuple(notes)


def _values(asked: Asked, level: str, version: int, formula: Formula) -> Iterator[Found]:
    whole = asked.whole
    wanted = whole.resources
    if wanted.cpus:  # an empty set is never written: version 1 refuses it while tasks are inside
        owner = asked.owner(lambda one: one.resources.cpus)
        yield keys.CPUS, parse_cpu_list(wanted.cpus), (), f"cpuset to {wanted.cpus}", owner
    if level == SANDBOX:
        return
    if wanted.shares is not None:
        owner = asked.owner(lambda one: one.resources.shares)
        value, also = _weight(wanted.shares, version, formula)
        yield keys.SHARES, value, also, f"cpu share to {wanted.shares}", owner
    if wanted.quota_us is not None:
        owner = asked.owner(lambda one: one.resources.quota_us)
        value = Bandwidth(wanted.quota_us, wanted.period_us or bandwidth.PERIOD_US)
        yield keys.QUOTA, value, (), f"cfs quota to {wanted.quota_us}", owner
    if wanted.memory_bytes is not None:
        owner = asked.owner(lambda one: one.resources.memory_bytes)
        limit = wanted.memory_bytes
        yield keys.MEMORY, limit, (), f"memory limit to {limit}", owner
    if level == POD and whole.bvt_warp_ns is not None:
        owner = asked.owner(lambda one: one.bvt_warp_ns)
        yield keys.BVT, whole.bvt_warp_ns, (), f"bvt to {whole.bvt_warp_ns}", owner


def _weight(wanted: int, version: int, formula: Formula) -> tuple[Value, tuple[Value, ...]]:
    """Return what is written for shares, and what else stands for them in a file."""
    held = min(max(wanted, shares.MIN_SHARES), shares.MAX_SHARES)
    if version == 1:
        return held, ()
    both = (shares.linear(held), shares.quadratic(held))
    return shares.weight(held, formula), both


def without_files(whole: Adjustment) -> tuple[str, ...]:
    """Return what of an adjustment no file of a running container can give."""
    edits = whole.edits
    parts = (
        ("environment", edits.env),
        ("mounts", edits.mounts),
        ("devices", edits.nodes or edits.cdi),
        ("limits", edits.rlimits),
    )
    return tuple(name for name, there in parts if there)
