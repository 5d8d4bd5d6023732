"""Predicts the peak usage of pods and of the node, from which NodeMetric's reclaimable follows.

Entities, samples, percentiles and formulas are those of Koordinator's `pkg/koordlet/prediction`
with one difference: a model predicts only once it is as old as the cold start lasts. Koordinator
trusts the first sample of a pod that is older than that, so that an agent which was just installed
would offer nearly all that is requested.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from agent.snapshot.usage import PredictedUsage, Prediction, ResourceUsage
from agent.usage.decaying_histogram import (
    CPU_CORES,
    MEMORY_BYTES,
    MIN_HALF_LIVES,
    DecayingHistogram,
    HistogramCheckpoint,
)
from agent.usage.history import Amounts

NODE = "__node__"
SYSTEM = "__node-sys__"
CPU_HALF_LIFE_S = 12 * 3600.0
MEMORY_HALF_LIFE_S = 24 * 3600.0
CPU_FRACTION = 0.95
MEMORY_FRACTION = 0.98
EXPIRY_S = 1800.0  # a model without a sample for that long is dropped
MAX_MODELS = 4096
CHECKPOINT_VERSION = 1
# of a histogram with a sample: its weight is a half at least, and doubles with each half-life
MIN_TOTAL_WEIGHT, MAX_TOTAL_WEIGHT = 0.5, 2.0**120

PROD_CLASSES = ("koord-prod", "")  # whose unused requests are offered to others
CLASSES = (*PROD_CLASSES, "koord-mid", "koord-batch", "koord-free")


@lru_cache(maxsize=16)
def class_entity(priority_class: str) -> str:
    """Return the name of the model of a class; an empty class is that of pods without one."""
    return f"__node-{priority_class}__"


class PredictionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How careful predictions are."""

    safety_margin_percent: float = 10.0
    cold_start_s: float = 86400.0  # pods and models that are younger predict nothing


class PodDemand(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as far as predictions depend on it."""

    uid: str
    priority_class: str  # as the pod says it; empty: it says none
    request: Amounts
    created_s: float | None  # Unix time; `None`: not known
    is_ended: bool = False  # terminating or finished


class ModelCheckpoint(msgspec.Struct, frozen=True, rename="camel"):
    """One model in a file; times are Unix time in seconds."""

    since: float
    last_updated: float
    cpu: HistogramCheckpoint
    memory: HistogramCheckpoint

    @property
    def is_possible(self) -> bool:
        """Return whether samples until `last_updated` can have made both histograms."""
        pairs = ((self.cpu, CPU_HALF_LIFE_S), (self.memory, MEMORY_HALF_LIFE_S))
        return all(
            saved.bucket_weights
            and MIN_TOTAL_WEIGHT <= saved.total_weight <= MAX_TOTAL_WEIGHT
            and saved.reference_timestamp <= self.last_updated - MIN_HALF_LIVES * half_life_s
            for saved, half_life_s in pairs
        )


class PredictionCheckpoint(msgspec.Struct, frozen=True, rename="camel"):
    """All models in a file, by entity."""

    version: int
    models: Mapping[str, ModelCheckpoint]
    node: str = ""  # whose usage they are of; empty: not known, as in files of earlier agents


class _Model:
    """Histograms of one entity's usage, and the peak that they predict, with the safety margin."""

    __slots__ = ("_peak_factor", "cpu", "memory", "peak", "since_s", "updated_s")

    def __init__(self, since_s: float, peak_factor: float) -> None:
        self.since_s = since_s  # Unix time of the first sample
        self.updated_s = since_s
        self.cpu = DecayingHistogram(CPU_CORES, CPU_HALF_LIFE_S)
        self.memory = DecayingHistogram(MEMORY_BYTES, MEMORY_HALF_LIFE_S)
        self._peak_factor = peak_factor
        self.peak: Amounts = (0.0, 0.0)

    def add(self, usage: Amounts, at_s: float) -> None:
        self.updated_s = at_s
        cpu, memory, factor = self.cpu, self.memory, self._peak_factor
        cores, size = usage
        cpu.add(cores, at_s)
        memory.add(size, at_s)
        # with each sample, while the histograms are in the processor's cache
        cores, size = cpu.percentile(CPU_FRACTION), memory.percentile(MEMORY_FRACTION)
        self.peak = cores * factor, size * factor

    def move_samples(self, seconds: float) -> None:
        """Add so many seconds to the times of all samples."""
        self.since_s += seconds
        self.updated_s += seconds
        self.cpu.move_samples(seconds)
        self.memory.move_samples(seconds)

    def restore(self, saved: ModelCheckpoint) -> None:
        """Take over the histograms; raise `ValueError` if one cannot be of this model."""
        self.cpu.restore(saved.cpu)
        self.memory.restore(saved.memory)
        cores, size = self.cpu.percentile(CPU_FRACTION), self.memory.percentile(MEMORY_FRACTION)
        self.peak = cores * self._peak_factor, size * self._peak_factor


class PeakPredictor:
    """Models of the node, its priority classes and its pods. Not for two threads."""

    def __init__(self, policy: PredictionPolicy) -> None:
        self._policy = policy
        self._peak_factor = (100.0 + policy.safety_margin_percent) / 100.0
        self._models: dict[str, _Model] = {}

    def train(
        self,
        node: Amounts | None,
        pods: Mapping[str, Amounts],
        classes: Mapping[str, str],
        now_s: float,
    ) -> None:
        """Add one sample of each entity: the p90 of its usage over the last minute.

        `pods` and `classes` (as in `PodDemand`) are by uid; `now_s` is Unix time. Without `node`
        neither the node nor the system gets a sample. Models without samples expire, or make room
        for those of new pods.
        """
        by_class: dict[str, list[Amounts]] = {name: [] for name in CLASSES}
        new_pods: list[tuple[str, Amounts]] = []
        models = self._models
        for uid, usage in pods.items():
            model = models.get(uid)
            if model is None:
                new_pods.append((uid, usage))
            else:
                model.add(usage, now_s)
            by_class[classes.get(uid, "")].append(usage)
        for name, usages in by_class.items():
            self._add(class_entity(name), _sum(usages), now_s)
        if node is not None:
            self._add(NODE, node, now_s)
            self._add(SYSTEM, _subtract(node, _sum(pods.values())), now_s)
        self._drop_ended(now_s, len(new_pods))
        for uid, usage in new_pods:
            self._add(uid, usage, now_s)

    def move_samples(self, seconds: float) -> None:
        """Add so many seconds to the times of all samples: the clock was set by as much.

        Else samples of a clock that was days ahead would outweigh all others for days, and a model
        would count as old because the clock was set ahead.
        """
        for model in self._models.values():
            model.move_samples(seconds)

    def predict(
        self, pods: Iterable[PodDemand], allocatable: Amounts | None, now_s: float
    ) -> Prediction:
        """Return what the pods of production leave of their requests, and their peak.

        `allocatable` is the node's, without what is offered to mid and batch pods.
        """
        if allocatable is None:
            return Prediction(error="the Node's allocatable CPU and memory are not known")
        prod_entities = (SYSTEM, *map(class_entity, PROD_CLASSES))
        if any(entity not in self._models for entity in prod_entities):
            return Prediction(error="no usage of the node was measured for a minute yet")
        demands = [pod for pod in pods if pod.priority_class in PROD_CLASSES and not pod.is_ended]
        peaks, unused, unpredicted = self._predict_pods(demands, now_s - self._policy.cold_start_s)
        peak, requests = _sum(peaks), _sum([pod.request for pod in demands])
        unreclaimable = _sum(self._models[entity].peak for entity in prod_entities)
        return Prediction(
            pods=PredictedUsage(
                reclaimable=_usage(_minimum(_sum(unused), _subtract(allocatable, peak))),
                peak=_usage(_add(peak, _sum(unpredicted))),
            ),
            classes=PredictedUsage(
                reclaimable=_usage(
                    _minimum(
                        _subtract(requests, unreclaimable), _subtract(allocatable, unreclaimable)
                    )
                ),
                peak=_usage(unreclaimable),
            ),
            predicted_pods=len(peaks),
            cold_pods=len(unpredicted),
        )

    def checkpoint(self, node: str = "") -> PredictionCheckpoint:
        """Return what a file holds of all models; `node` is the name of the node."""
        return PredictionCheckpoint(
            CHECKPOINT_VERSION,
            {
                entity: ModelCheckpoint(
                    since=model.since_s,
                    last_updated=model.updated_s,
                    cpu=model.cpu.checkpoint(),
                    memory=model.memory.checkpoint(),
                )
                for entity, model in self._models.items()
            },
            node,
        )

    def restore(self, checkpoint: PredictionCheckpoint, now_s: float) -> tuple[str, ...]:
        """Take over the models of a file and return those that are damaged, by name.

        A model whose last sample is older than the cold start lasts, or lies in the future, is
        left out: new samples alone would decide what it predicts. Models of pods that are gone
        get no samples from now on, and expire.
        """
        damaged: list[str] = []
        for entity, saved in list(checkpoint.models.items())[:MAX_MODELS]:
            if not 0 <= saved.since <= saved.last_updated <= now_s:
                continue
            if now_s - saved.last_updated > self._policy.cold_start_s:
                continue
            if not saved.is_possible:  # without weights it would predict that nothing is used
                damaged.append(entity)
                continue
            model = _Model(saved.since, self._peak_factor)
            model.updated_s = now_s
            try:
                model.restore(saved)
            except ValueError:
                damaged.append(entity)
                continue
            self._models[entity] = model
        return tuple(damaged)

    def _drop_ended(self, now_s: float, new_count: int) -> None:
        """Drop the models that expired; and the oldest ones while `new_count` others lack room.

        Models with a sample of this minute stay.
        """
        models = self._models
        ended = sorted((one.updated_s, key) for key, one in models.items() if one.updated_s < now_s)
        excess = len(models) + new_count - MAX_MODELS
        for position, (updated_s, entity) in enumerate(ended):
            if position >= excess and updated_s >= now_s - EXPIRY_S:
                break
            del models[entity]

    def _add(self, entity: str, usage: Amounts, now_s: float) -> None:
        model = self._models.get(entity)
        if model is None:
            if len(self._models) >= MAX_MODELS:
                return
            model = self._models[entity] = _Model(now_s, self._peak_factor)
        model.add(usage, now_s)

    def _predict_pods(
        self, pods: Iterable[PodDemand], before_s: float
    ) -> tuple[list[Amounts], list[Amounts], list[Amounts]]:
        """Return peaks and unused requests of pods that are old enough, and requests of others.

        A pod is old enough if it and its model are older than `before_s`.
        """
        peaks: list[Amounts] = []
        unused: list[Amounts] = []
        unpredicted: list[Amounts] = []
        models = self._models
        for pod in pods:
            model, created_s, request = models.get(pod.uid), pod.created_s, pod.request
            is_warm = created_s is not None and created_s < before_s
            if is_warm and model is not None and model.since_s < before_s:
                cores, size = peak = model.peak
                peaks.append(peak)
                # as `_subtract`, without a call for each pod
                cores, size = request[0] - cores, request[1] - size
                unused.append((cores if cores > 0.0 else 0.0, size if size > 0.0 else 0.0))
            else:
                unpredicted.append(request)
        return peaks, unused, unpredicted


def _add(one: Amounts, other: Amounts) -> Amounts:
    return one[0] + other[0], one[1] + other[1]


def _subtract(one: Amounts, other: Amounts) -> Amounts:
    """Return the difference, at least 0."""
    cores, size = one[0] - other[0], one[1] - other[1]
    return cores if cores > 0.0 else 0.0, size if size > 0.0 else 0.0


def _minimum(one: Amounts, other: Amounts) -> Amounts:
    return min(one[0], other[0]), min(one[1], other[1])


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    columns = tuple(zip(*amounts, strict=True))
    return (math.fsum(columns[0]), math.fsum(columns[1])) if columns else (0.0, 0.0)


def _usage(amounts: Amounts) -> ResourceUsage:
    return ResourceUsage(cpu_cores=amounts[0], memory_bytes=amounts[1])
