"""Creates and destroys vNPUs for pods, and checks each result. Runs in the worker only.

The process may end between any two steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from agent.errors import AgentError, VendorFault
from agent.snapshot.device import DevicePartition
from agent.snapshot.inventory import SliceReport, SliceRequest
from plugins.shared.slices import SliceKey, limited_pause, make_missing_slices
from plugins.vendors.ascend.library import codes, vdev
from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.vdev import MAX_VDEVS, BadVdevId, Vdev
from plugins.vendors.ascend.vnpu.ownership import OwnedVnpu, VnpuOwnershipFile, orphaned_vnpus
from plugins.vendors.ascend.vnpu.templates import VnpuRefused, VnpuTemplate, template_of

LEAST_PERCENT, MOST_PERCENT = 95, 105  # of the template's memory


def refuse_if_full(template: VnpuTemplate, there: Sequence[Vdev], chip_cores: int | None) -> None:
    """Raise `VnpuRefused` if the chip has no room for one more piece."""
    if len(there) >= MAX_VDEVS:
        raise VnpuRefused(f"the chip has {len(there)} vNPUs already, {MAX_VDEVS} at most")
    used = sum(vdev.cores or 0 for vdev in there)
    if chip_cores is not None and used + template.cores > chip_cores:
        told = f"{template.name} needs {template.cores} AI cores, {chip_cores - used} are free"
        raise VnpuRefused(told)


def difference(made: Vdev, template: VnpuTemplate) -> str:
    """Say how a vNPU differs from its template; empty if it is what was asked for.

    Tables of templates have been wrong for some models: only the chip knows what it cut.
    """
    if made.template != template.name:
        return f"asked for {template.name}, got {made.template or 'nothing with a name'}"
    if made.cores != template.cores:
        return f"asked for {template.cores} AI cores, got {made.cores}"
    percent = 100 * (made.memory_mb or 0) / template.memory_mb
    if not LEAST_PERCENT <= percent <= MOST_PERCENT:
        return (
            f"asked for {template.memory_mb} MB, got {made.memory_mb} MB:"
            f" {percent:.4g} % of the template"
        )
    return ""


BUSY_TRIES, BUSY_PAUSE_S = 5, 0.2

DESTROY_TRIES, DESTROY_PAUSE_S = 3, 1.0


class VnpuReconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """What became of our vNPUs: destroyed with their pods, or lost by a reset under them."""

    destroyed: tuple[OwnedVnpu, ...] = ()
    lost: tuple[OwnedVnpu, ...] = ()
    failed: tuple[str, ...] = ()


class VnpuMaker:
    """Everything that changes vNPUs of this node; one thread at a time."""

    def __init__(
        self, ledger: VnpuOwnershipFile, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._ledger = ledger
        self._sleep = sleep

    def create(
        self, chip: Chip, die: str, template: VnpuTemplate, pod: str, chip_cores: int | None
    ) -> Vdev:
        """Cut a piece off for a pod, read it back, and return it; within two seconds.

        `VnpuRefused` with both numbers if the chip is full, or cut something else than was asked
        for: that is destroyed first.
        """
        there = list_vnpus(chip)
        refuse_if_full(template, there, chip_cores)
        entry = self._ledger.record_intent(die, template.name, pod, {known.id for known in there})
        try:
            number = self._patiently(lambda: vdev.create_vdev(chip, template.name))
        except BadVdevId as error:
            self._undo(chip, entry, error.number)
            raise
        except AgentError:
            self._ledger.remove(entry)
            raise
        entry = self._ledger.record_made(entry, number)
        found = vdev.query_vdev(chip, number)
        wrong = difference(found, template) if found else "it cannot be read back"
        if found is None or wrong:
            self._destroy(chip, entry, self._sleep)
            raise VnpuRefused(f"vNPU {number} was destroyed: {wrong}")
        return found

    def _undo(self, chip: Chip, entry: OwnedVnpu, number: int) -> None:
        """Destroy a vNPU whose id cannot be true: by what the chip lists now, else by that id.

        What cannot be destroyed is left to `reconcile`, which goes by the entry.
        """
        new = [
            v.id
            for v in list_vnpus(chip)
            if v.id not in entry.before and v.template == entry.template
        ]
        try:
            self._destroy(chip, self._ledger.record_made(entry, (*new, number)[0]), self._sleep)
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
    def entries(self) -> tuple[OwnedVnpu, ...]:
        """Return what is ours."""
        return self._ledger.entries

    def _destroy(self, chip: Chip, entry: OwnedVnpu, sleep: Callable[[float], None]) -> None:
        assert entry.vdev is not None  # noqa: S101 - an intention is never destroyed
        for left in reversed(range(DESTROY_TRIES)):
            try:
                vdev.destroy_vdev(chip, entry.vdev)
                break
            except VendorFault:
                if not left:
                    raise
            sleep(DESTROY_PAUSE_S)
        self._ledger.remove(entry)

    def reconcile(
        self, chips: Mapping[str, Chip], pods: Collection[str] | None
    ) -> VnpuReconciliation:
        """Bring our list up to date, and destroy what pods that are gone left behind.

        `chips` by the id of their die; those that do not answer keep their entries. `pods` are
        the uids on this node, `None` if nobody knows: then nothing is destroyed.
        """
        lost: list[OwnedVnpu] = []
        for entry in self._ledger.entries:
            chip = chips.get(entry.chip)
            if chip is not None and self._is_lost(chip, entry):
                lost.append(entry)
        destroyed: list[OwnedVnpu] = []
        failed: list[str] = []
        sleep = limited_pause(self._sleep, DESTROY_TRIES - 1)
        for entry in orphaned_vnpus(self._ledger.entries, pods) if pods is not None else ():
            chip = chips.get(entry.chip)
            if chip is None:
                continue
            try:
                self._destroy(chip, entry, sleep)
                destroyed.append(entry)
            except AgentError as error:
                failed.append(f"vNPU {entry.vdev}: {error}")
        return VnpuReconciliation(
            destroyed=tuple(destroyed), lost=tuple(lost), failed=tuple(failed)
        )

    def _is_lost(self, chip: Chip, entry: OwnedVnpu) -> bool:
        """Find an entry's vNPU; strike the entry out if it is gone, or another took its number."""
        chip.begin_round()
        numbers = vdev.vdev_ids(chip)
        there = list_vnpus(chip)
        if numbers is None or chip.faults or chip.refused:
            return False  # no answer is no loss
        if entry.vdev is None:
            new = [v for v in there if v.id not in entry.before and v.template == entry.template]
            if len(new) == 1:  # made just before the worker was ended
                self._ledger.record_made(entry, new[0].id)
            else:
                self._ledger.remove(entry)
            return False
        if any((v.id, v.template) == (entry.vdev, entry.template) for v in there):
            return False
        if entry.vdev in numbers and entry.vdev not in {v.id for v in there}:
            return False  # it is there, and cannot be described now
        self._ledger.remove(entry)
        return True


def list_vnpus(chip: Chip) -> tuple[Vdev, ...]:
    """Return the vNPUs of a chip that it describes, by number."""
    found = (vdev.query_vdev(chip, number) for number in vdev.vdev_ids(chip) or ())
    return tuple(v for v in found if v is not None)


class DivisibleChip(msgspec.Struct, frozen=True, kw_only=True):
    """A chip that answers, and what is known of it."""

    chip: Chip
    die: str
    model: str  # under which its templates are found
    cores: int | None
    describe: Callable[[Vdev], DevicePartition]


def keep_vnpus(
    maker: VnpuMaker,
    chips: Mapping[str, DivisibleChip],
    wishes: Sequence[SliceRequest],
    pods: Collection[str] | None,
) -> SliceReport:
    """Make what is wished for of the chips (by key), and destroy ours of pods not in `pods`.

    Pods that are gone make room first. A vNPU of ours that its chip does not describe now counts
    as standing: a second one is not cut.
    """
    tidied = maker.reconcile({cut.die: cut.chip for cut in chips.values()}, pods)
    there, dumb = _existing_vnpus(maker, chips)

    def make(wish: SliceRequest) -> DevicePartition:
        cut = chips.get(wish.device)
        if cut is None:
            raise VnpuRefused(f"{wish.device}: there is no chip that answers")
        if (wish.pod, wish.device) in dumb:
            raise VnpuRefused(f"{wish.device}: the chip does not describe the vNPU of this pod now")
        template = template_of(cut.model, cut.cores, wish.template)
        return cut.describe(maker.create(cut.chip, cut.die, template, wish.pod, cut.cores))

    made, unmade, changed = make_missing_slices(wishes, there, make)
    return SliceReport(
        made=made,
        unmade=unmade,
        reclaimed=tuple(f"vNPU {gone.vdev} of pod {gone.pod}" for gone in tidied.destroyed),
        lost=tuple(gone.pod for gone in tidied.lost),
        failed=tidied.failed,
        changed=changed or bool(tidied.destroyed or tidied.lost),
    )


def _existing_vnpus(
    maker: VnpuMaker, chips: Mapping[str, DivisibleChip]
) -> tuple[dict[SliceKey, DevicePartition], set[SliceKey]]:
    """Return our vNPUs by pod and chip: those that are described, and those that are not."""
    keys = {cut.die: key for key, cut in chips.items()}
    there: dict[SliceKey, DevicePartition] = {}
    dumb: set[SliceKey] = set()
    for entry in maker.entries:
        if entry.chip not in keys:
            continue
        key = keys[entry.chip]
        found = vdev.query_vdev(chips[key].chip, entry.vdev) if entry.vdev is not None else None
        if found is None:
            dumb.add((entry.pod, key))
        else:
            there[entry.pod, key] = chips[key].describe(found)
    return there, dumb
