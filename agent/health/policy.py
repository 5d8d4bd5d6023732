"""What it takes to change the state of one vendor's devices."""

from __future__ import annotations

from collections.abc import Mapping

from agent.config.health import VENDOR, HealthPolicy, HealthSettings, values_of

# what the drivers of each maker ask for; whoever is not listed has the section's own values
BUILT_IN: Mapping[str, Mapping[str, object]] = {
    "nvidia": {"clean_probes": 3, "clean_s": 60.0},
    "ascend": {"clean_probes": 3, "clean_s": 15.0},
    "cambricon": {"clean_probes": 3},
    # its ports are watched for seconds before it says that they went down or came up
    "rdma": {"clean_probes": 1, "clean_s": 0.0, "clear_looks": 1},
}


def policy_of(health: HealthSettings, vendor: str) -> HealthPolicy:
    """Return what counts for one vendor: rows of settings before built-in ones before the rest."""
    values = {name: getattr(health, name) for name in HealthPolicy.__struct_fields__}
    values.update(BUILT_IN.get(vendor, {}))
    for index, row in enumerate(health.vendors):
        if row.get(VENDOR) == vendor:
            values.update(values_of(row, f"health.vendors[{index}]"))
    return HealthPolicy(**values)
