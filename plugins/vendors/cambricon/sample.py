"""What a card does now: one round of calls as typed values and readings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent.model.inventory import DeviceSample, ProcessSample, Reading
from plugins import families
from plugins.bindings.cndev.card import Card, Instance
from plugins.vendors.cambricon.families import SLICE_CORE, SLICE_MEMORY


def sample(card: Card, key: str, *, sliced: bool) -> DeviceSample | None:
    """Ask a card everything that changes; `None` if it answered nothing at all.

    `sliced` says that sMLU cuts the card, so that its instances are asked about too.
    """
    memory = card.memory()
    core = card.utilisation()
    processes = card.processes()
    readings = (*_readings(card), *(_of_slices(card.slices()) if sliced else ()))
    if memory is None and core is None and processes is None and not readings:
        return None
    return DeviceSample(
        key=key,
        core_percent=core,
        memory_used_bytes=memory[1] if memory else None,
        memory_total_bytes=memory[0] if memory else None,
        processes=None
        if processes is None
        else tuple(
            ProcessSample(pid=p.pid, memory_bytes=p.memory_bytes, core_percent=p.core_percent)
            for p in processes
        ),
        readings=readings,
    )


def _readings(card: Card) -> Iterator[Reading]:
    power = card.power_watts()
    if power is not None:
        yield Reading(family=families.POWER.name, value=power)
    for sensor, heat in card.temperatures():
        yield Reading(family=families.TEMPERATURE.name, value=heat, labels=(sensor,))
    for kind, count in card.ecc():
        yield Reading(family=families.ECC_ERRORS.name, value=float(count), labels=(kind,))


def _of_slices(found: Sequence[Instance]) -> Iterator[Reading]:
    for one in found:
        label = (str(one.number),)
        if one.used_percent is not None:
            yield Reading(family=SLICE_CORE, value=float(one.used_percent), labels=label)
        if one.used_bytes is not None:
            yield Reading(family=SLICE_MEMORY, value=float(one.used_bytes), labels=label)
