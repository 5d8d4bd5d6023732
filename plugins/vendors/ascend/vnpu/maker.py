"""Creates and destroys vNPUs for pods, and checks each result. Runs in the worker only.

Each step is safe if the process ends before the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

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

LEAST_PERCENT, MOST_PERCENT = 95, 105  # accepted memory, relative to the template's


def refuse_if_full(
    template: VnpuTemplate, existing: Sequence[Vdev], chip_cores: int | None
) -> None:
    """Raise `VnpuRefused` if the chip has no room for one more vNPU."""
    if len(existing) >= MAX_VDEVS:
        raise VnpuRefused(f"the chip has {len(existing)} vNPUs already, {MAX_VDEVS} at most")
    used = sum(vdev.cores or 0 for vdev in existing)
    if chip_cores is not None and used + template.cores > chip_cores:
        message = f"{template.name} needs {template.cores} AI cores, {chip_cores - used} are free"
        raise VnpuRefused(message)


def difference(vnpu: Vdev, template: VnpuTemplate) -> str:
    """Return how a vNPU differs from its template; empty if it does not.

    The published templates of some models were wrong, so the result is always checked.
    """
    if vnpu.template != template.name:
        return f"asked for {template.name}, got {vnpu.template or 'nothing with a name'}"
    if vnpu.cores != template.cores:
        return f"asked for {template.cores} AI cores, got {vnpu.cores}"
    percent = 100 * (vnpu.memory_mb or 0) / template.memory_mb
    if not LEAST_PERCENT <= percent <= MOST_PERCENT:
        return (
            f"asked for {template.memory_mb} MB, got {vnpu.memory_mb} MB:"
            f" {percent:.4g} % of the template"
        )
    return ""


BUSY_TRIES, BUSY_PAUSE_S = 5, 0.2

DESTROY_TRIES, DESTROY_PAUSE_S = 3, 1.0


class VnpuReconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's vNPUs that were destroyed, lost by a reset, or could not be destroyed.

    `adopted` were created just before an earlier worker ended: their pod is known again.
    """

    adopted: tuple[OwnedVnpu, ...] = ()
    destroyed: tuple[OwnedVnpu, ...] = ()
    lost: tuple[OwnedVnpu, ...] = ()
    failed: tuple[str, ...] = ()


class VnpuMaker:
    """Creates and destroys vNPUs of this node; one thread at a time."""

    def __init__(
        self, ledger: VnpuOwnershipFile, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._ledger = ledger
        self._sleep = sleep

    def create(
        self, chip: Chip, die: str, template: VnpuTemplate, pod: str, chip_cores: int | None
    ) -> Vdev:
        """Create a vNPU for a pod, read it back, and return it, within two seconds.

        Raises `VnpuRefused` if the chip is full or does not list its vNPUs, or if the vNPU differs
        from the template: such a vNPU is destroyed first.
        """
        numbers = vdev.vdev_ids(chip)
        if numbers is None:  # the new one could not be told from those of others
            raise VnpuRefused("the chip does not list its vNPUs now")
        refuse_if_full(template, _describe_vnpus(chip, numbers), chip_cores)
        entry = self._ledger.record_intent(die, template.name, pod, numbers)
        try:
            number = self._retry_while_busy(lambda: vdev.create_vdev(chip, template.name))
        except BadVdevId as error:
            self._undo(chip, entry, error.number)
            raise
        except AgentError:
            self._ledger.remove(entry)
            raise
        entry = self._ledger.record_created(entry, number)
        created = vdev.query_vdev(chip, number)
        mismatch = difference(created, template) if created else "it cannot be read back"
        if created is None or mismatch:
            self._destroy(chip, entry, self._sleep)
            raise VnpuRefused(f"vNPU {number} was destroyed: {mismatch}")
        return created

    def _undo(self, chip: Chip, entry: OwnedVnpu, number: int) -> None:
        """Destroy a vNPU with an invalid id: the new one that the chip lists, else by that id.

        If that fails, `reconcile` destroys it later by its entry.
        """
        candidates = [
            v.id
            for v in list_vnpus(chip)
            if v.id not in entry.before and v.template == entry.template
        ]
        try:
            self._destroy(
                chip, self._ledger.record_created(entry, (*candidates, number)[0]), self._sleep
            )
        except AgentError:
            return

    def _retry_while_busy(self, make: Callable[[], int]) -> int:
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
        """The vNPUs that the agent created."""
        return self._ledger.entries

    def _destroy(self, chip: Chip, entry: OwnedVnpu, sleep: Callable[[float], None]) -> None:
        assert entry.vdev is not None  # noqa: S101 - callers pass created vNPUs only
        for attempts_left in reversed(range(DESTROY_TRIES)):
            try:
                vdev.destroy_vdev(chip, entry.vdev)
                break
            except VendorFault:
                if not attempts_left:
                    raise
            sleep(DESTROY_PAUSE_S)
        self._ledger.remove(entry)

    def reconcile(
        self, chips: Mapping[str, Chip], pods: Collection[str] | None
    ) -> VnpuReconciliation:
        """Update the list of the agent's vNPUs, and destroy those of deleted pods.

        `chips` are by the id of their die; entries of chips that do not answer stay. `pods` are
        the uids of pods on this node; if it is `None`, they are unknown and nothing is destroyed.
        """
        lost: list[OwnedVnpu] = []
        created_before = {entry for entry in self._ledger.entries if entry.vdev is not None}
        for entry in self._ledger.entries:
            chip = chips.get(entry.chip)
            if chip is not None and self._remove_if_lost(chip, entry):
                lost.append(entry)
        adopted = tuple(
            entry
            for entry in self._ledger.entries
            if entry.vdev is not None and entry not in created_before
        )
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
            adopted=adopted,
            destroyed=tuple(destroyed),
            lost=tuple(lost),
            failed=tuple(failed),
        )

    def _remove_if_lost(self, chip: Chip, entry: OwnedVnpu) -> bool:
        """Remove an entry whose vNPU no longer exists; return whether a created one was lost."""
        chip.begin_round()
        numbers = vdev.vdev_ids(chip)
        existing = _describe_vnpus(chip, numbers or ())
        if numbers is None or chip.faults or chip.implausible:
            return False  # without a complete answer nothing is known to be lost
        if entry.vdev is None:
            # what another pod has was there before, or was made after this entry was interrupted
            others = {e.vdev for e in self._ledger.entries if e.chip == entry.chip}
            candidates = [
                v
                for v in existing
                if v.id not in others.union(entry.before) and v.template == entry.template
            ]
            if len(candidates) == 1:  # created just before the worker ended
                self._ledger.record_created(entry, candidates[0].id)
            else:
                self._ledger.remove(entry)
            return False
        if any((v.id, v.template) == (entry.vdev, entry.template) for v in existing):
            return False
        if entry.vdev in numbers and entry.vdev not in {v.id for v in existing}:
            return False  # it exists and cannot be described now
        self._ledger.remove(entry)
        return True


def list_vnpus(chip: Chip) -> tuple[Vdev, ...]:
    """Return the vNPUs that a chip describes, sorted by number."""
    return _describe_vnpus(chip, vdev.vdev_ids(chip) or ())


def _describe_vnpus(chip: Chip, numbers: Iterable[int]) -> tuple[Vdev, ...]:
    vnpus = (vdev.query_vdev(chip, number) for number in numbers)
    return tuple(v for v in vnpus if v is not None)


class DivisibleChip(msgspec.Struct, frozen=True, kw_only=True):
    """An answering chip with the facts that its slicing needs."""

    chip: Chip
    die: str
    model: str  # key of its templates
    cores: int | None
    describe: Callable[[Vdev], DevicePartition]


def reconcile_vnpus(
    maker: VnpuMaker,
    chips: Mapping[str, DivisibleChip],
    requests: Sequence[SliceRequest],
    pods: Collection[str] | None,
) -> SliceReport:
    """Create the requested vNPUs on the chips (by key), and destroy those of deleted pods.

    vNPUs of deleted pods are destroyed first, to make room. A vNPU of the agent that its chip does
    not describe now counts as existing, so no second one is created.
    """
    reconciliation = maker.reconcile(
        {divisible.die: divisible.chip for divisible in chips.values()}, pods
    )
    existing, undescribed = _existing_vnpus(maker, chips)

    def make(request: SliceRequest) -> DevicePartition:
        chip = chips.get(request.device)
        if chip is None:
            raise VnpuRefused(f"{request.device}: there is no chip that answers")
        if (request.pod, request.device) in undescribed:
            raise VnpuRefused(
                f"{request.device}: the chip does not describe the vNPU of this pod now"
            )
        template = template_of(chip.model, chip.cores, request.template)
        return chip.describe(maker.create(chip.chip, chip.die, template, request.pod, chip.cores))

    created, refused, changed = make_missing_slices(requests, existing, make)
    return SliceReport(
        made=created,
        unmade=refused,
        reclaimed=tuple(
            f"vNPU {entry.vdev} of pod {entry.pod}" for entry in reconciliation.destroyed
        ),
        lost=tuple(entry.pod for entry in reconciliation.lost),
        failed=reconciliation.failed,
        changed=changed
        or bool(reconciliation.adopted or reconciliation.destroyed or reconciliation.lost),
    )


def _existing_vnpus(
    maker: VnpuMaker, chips: Mapping[str, DivisibleChip]
) -> tuple[dict[SliceKey, DevicePartition], set[SliceKey]]:
    """Return the agent's vNPUs by pod and chip: described ones, and keys of undescribed ones."""
    keys = {chip.die: key for key, chip in chips.items()}
    existing: dict[SliceKey, DevicePartition] = {}
    undescribed: set[SliceKey] = set()
    for entry in maker.entries:
        if entry.chip not in keys:
            continue
        key = keys[entry.chip]
        vnpu = vdev.query_vdev(chips[key].chip, entry.vdev) if entry.vdev is not None else None
        if vnpu is None:
            undescribed.add((entry.pod, key))
        else:
            existing[entry.pod, key] = chips[key].describe(vnpu)
    return existing, undescribed
