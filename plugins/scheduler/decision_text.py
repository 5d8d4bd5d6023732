"""Decisions as lines of text for people."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap

import msgspec

from plugins.scheduler.devices.device_table import GPU_MEMORY, GPU_MEMORY_RATIO
from plugins.scheduler.reasons import explain_reason
from plugins.scheduler.simulation import NodeDecision, PodDecision

MAX_FITTING = 8  # nodes that are printed for one pod
MAX_NAMES = 8  # of nodes that are refused for one reason
LINE_WIDTH = 94  # of a meaning


def decision_lines(decision: PodDecision) -> list[str]:
    """Return a decision as lines for people: nodes that fit, and explained reasons of others.

    The first nodes are the best ones.
    """
    fitting = [node for node in decision.nodes if node.fits]
    count = len(decision.nodes)
    chosen = f"{decision.chosen} ({len(fitting)} of {count} nodes fit)"
    lines = [f"{decision.pod}: {f'no node of {count} fits' if decision.chosen is None else chosen}"]
    for node in fitting[:MAX_FITTING]:
        lines.append(f"  {node.name}  score {node.score}  {_grant_text(node) or 'no devices'}")
    if len(fitting) > MAX_FITTING:
        lines.append(f"  and {len(fitting) - MAX_FITTING} more nodes")
    refused: dict[str, list[str]] = {}
    for node in decision.nodes:
        for reason in node.reasons:
            refused.setdefault(reason, []).append(node.name)
    for reason, names in sorted(refused.items(), key=lambda item: -len(item[1])):
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        lines.append(f"  not {', '.join(names[:MAX_NAMES])}{more}: {reason}")
        lines += [f"      {line}" for line in wrap(explain_reason(reason), LINE_WIDTH)]
    return [*lines, *(f"  note: {note}" for note in decision.notes)]


def _grant_text(node: NodeDecision) -> str:
    """Return the devices of a pod on a node: `gpu 0, 1 (gpu-core 100, gpu-memory 80Gi each)`."""
    parts: list[str] = []
    by_kind = msgspec.convert(node.allocation, dict[str, list[_AnnotationEntry]])
    for kind, entries in by_kind.items():
        alike: dict[str, list[str]] = {}
        for entry in entries:
            alike.setdefault(_amounts_text(entry.resources), []).append(entry.name)
        for amounts, names in alike.items():
            each = " each" if len(names) > 1 else ""
            parts.append(f"{kind} {', '.join(names)} ({amounts}{each})")
    status = msgspec.convert(node.cpus, _NumaEntries)
    if status.cpuset:
        parts.append(f"CPUs {status.cpuset}")
    for one in status.nodes:
        parts.append(f"NUMA node {one.node} ({_amounts_text(one.resources)})")
    return "; ".join(parts)


def _amounts_text(resources: Mapping[str, str]) -> str:
    """Return amounts by their short names; a share of memory only if its size is absent."""
    is_sized = GPU_MEMORY in resources
    amounts = resources.items()
    shown = [(n, text) for n, text in amounts if not (is_sized and n == GPU_MEMORY_RATIO)]
    return ", ".join(f"{name.rpartition('/')[2]} {text}" for name, text in shown)


class _AnnotationFunction(msgspec.Struct, frozen=True):
    bus_id: str = msgspec.field(name="busID", default="")


class _AnnotationExtension(msgspec.Struct, rename="camel", frozen=True):
    vfs: tuple[_AnnotationFunction, ...] = ()
    gpu_shared_resource_template: str = ""


class _AnnotationEntry(msgspec.Struct, frozen=True):
    minor: int
    resources: dict[str, str] = {}
    extension: _AnnotationExtension = _AnnotationExtension()

    @property
    def name(self) -> str:
        """Return the minor, and the virtual function or the template."""
        functions = "".join(f" function {one.bus_id}" for one in self.extension.vfs)
        template = self.extension.gpu_shared_resource_template
        return f"{self.minor}{functions}" + (f" as {template}" if template else "")


class _NumaEntry(msgspec.Struct, frozen=True):
    node: int
    resources: dict[str, str] = {}


class _NumaEntries(msgspec.Struct, frozen=True):
    cpuset: str = ""
    nodes: tuple[_NumaEntry, ...] = msgspec.field(name="numaNodeResources", default=())
