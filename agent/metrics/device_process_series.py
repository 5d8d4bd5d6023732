"""Series of the processes on devices, and of what the processes of each pod use together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.metrics.device_pods import NO_POD, UNUSED, DevicePod, DevicePods, process_key
from agent.metrics.device_series import device_labels
from agent.metrics.families import ENGINE, PROCESS
from agent.metrics.text_format import LabelCache, SeriesLines, label_pairs, sample_line
from agent.snapshot.device import Device
from agent.snapshot.inventory import DeviceSample, ProcessSample

_MEMORY, _UTILIZATION = "memory_used_bytes", "utilization_ratio"
_VIRTUAL, _ENGINES = "virtual_memory_bytes", "engine_ratio"  # of processes only

_Figures = dict[str, float | None]  # by label prefix; None: of a part it is not known


def device_process_series(
    devices: Iterable[Device],
    samples: Mapping[str, DeviceSample],  # by device key
    labels: LabelCache,
    pods: DevicePods,
    node: str,
) -> SeriesLines:
    """Yield the families of processes, then of pods.

    A process of no pod has series of its own only. A sum is absent if one of its parts is unknown.
    """
    processes: dict[str, _Figures] = {_MEMORY: {}, _UTILIZATION: {}, _VIRTUAL: {}, _ENGINES: {}}
    sums: dict[str, _Figures] = {_MEMORY: {}, _UTILIZATION: {}}
    for device in devices:
        sample = samples.get(device.key)
        for process in (sample.processes if sample is not None else None) or ():
            (pod,) = pods.get(process_key(device, process.pid), (UNUSED,))
            prefix = device_labels(device, pod.values, labels, node)
            pid = label_pairs(PROCESS, (str(process.pid),))
            for column, value in _figures(process):
                _add(processes[column], f"{prefix},{pid}", value)
                if _is_of_pod(pod):
                    _add(sums[column], prefix, value)
            if process.virtual_bytes is not None:
                _add(processes[_VIRTUAL], f"{prefix},{pid}", process.virtual_bytes)
            for engine, percent in process.engine_percents:
                label = label_pairs(ENGINE, (engine,))
                _add(processes[_ENGINES], f"{prefix},{pid},{label}", percent / 100)
    for scope, figures in (("process", processes), ("pod", sums)):
        for column, values in figures.items():
            name = f"xpu_device_{scope}_{column}"
            lines = [
                sample_line(name, prefix, value)
                for prefix, value in values.items()
                if value is not None
            ]
            yield name, lines


def _figures(process: ProcessSample) -> tuple[tuple[str, float | None], ...]:
    percent = process.core_percent
    return (
        (_MEMORY, process.memory_bytes),
        (_UTILIZATION, None if percent is None else percent / 100),
    )


def _is_of_pod(pod: DevicePod) -> bool:
    return pod.reason != NO_POD


def _add(figures: _Figures, prefix: str, value: float | None) -> None:
    """Add a process, or its part on another slice of the device."""
    total = figures.get(prefix, 0)
    figures[prefix] = None if value is None or total is None else total + value
