"""Make vNPUs and take ours away again. Runs in the worker only; may be ended between any steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

import msgspec

from agent.errors import AgentError, VendorFault
from plugins.bindings.dcmi import codes, vdev
from plugins.bindings.dcmi.chip import Chip
from plugins.bindings.dcmi.vdev import BadVdevId, Vdev
from plugins.slices.keeping import sparing
from plugins.slices.vnpu.ledger import Ledger, Owned, orphans
from plugins.slices.vnpu.rules import difference, refuse_if_full
from plugins.slices.vnpu.templates import Template, VnpuRefused

BUSY_TRIES, BUSY_PAUSE_S = 5, 0.2
DESTROY_TRIES, DESTROY_PAUSE_S = 3, 1.0


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of our vNPUs: destroyed with their pods, or lost by a reset under them."""

    destroyed: tuple[Owned, ...] = ()
    lost: tuple[Owned, ...] = ()
    failed: tuple[str, ...] = ()


class VnpuMaker:
    """Everything that changes vNPUs of this node; one thread at a time."""

    def __init__(self, ledger: Ledger, sleep: Callable[[float], None] = time.sleep) -> None:
        self._ledger = ledger
        self._sleep = sleep

    def create(
        self, chip: Chip, die: str, template: Template, pod: str, chip_cores: int | None
    ) -> Vdev:
        """Cut a piece off for a pod, read it back, and return it; within two seconds.

        `VnpuRefused` with both numbers if the chip is full, or cut something else than was asked
        for: that is destroyed first.
        """
        there = listed(chip)
        refuse_if_full(template, there, chip_cores)
        entry = self._ledger.intend(die, template.name, pod, {known.id for known in there})
        try:
            number = self._patiently(lambda: vdev.create(chip, template.name))
        except BadVdevId as error:
            self._undo(chip, entry, error.number)
            raise
        except AgentError:
            self._ledger.forget(entry)
            raise
        entry = self._ledger.made(entry, number)
        found = vdev.query(chip, number)
        wrong = difference(found, template) if found else "it cannot be read back"
        if found is None or wrong:
            self._destroy(chip, entry, self._sleep)
            raise VnpuRefused(f"vNPU {number} was destroyed: {wrong}")
        return found

    def _undo(self, chip: Chip, entry: Owned, number: int) -> None:
        """Destroy a vNPU whose id cannot be true: by what the chip lists now, else by that id.

        What cannot be destroyed is left to `reconcile`, which goes by the entry.
        """
        new = [
            v.id for v in listed(chip) if v.id not in entry.before and v.template == entry.template
        ]
        try:
            self._destroy(chip, self._ledger.made(entry, (*new, number)[0]), self._sleep)
        except AgentError:
            return

    def _patiently(self, make: Callable[[], int]) -> int:
        for _ in range(BUSY_TRIES - 1):
            try:
                return make()
            except VendorFault as error:
                if codes.code_of(error) != codes.BUSY:
                    raise
            self._sleep(BUSY_PAUSE_S)
        return make()

    @property
    def entries(self) -> tuple[Owned, ...]:
        """Return what is ours."""
        return self._ledger.entries

    def _destroy(self, chip: Chip, entry: Owned, sleep: Callable[[float], None]) -> None:
        assert entry.vdev is not None  # noqa: S101 - an intention is never destroyed
        for left in reversed(range(DESTROY_TRIES)):
            try:
                vdev.destroy(chip, entry.vdev)
                break
            except VendorFault:
                if not left:
                    raise
            sleep(DESTROY_PAUSE_S)
        self._ledger.forget(entry)

    def reconcile(self, chips: Mapping[str, Chip], pods: Collection[str] | None) -> Reconciled:
        """Bring our list up to date, and destroy what pods that are gone left behind.

        `chips` by the id of their die; those that do not answer keep their entries. `pods` are
        the uids on this node, `None` if nobody knows: then nothing is destroyed.
        """
        lost: list[Owned] = []
        for entry in self._ledger.entries:
            chip = chips.get(entry.chip)
            if chip is not None and self._is_lost(chip, entry):
                lost.append(entry)
        destroyed: list[Owned] = []
        failed: list[str] = []
        sleep = sparing(self._sleep, DESTROY_TRIES - 1)
        for entry in orphans(self._ledger.entries, pods) if pods is not None else ():
            chip = chips.get(entry.chip)
            if chip is None:
                continue
            try:
                self._destroy(chip, entry, sleep)
                destroyed.append(entry)
            except AgentError as error:
                failed.append(f"vNPU {entry.vdev}: {error}")
        return Reconciled(destroyed=tuple(destroyed), lost=tuple(lost), failed=tuple(failed))

    def _is_lost(self, chip: Chip, entry: Owned) -> bool:
        """Find an entry's vNPU; strike the entry out if it is gone, or another took its number."""
        chip.begin()
        numbers = vdev.vdev_ids(chip)
        there = listed(chip)
        if numbers is None or chip.faults or chip.refused:
            return False  # no answer is no loss
        if entry.vdev is None:
            new = [v for v in there if v.id not in entry.before and v.template == entry.template]
            if len(new) == 1:  # made just before the worker was ended
                self._ledger.made(entry, new[0].id)
            else:
                self._ledger.forget(entry)
            return False
        if any((v.id, v.template) == (entry.vdev, entry.template) for v in there):
            return False
        if entry.vdev in numbers and entry.vdev not in {v.id for v in there}:
            return False  # it is there, and cannot be described now
        self._ledger.forget(entry)
        return True


def listed(chip: Chip) -> tuple[Vdev, ...]:
    """Return the vNPUs of a chip that it describes, by number."""
    found = (vdev.query(chip, number) for number in vdev.vdev_ids(chip) or ())
    return tuple(v for v in found if v is not None)
