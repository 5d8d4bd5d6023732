"""The vNPUs that pods are to have: cut where they are missing, destroyed where pods are gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from agent.model.device import DevicePartition
from agent.model.runtime.slices import SlicesKept, SliceWish
from plugins.bindings.dcmi import vdev
from plugins.bindings.dcmi.chip import Chip
from plugins.bindings.dcmi.vdev import Vdev
from plugins.slices.keeping import Key, fulfil
from plugins.slices.vnpu.make import VnpuMaker
from plugins.slices.vnpu.templates import VnpuRefused, template_of


class Cuttable(msgspec.Struct, frozen=True, kw_only=True):
    """A chip that answers, and what is known of it."""

    chip: Chip
    die: str
    model: str  # under which its templates are found
    cores: int | None
    describe: Callable[[Vdev], DevicePartition]


def keep(
    maker: VnpuMaker,
    chips: Mapping[str, Cuttable],
    wishes: Sequence[SliceWish],
    pods: Collection[str] | None,
) -> SlicesKept:
    """Make what is wished for of the chips (by key), and destroy ours of pods not in `pods`.

    Pods that are gone make room first. A vNPU of ours that its chip does not describe now counts
    as standing: a second one is not cut.
    """
    tidied = maker.reconcile({cut.die: cut.chip for cut in chips.values()}, pods)
    there, dumb = _standing(maker, chips)

    def make(wish: SliceWish) -> DevicePartition:
        cut = chips.get(wish.device)
        if cut is None:
            raise VnpuRefused(f"{wish.device}: there is no chip that answers")
        if (wish.pod, wish.device) in dumb:
            raise VnpuRefused(f"{wish.device}: the chip does not describe the vNPU of this pod now")
        template = template_of(cut.model, cut.cores, wish.template)
        return cut.describe(maker.create(cut.chip, cut.die, template, wish.pod, cut.cores))

    made, unmade, changed = fulfil(wishes, there, make)
    return SlicesKept(
        made=made,
        unmade=unmade,
        reclaimed=tuple(f"vNPU {gone.vdev} of pod {gone.pod}" for gone in tidied.destroyed),
        lost=tuple(gone.pod for gone in tidied.lost),
        failed=tidied.failed,
        changed=changed or bool(tidied.destroyed or tidied.lost),
    )


def _standing(
    maker: VnpuMaker, chips: Mapping[str, Cuttable]
) -> tuple[dict[Key, DevicePartition], set[Key]]:
    """Return our vNPUs by pod and chip: those that are described, and those that are not."""
    keys = {cut.die: key for key, cut in chips.items()}
    there: dict[Key, DevicePartition] = {}
    dumb: set[Key] = set()
    for entry in maker.entries:
        if entry.chip not in keys:
            continue
        key = keys[entry.chip]
        found = vdev.query(chips[key].chip, entry.vdev) if entry.vdev is not None else None
        if found is None:
            dumb.add((entry.pod, key))
        else:
            there[entry.pod, key] = chips[key].describe(found)
    return there, dumb
