"""Whether a chip may be cut, and whether what was cut off is what was asked for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from plugins.bindings.dcmi.vdev import MAX_VDEVS, Vdev
from plugins.slices.vnpu.templates import Template, VnpuRefused

LEAST_PERCENT, MOST_PERCENT = 95, 105  # of the template's memory


def refuse_if_full(template: Template, there: Sequence[Vdev], chip_cores: int | None) -> None:
    """Raise `VnpuRefused` if the chip has no room for one more piece."""
    if len(there) >= MAX_VDEVS:
        raise VnpuRefused(f"the chip has {len(there)} vNPUs already, {MAX_VDEVS} at most")
    used = sum(vdev.cores or 0 for vdev in there)
    if chip_cores is not None and used + template.cores > chip_cores:
        told = f"{template.name} needs {template.cores} AI cores, {chip_cores - used} are free"
        raise VnpuRefused(told)


def difference(made: Vdev, template: Template) -> str:
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
