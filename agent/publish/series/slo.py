"""Samples of the NodeSLO: whether there is one, how sure of it we are, and what was not used."""

from __future__ import annotations

from agent.model.cluster.facts import ClusterFacts
from agent.model.slo.in_force import frozen
from agent.publish.families import NODE, Family
from agent.publish.series.text import Series, line

_ROWS = (
    ("found", "", "Whether this node has a NodeSLO, as far as the API server told."),
    (
        "age_seconds",
        "seconds",
        "Time since the API server told or confirmed what NodeSLO there is.",
    ),
    ("frozen", "", "Whether the NodeSLO in force may be outdated: nothing is changed by it then."),
    ("refused_values", "", "Values of the NodeSLO that are wrong: their defaults stand."),
    ("unknown_fields", "", "Fields of the NodeSLO that this release does not know."),
)
SLO_FAMILIES: tuple[Family, ...] = tuple(
    Family(name=f"xpu_agent_node_slo_{name}", type="gauge", help=text, labels=NODE, unit=unit)
    for name, unit, text in _ROWS
)


def slo_series(cluster: ClusterFacts, now_s: float, stale_s: float, opened: str) -> Series:
    """Yield the families of the NodeSLO; none outside of a cluster."""
    if not cluster.clustered:
        return
    view, age_s = cluster.slo.value, cluster.slo.age_s(now_s)
    values = (
        int(view.found),
        None if age_s is None else round(age_s, 3),
        int(frozen(cluster.slo, now_s, stale_s)),
        view.refused_count,
        view.unknown_fields,
    )
    for family, value in zip(SLO_FAMILIES, values, strict=True):
        if value is not None:
            yield family.name, [line(family.name, opened, value)]
