"""Who holds which devices: as the kubelet's checkpoint has it, and as was answered since."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec

from agent import durable
from agent.deviceplugin.base import EXCHANGE
from agent.deviceplugin.serve.names import CHECKPOINT
from agent.errors import ParseError
from agent.model.device import Pairs
from agent.model.runtime.served import Held

MAX_BYTES = 64 << 20  # of the checkpoint, which repeats every answer
MAX_ENTRIES = 65536
MAX_IDS = 262144  # of all entries together
MAX_ANSWERED = 1024
FORGET_S = 300.0  # what was answered and came to no checkpoint: its pod was not admitted after all

File = tuple[int, int, int]  # inode, size, and time of its last change in ns


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str] | None] | list[str] | None = msgspec.field(
        name="DeviceIDs", default=None
    )
    alloc_resp: bytes | None = None  # our answer, as the kubelet keeps it


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None


class _File(msgspec.Struct, rename="pascal"):
    data: _Data


def parse_checkpoint(data: bytes) -> tuple[Held, ...]:
    """Decode a checkpoint, whole or not at all; raise `ParseError`.

    Its checksum is over the kubelet's own print of a Go struct, and is not looked at. Kubelets up
    to 1.19 list ids without their NUMA nodes.
    """
    try:
        entries = msgspec.json.decode(data, type=_File).data.pod_device_entries or []
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ParseError(f"device checkpoint: {str(error)[:120]}", "") from error
    if len(entries) > MAX_ENTRIES:
        raise ParseError(f"device checkpoint: more than {MAX_ENTRIES} entries", "")
    held = tuple(map(_held, entries))
    if sum(len(one.ids) for one in held) > MAX_IDS:
        raise ParseError(f"device checkpoint: more than {MAX_IDS} ids", "")
    return tuple(sorted(held, key=lambda one: (one.pod_uid, one.container, one.resource)))


def _held(entry: _Entry) -> Held:
    ids = tuple(sorted(set(_ids(entry.device_ids))))  # one of two nodes stands twice
    return Held(
        pod_uid=entry.pod_uid,
        resource=entry.resource_name,
        ids=ids,
        container=entry.container_name,
        exchanges=_exchanges(entry.alloc_resp or b"", ids),
    )


def _exchanges(answer: bytes, ids: tuple[str, ...]) -> Pairs:
    """Return what our answer gave for some of the ids, as its annotation says."""
    if EXCHANGE.encode() not in answer:
        return ()
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - only where something is exchanged

    from proto.gen import deviceplugin_v1beta1_pb2 as pb  # noqa: PLC0415 - the same

    try:
        annotations = pb.ContainerAllocateResponse.FromString(answer).annotations
        values = [value for key, value in annotations.items() if key.startswith(EXCHANGE)]
        found = [msgspec.json.decode(value, type=dict[str, str]) for value in values]
    except (DecodeError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ParseError(f"device checkpoint: an answer of ours: {str(error)[:120]}", "") from error
    pairs = {name: given for table in found for name, given in table.items() if name in ids}
    return tuple(sorted(pairs.items()))


def _ids(found: dict[str, list[str] | None] | list[str] | None) -> Iterator[str]:
    groups: Iterable[list[str] | None] = found.values() if isinstance(found, dict) else (found,)
    for group in groups:
        yield from group or ()


def read_checkpoint(folder: str, known: File | None) -> tuple[File, tuple[Held, ...]] | None:
    """Return the checkpoint of that folder; `None` if it is the known one. Blocks.

    Raises `ParseError` and `OSError`; a file that is not there is an error too.
    """
    with durable.open_file(os.path.join(folder, CHECKPOINT)) as file:
        status = os.fstat(file.fileno())
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if seen == known:
            return None
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ParseError(f"device checkpoint: more than {MAX_BYTES} bytes", "")
    return seen, parse_checkpoint(data)


class Holding:
    """Belongs to the loop thread. `changed` is called when `held` says something new."""

    def __init__(self, monotonic: Callable[[], float], changed: Callable[[], None]) -> None:
        self._monotonic = monotonic
        self._changed = changed
        self._written: tuple[Held, ...] | None = None  # None: not read yet
        self._answered: list[tuple[Held, float]] = []  # with when it was; one for each answer

    @property
    def held(self) -> tuple[Held, ...]:
        """Return what the checkpoint says, then what was answered and is not in it yet."""
        return (*(self._written or ()), *(held for held, _ in self._answered))

    def answered(self, held: Held) -> None:
        """Remember an answer until the checkpoint says so."""
        if len(self._answered) >= MAX_ANSWERED:
            del self._answered[0]
        self._answered.append((held, self._monotonic()))
        self._changed()

    def withdrawn(self, held: Held) -> None:
        """Forget an answer that was not given after all."""
        for index, (one, _) in enumerate(self._answered):
            if one is held:
                del self._answered[index]
                self._changed()
                return

    def written(self, found: tuple[Held, ...]) -> tuple[tuple[Held, Held], ...]:
        """Take a checkpoint; return answers that went to another pod, each with whose it is.

        Each entry that is new in it is one answer. The init containers of a pod and those after
        them have the same devices, of one answer each. Before the first checkpoint nobody can tell
        what is new: entries of pods that have ended may stand for devices that were answered since.
        """
        fresh = Counter(found) - Counter(self._written or ())
        strangers = self._written is not None
        self._written = found
        theirs = [entry for entry in fresh.elements() if not self._came(entry)]
        wrong = tuple(
            (answer, entry)
            for entry in (theirs if strangers else ())
            if (answer := self._came_to_another(entry)) is not None
        )
        self._changed()
        return wrong

    def _came(self, entry: Held) -> bool:
        """Forget the answer to the same pod, or to one that was not known; return whether it was.

        Devices are exchanged for a pod of which several can be meant, too.
        """
        uids = (entry.pod_uid, "")
        return any(self._taken(partial(_is_of, uid), entry) is not None for uid in uids)

    def _came_to_another(self, entry: Held) -> Held | None:
        return self._taken(lambda _: True, entry)

    def _taken(self, fits: Callable[[Held], bool], entry: Held) -> Held | None:
        ids = frozenset(entry.ids)
        for index, (held, _) in enumerate(self._answered):
            if held.resource == entry.resource and frozenset(held.ids) == ids and fits(held):
                del self._answered[index]
                return held
        return None

    def forget(self) -> None:
        """Forget answers that no checkpoint has: those of a kubelet that is no more."""
        if self._answered:
            self._answered.clear()
            self._changed()

    def forget_old(self) -> None:
        """Forget answers that came to nothing."""
        before_s = self._monotonic() - FORGET_S
        new = [one for one in self._answered if one[1] >= before_s]
        if len(new) < len(self._answered):
            self._answered = new
            self._changed()


def _is_of(uid: str, held: Held) -> bool:
    return held.pod_uid == uid
