"""Templates of virtual NPUs: a request must equal one of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from plugins.scheduler.devices.device_table import GPU_MEMORY, Amounts
from plugins.scheduler.devices.requests import NPU_CORE, NPU_CPU, NPU_DVPP

NO_MATCH = "no matched GPU shared resource template"
GIB = 1 << 30

ModelTemplates = Mapping[str, Amounts]  # by name
SharedTemplates = Mapping[str, ModelTemplates]  # by `<vendor>-<model>`


def _template(core: int, cpu: int, dvpp: int, memory_gib: int) -> Amounts:
    amounts = {NPU_CORE: core, NPU_CPU: cpu, NPU_DVPP: dvpp, GPU_MEMORY: memory_gib * GIB}
    return {name: amount for name, amount in amounts.items() if amount}


# as in the chart of Koordinator; those of other models are not verified on hardware
_ASCEND_310P: ModelTemplates = {
    "vir01": _template(1, 1, 12, 3),
    "vir02": _template(2, 2, 25, 6),
    "vir02_1c": _template(2, 1, 25, 6),
    "vir04": _template(4, 4, 50, 12),
    "vir04_3c": _template(4, 3, 50, 12),
    "vir04_3c_ndvpp": _template(4, 3, 0, 12),
    "vir04_4c_dvpp": _template(4, 4, 100, 12),
}
SHARED_TEMPLATES: SharedTemplates = MappingProxyType(
    {"huawei-Ascend-310P": _ASCEND_310P, "huawei-Ascend-310P3": _ASCEND_310P}
)


def matching_template(templates: ModelTemplates, amounts: Amounts) -> str:
    """Return the name of the template whose amounts equal these; empty if there is none."""
    return next((name for name, template in templates.items() if template == amounts), "")
