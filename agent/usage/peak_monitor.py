"""Trains the predictor once a minute from the usage history, and stores its models."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from agent.config.settings import PredictionSettings
from agent.errors import ParseError
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES, ComputeRequest, PodView
from agent.snapshot.usage import Prediction
from agent.state_writer import StateWriter
from agent.usage.history import UsageHistory
from agent.usage.prediction import (
    CHECKPOINT_VERSION,
    PeakPredictor,
    PodDemand,
    PredictionCheckpoint,
    PredictionPolicy,
)
from agent.wire_formats.annotations import named_priority_class, raw_allocatable
from agent.wire_formats.json_values import JSON_ERRORS

log = logging.getLogger(__name__)

TRAINING_INTERVAL_S = 60.0
SAMPLE_FRACTION = 0.9  # the percentile of a minute that is its sample
CHECKPOINT_INTERVAL_S = 600.0
CLOCK_STEP_S = 10.0  # more than daemons move the clock by in a minute without setting it
FILE_NAME = "prediction.json"
MAX_FILE = 32 << 20

_DECODER = msgspec.json.Decoder(PredictionCheckpoint)


class PeakMonitor:
    """One predictor and its file. Belongs to the collector thread.

    Without a folder for state the models last as long as the process.
    """

    def __init__(
        self, settings: PredictionSettings, folder: str, writer: StateWriter, node: str = ""
    ) -> None:
        """Create the monitor; a file with the name of another node than `node` is not used."""
        self._node = node
        self._predictor = PeakPredictor(
            PredictionPolicy(
                safety_margin_percent=settings.safety_margin_percent,
                cold_start_s=settings.cold_start_s,
            )
        )
        self._writer = writer
        self._path = str(Path(folder, FILE_NAME)) if folder else ""
        self.due_s = float("-inf")  # monotonic time of the next training
        self._stored_s: float | None = None  # None before the first call
        self._clock_offset_s: float | None = None  # of Unix time to the monotonic clock

    def train(
        self, history: UsageHistory, pods: Iterable[PodView], now_s: float, wall_s: float
    ) -> None:
        """Add the samples of the last minute. The first call restores the models only.

        `now_s` is monotonic, and `due_s` or later.
        """
        self.due_s = now_s + TRAINING_INTERVAL_S
        self._follow_clock(now_s, wall_s)
        if self._stored_s is None:
            self._stored_s = now_s
            self._restore(wall_s)
            return
        self._predictor.train(
            history.node_percentile(now_s, TRAINING_INTERVAL_S, SAMPLE_FRACTION),
            history.pod_percentiles(now_s, TRAINING_INTERVAL_S, SAMPLE_FRACTION),
            {pod.uid: named_priority_class(pod) for pod in pods},
            wall_s,
        )
        if now_s - self._stored_s >= CHECKPOINT_INTERVAL_S:
            self._stored_s = now_s
            self._store()

    def predict(self, snapshot: NodeSnapshot, now_s: float, wall_s: float) -> Prediction:
        """Return what is predicted of the pods in the snapshot."""
        self._follow_clock(now_s, wall_s)
        node = snapshot.cluster.node.value
        allocatable = raw_allocatable(node) if node is not None else None
        return self._predictor.predict(map(pod_demand, snapshot.pods.value), allocatable, wall_s)

    def _follow_clock(self, now_s: float, wall_s: float) -> None:
        """Move the samples with the clock if it was set, or the machine was suspended."""
        offset_s, previous_s = wall_s - now_s, self._clock_offset_s
        self._clock_offset_s = offset_s
        if previous_s is not None and abs(offset_s - previous_s) >= CLOCK_STEP_S:
            self._predictor.move_samples(offset_s - previous_s)

    def _store(self) -> None:
        if self._path:
            self._writer.file(self._path).write(
                msgspec.json.encode(self._predictor.checkpoint(self._node))
            )

    def _restore(self, wall_s: float) -> None:
        """Take over the models of the file; a file that cannot be used is set aside."""
        if not self._path:
            return
        stored = self._writer.load(
            self._path, MAX_FILE, partial(decode_checkpoint, node=self._node)
        )
        if stored.error is not None:
            fields = {"path": self._path, "status": stored.status.value, "error": stored.reason}
            log.error("prediction_not_restored", extra=fields)
        if stored.value is None:
            return
        damaged = self._predictor.restore(stored.value, wall_s)
        if damaged:
            fields = {"path": self._path, "models": str(len(damaged)), "first": damaged[0][:80]}
            log.warning("prediction_models_damaged", extra=fields)


def decode_checkpoint(data: bytes, node: str = "") -> PredictionCheckpoint:
    """Decode the file of models; raise `ParseError` unless it is of this version and node."""
    try:
        checkpoint = _DECODER.decode(data)
    except JSON_ERRORS as error:
        raise ParseError("prediction", str(error)[:120]) from error
    if checkpoint.version != CHECKPOINT_VERSION:
        raise ParseError("prediction: version", str(checkpoint.version))
    if node and checkpoint.node not in ("", node):
        raise ParseError("prediction: another node", checkpoint.node[:80])
    return checkpoint


def pod_demand(pod: PodView) -> PodDemand:
    """Return what predictions use of a pod."""
    request = pod.compute_request or ComputeRequest()
    return PodDemand(
        uid=pod.uid,
        priority_class=named_priority_class(pod),
        request=(request.cpu_cores, request.memory_bytes),
        created_s=_unix_time(pod.created),
        is_ended=pod.terminating or pod.phase in ENDED_PHASES,
    )


def _unix_time(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None
