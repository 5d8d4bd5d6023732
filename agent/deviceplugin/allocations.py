"""Who holds which devices: as the kubelet's checkpoint has it, and as was answered since."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial

from agent import durable
from agent.deviceplugin.kubelet_folder import CHECKPOINT_FILE
from agent.errors import ParseError
from agent.snapshot.device_plugin import KubeletAllocation
from agent.wire_formats.device_checkpoint import parse_device_checkpoint

MAX_CHECKPOINT_BYTES = 64 << 20  # of the checkpoint, which repeats every answer

MAX_PENDING_ANSWERS = 1024

PENDING_ANSWER_S = (
    300.0  # what was answered and came to no checkpoint: its pod was not admitted after all
)

CheckpointStamp = tuple[int, int, int]  # inode, size, and time of its last change in ns


def read_device_checkpoint(
    folder: str, known: CheckpointStamp | None
) -> tuple[CheckpointStamp, tuple[KubeletAllocation, ...]] | None:
    """Return the checkpoint of that folder; `None` if it is the known one. Blocks.

    Raises `ParseError` and `OSError`; a file that is not there is an error too.
    """
    with durable.open_file(os.path.join(folder, CHECKPOINT_FILE)) as file:
        status = os.fstat(file.fileno())
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if seen == known:
            return None
        data = file.read(MAX_CHECKPOINT_BYTES + 1)
    if len(data) > MAX_CHECKPOINT_BYTES:
        raise ParseError(f"device checkpoint: more than {MAX_CHECKPOINT_BYTES} bytes", "")
    return seen, parse_device_checkpoint(data)


class AllocationTable:
    """Belongs to the loop thread. `changed` is called when `held` says something new."""

    def __init__(self, monotonic: Callable[[], float], changed: Callable[[], None]) -> None:
        self._monotonic = monotonic
        self._on_change = changed
        self._in_checkpoint: tuple[KubeletAllocation, ...] | None = None  # None: not read yet
        self._pending_answers: list[
            tuple[KubeletAllocation, float]
        ] = []  # with when it was; one for each answer

    @property
    def allocations(self) -> tuple[KubeletAllocation, ...]:
        """Return what the checkpoint says, then what was answered and is not in it yet."""
        return (*(self._in_checkpoint or ()), *(held for held, _ in self._pending_answers))

    def add_answer(self, held: KubeletAllocation) -> None:
        """Remember an answer until the checkpoint says so."""
        if len(self._pending_answers) >= MAX_PENDING_ANSWERS:
            del self._pending_answers[0]
        self._pending_answers.append((held, self._monotonic()))
        self._on_change()

    def remove_answer(self, held: KubeletAllocation) -> None:
        """Forget an answer that was not given after all."""
        for index, (one, _) in enumerate(self._pending_answers):
            if one is held:
                del self._pending_answers[index]
                self._on_change()
                return

    def update_from_checkpoint(
        self, found: tuple[KubeletAllocation, ...]
    ) -> tuple[tuple[KubeletAllocation, KubeletAllocation], ...]:
        """Take a checkpoint; return answers that went to another pod, each with whose it is.

        Each entry that is new in it is one answer. The init containers of a pod and those after
        them have the same devices, of one answer each. Before the first checkpoint nobody can tell
        what is new: entries of pods that have ended may stand for devices that were answered since.
        """
        fresh = Counter(found) - Counter(self._in_checkpoint or ())
        strangers = self._in_checkpoint is not None
        self._in_checkpoint = found
        theirs = [entry for entry in fresh.elements() if not self._confirm(entry)]
        wrong = tuple(
            (answer, entry)
            for entry in (theirs if strangers else ())
            if (answer := self._take_answer_of_another(entry)) is not None
        )
        self._on_change()
        return wrong

    def _confirm(self, entry: KubeletAllocation) -> bool:
        """Forget the answer to the same pod, or to one that was not known; return whether it was.

        Devices are exchanged for a pod of which several can be meant, too.
        """
        uids = (entry.pod_uid, "")
        return any(self._take_answer(partial(_is_of_pod, uid), entry) is not None for uid in uids)

    def _take_answer_of_another(self, entry: KubeletAllocation) -> KubeletAllocation | None:
        return self._take_answer(lambda _: True, entry)

    def _take_answer(
        self, fits: Callable[[KubeletAllocation], bool], entry: KubeletAllocation
    ) -> KubeletAllocation | None:
        ids = frozenset(entry.ids)
        for index, (held, _) in enumerate(self._pending_answers):
            if held.resource == entry.resource and frozenset(held.ids) == ids and fits(held):
                del self._pending_answers[index]
                return held
        return None

    def clear_answers(self) -> None:
        """Forget answers that no checkpoint has: those of a kubelet that is no more."""
        if self._pending_answers:
            self._pending_answers.clear()
            self._on_change()

    def remove_old_answers(self) -> None:
        """Forget answers that came to nothing."""
        before_s = self._monotonic() - PENDING_ANSWER_S
        new = [one for one in self._pending_answers if one[1] >= before_s]
        if len(new) < len(self._pending_answers):
            self._pending_answers = new
            self._on_change()


def _is_of_pod(uid: str, held: KubeletAllocation) -> bool:
    return held.pod_uid == uid
