"""Names of dcgm-exporter for NVIDIA's metrics: its default counters and its optional ones."""

from __future__ import annotations

from agent.snapshot.vendor import (
    AliasLabel,
    AliasSource,
    AliasTable,
    LabelOrigin,
    MetricAlias,
)

_MHZ = 1e-6

_LABELS = (
    AliasLabel("gpu", LabelOrigin.FACT, "index"),
    AliasLabel("UUID", LabelOrigin.UUID),
    AliasLabel("pci_bus_id", LabelOrigin.BUS_ID_LONG),
    AliasLabel("device", LabelOrigin.VENDOR_MINOR, prefix="nvidia"),
    AliasLabel("modelName", LabelOrigin.NAME),
    AliasLabel("Hostname", LabelOrigin.NODE),
    AliasLabel("DCGM_FI_DRIVER_VERSION", LabelOrigin.DRIVER_VERSION),
    AliasLabel("container", LabelOrigin.CONTAINER),
    AliasLabel("namespace", LabelOrigin.NAMESPACE),
    AliasLabel("pod", LabelOrigin.POD),
)


def _source(family: str, factor: float = 1.0, **where: str) -> AliasSource:
    return AliasSource(family=f"xpu_device_{family}", factor=factor, where=tuple(where.items()))


_CLOCKS = (
    MetricAlias(
        name="DCGM_FI_DEV_SM_CLOCK",
        type="gauge",
        help="SM clock frequency (in MHz).",
        sources=(_source("clock_hertz", _MHZ, domain="sm"),),
    ),
    MetricAlias(
        name="DCGM_FI_DEV_MEM_CLOCK",
        type="gauge",
        help="Memory clock frequency (in MHz).",
        sources=(_source("clock_hertz", _MHZ, domain="memory"),),
    ),
)

DCGM = AliasTable(
    name="dcgm",
    exporter="NVIDIA's dcgm-exporter",
    maker="nvidia",
    labels=_LABELS,
    metrics=_CLOCKS,
)
