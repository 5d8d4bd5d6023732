"""How busy the CPUs are that latency-sensitive pods share: all that no pod has for its own."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import msgspec

from agent.qos.strategy import QosInputs, QosPod
from agent.snapshot.pod import ENDED_PHASES

WINDOW_S = 5.0
COOLING_PERCENT = 90  # of the threshold
PINNED_CLASSES = ("LSE", "LSR")
OUTSIDE_CLASSES = (*PINNED_CLASSES, "BE")  # whose usage is not that of the shared CPUs


class PoolState(enum.Enum):
    """The usage of the shared CPUs, compared with the threshold."""

    IDLE = "idle"
    COOLING = "cooling"
    OVERLOADED = "overloaded"
    UNKNOWN = "unknown"


class PoolSample(msgspec.Struct, frozen=True):
    """CPU usage in cores of one moment: of the node, and of pods outside of the pool by uid."""

    taken_s: float
    node_cores: float
    outside_cores: Mapping[str, float]


def share_ratio(cpus: int, pinned_cores: float, node_cores: float, outside_cores: float) -> float:
    """Return the used part of the shared CPUs; 1 if there are none."""
    shared = cpus - pinned_cores
    return (node_cores - outside_cores) / shared if shared > 0 else 1.0


def pool_state(ratio: float | None, threshold_percent: int) -> PoolState:
    """Return the state of the shared CPUs."""
    if ratio is None:
        return PoolState.UNKNOWN
    if ratio * 100 >= threshold_percent:
        return PoolState.OVERLOADED
    is_cooling = ratio * 10_000 >= threshold_percent * COOLING_PERCENT
    return PoolState.COOLING if is_cooling else PoolState.IDLE


def add_sample(inputs: QosInputs, samples: Iterable[PoolSample]) -> tuple[PoolSample, ...]:
    """Return the samples of the window with the current one, if it is new."""
    window = [sample for sample in samples if inputs.now_s - sample.taken_s <= WINDOW_S]
    usage, taken_s = inputs.usage, inputs.usage_taken_s
    is_new = taken_s is not None and (not window or taken_s > window[-1].taken_s)
    if usage is not None and taken_s is not None and is_new and usage.node.cpu_cores is not None:
        outside = {
            pod.uid: sample.cpu_cores
            for pod in inputs.pods
            if pod.label in OUTSIDE_CLASSES
            and (sample := usage.pods.get(pod.uid)) is not None
            and sample.cpu_cores is not None
        }
        window.append(PoolSample(taken_s, usage.node.cpu_cores, outside))
    return tuple(window)


def pool_ratio(inputs: QosInputs, samples: tuple[PoolSample, ...]) -> float | None:
    """Return the mean used part of the shared CPUs; `None` without samples or CPUs."""
    cpus = len(inputs.cpus.cpus)
    if not samples or not cpus:
        return None
    node_cores = sum(sample.node_cores for sample in samples) / len(samples)
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for sample in samples:
        for uid, cores in sample.outside_cores.items():
            sums[uid] = sums.get(uid, 0.0) + cores
            counts[uid] = counts.get(uid, 0) + 1
    present = {pod.uid for pod in inputs.pods}
    outside_cores = sum(total / counts[uid] for uid, total in sums.items() if uid in present)
    return share_ratio(cpus, pinned_cores(inputs.pods), node_cores, outside_cores)


def pinned_cores(pods: Iterable[QosPod]) -> float:
    """Return the CPUs that pods with CPUs of their own request; ended pods have none any more."""
    return sum(
        pod.view.compute_request.cpu_cores
        for pod in pods
        if pod.label in PINNED_CLASSES
        and pod.view.phase not in ENDED_PHASES
        and pod.view.compute_request is not None
    )
