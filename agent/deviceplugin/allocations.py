"""The kubelet's device allocations: those of its checkpoint, and answers given since then."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial

from agent import durable
from agent.clock import Clock
from agent.deviceplugin.kubelet_folder import CHECKPOINT_FILE
from agent.errors import ParseError
from agent.snapshot.device_plugin import KubeletAllocation
from agent.wire_formats.device_checkpoint import parse_device_checkpoint

MAX_CHECKPOINT_BYTES = 64 << 20  # of the checkpoint, which contains every answer of the agent
MAX_PENDING_ANSWERS = 1024
PENDING_ANSWER_S = 300.0  # an answer that is in no checkpoint by then: the pod was not admitted

CheckpointStamp = tuple[int, int, int]  # inode, size, and time of its last change in ns


def read_device_checkpoint(
    folder: str, known_stamp: CheckpointStamp | None, *, with_nodes: bool = False
) -> tuple[CheckpointStamp, tuple[KubeletAllocation, ...]] | None:
    """Return the checkpoint of a folder; `None` if its stamp equals `known_stamp`. Blocks.

    Raises `ParseError` and `OSError`, also if there is no file.
    """
    with durable.open_file(os.path.join(folder, CHECKPOINT_FILE)) as file:
        status = os.fstat(file.fileno())
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        if stamp == known_stamp:
            return None
        data = file.read(MAX_CHECKPOINT_BYTES + 1)
    if len(data) > MAX_CHECKPOINT_BYTES:
        raise ParseError(f"device checkpoint: more than {MAX_CHECKPOINT_BYTES} bytes", "")
    return stamp, parse_device_checkpoint(data, with_nodes=with_nodes)


class AllocationTable:
    """The allocations as the agent knows them.

    Calls `on_change` after each change of `allocations`.

    Belongs to the loop thread.
    """

    def __init__(self, clock: Clock, on_change: Callable[[], None]) -> None:
        self._clock = clock
        self._on_change = on_change
        self._in_checkpoint: tuple[KubeletAllocation, ...] | None = None  # None: not read yet
        self._pending_answers: list[
            tuple[KubeletAllocation, float]
        ] = []  # each answer with its time

    @property
    def allocations(self) -> tuple[KubeletAllocation, ...]:
        """Return the entries of the checkpoint, then the answers that it does not have yet."""
        return (
            *(self._in_checkpoint or ()),
            *(allocation for allocation, _ in self._pending_answers),
        )

    def add_answer(self, answer: KubeletAllocation) -> None:
        """Store an answer until the checkpoint contains it."""
        if len(self._pending_answers) >= MAX_PENDING_ANSWERS:
            del self._pending_answers[0]
        self._pending_answers.append((answer, self._clock.monotonic()))
        self._on_change()

    def remove_answer(self, answer: KubeletAllocation) -> None:
        """Remove an answer that did not reach the kubelet."""
        for index, (pending, _) in enumerate(self._pending_answers):
            if pending is answer:
                del self._pending_answers[index]
                self._on_change()
                return

    def update_from_checkpoint(
        self, entries: tuple[KubeletAllocation, ...]
    ) -> tuple[tuple[KubeletAllocation, KubeletAllocation], ...]:
        """Apply a checkpoint; return answers that went to another pod, each with its entry.

        Each entry that is new in the checkpoint is one answer. The init containers of a pod and its
        other containers have the same devices, of one answer each. With the first checkpoint it is
        unknown which entries are new: some may be of pods that have ended since.
        """
        new_entries = Counter(entries) - Counter(self._in_checkpoint or ())
        has_previous = self._in_checkpoint is not None
        self._in_checkpoint = entries
        unmatched = [entry for entry in new_entries.elements() if not self._confirm(entry)]
        misdirected = tuple(
            (answer, entry)
            for entry in (unmatched if has_previous else ())
            if (answer := self._pop_answer_of_another(entry)) is not None
        )
        self._on_change()
        return misdirected

    def _confirm(self, entry: KubeletAllocation) -> bool:
        """Remove the answer for this entry's pod, or for an unknown pod.

        Return whether there was one.

        Devices are also exchanged when several pods are possible.
        """
        uids = (entry.pod_uid, "")
        return any(self._pop_answer(partial(_is_of_pod, uid), entry) is not None for uid in uids)

    def _pop_answer_of_another(self, entry: KubeletAllocation) -> KubeletAllocation | None:
        return self._pop_answer(lambda _: True, entry)

    def _pop_answer(
        self, matches: Callable[[KubeletAllocation], bool], entry: KubeletAllocation
    ) -> KubeletAllocation | None:
        ids = frozenset(entry.ids)
        for index, (answer, _) in enumerate(self._pending_answers):
            is_equal = answer.resource == entry.resource and frozenset(answer.ids) == ids
            if is_equal and matches(answer):
                del self._pending_answers[index]
                return answer
        return None

    def clear_answers(self) -> None:
        """Remove all answers that are in no checkpoint: the kubelet that had them has ended."""
        if self._pending_answers:
            self._pending_answers.clear()
            self._on_change()

    def remove_old_answers(self) -> None:
        """Remove answers whose pod was not admitted."""
        oldest_s = self._clock.monotonic() - PENDING_ANSWER_S
        recent = [pending for pending in self._pending_answers if pending[1] >= oldest_s]
        if len(recent) < len(self._pending_answers):
            self._pending_answers = recent
            self._on_change()


def _is_of_pod(uid: str, answer: KubeletAllocation) -> bool:
    return answer.pod_uid == uid
