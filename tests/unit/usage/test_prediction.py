"""What production leaves of its requests, as Koordinator's predictors compute it."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.snapshot.usage import Prediction, ResourceUsage
from agent.usage.decaying_histogram import HistogramCheckpoint
from agent.usage.history import Amounts
from agent.usage.prediction import (
    CHECKPOINT_VERSION,
    EXPIRY_S,
    MAX_MODELS,
    ModelCheckpoint,
    PeakPredictor,
    PodDemand,
    PredictionCheckpoint,
    PredictionPolicy,
)

GIB = 2.0**30
DAY_S = 86400.0
START_S = 1_767_225_600.0
NODE = (64.0, 256 * GIB)


def trained(
    minutes: int = 1500, *, policy: PredictionPolicy | None = None, pod: Amounts = (2.0, 4 * GIB)
) -> PeakPredictor:
    """Return a predictor after that many minutes of one pod of production and 1 core of system."""
    predictor = PeakPredictor(policy or PredictionPolicy())
    for minute in range(minutes):
        node = (pod[0] + 1.0, pod[1] + GIB)
        predictor.train(node, {"a": pod}, {"a": "koord-prod"}, START_S + 60 * minute)
    return predictor


def demand(uid: str = "a", **changes: object) -> PodDemand:
    pod = PodDemand(
        uid=uid, priority_class="koord-prod", request=(8.0, 16 * GIB), created_s=START_S - DAY_S
    )
    return msgspec.structs.replace(pod, **changes)


def predict(predictor: PeakPredictor, *pods: PodDemand, minutes: int = 1500) -> Prediction:
    return predictor.predict(pods, NODE, START_S + 60 * minutes)


_TRAINED = trained()


def near(cpu: float, memory: float) -> object:
    """Match amounts up to the width of a bucket."""
    return pytest.approx((cpu, memory), rel=0.06)


def amounts(usage: ResourceUsage) -> Amounts:
    assert usage.cpu_cores is not None
    assert usage.memory_bytes is not None
    return usage.cpu_cores, usage.memory_bytes


def test_a_pod_s_unused_request_is_reclaimable_less_its_peak_and_a_margin_of_a_tenth() -> None:
    prediction = predict(trained(), demand())
    assert amounts(prediction.pods.peak) == near(2.2, 4.4 * GIB)
    assert amounts(prediction.pods.reclaimable) == near(8 - 2.2, (16 - 4.4) * GIB)


def test_the_classes_peak_holds_production_pods_without_a_class_and_the_system() -> None:
    prediction = predict(trained(), demand())
    # a pod without a class is absent, and its class's peak is the end of the first bucket
    assert amounts(prediction.classes.peak) == near(3.3 + 0.0275, 5.5 * GIB)
    assert amounts(prediction.classes.reclaimable) == near(8 - 3.33, (16 - 5.5) * GIB)


def test_a_pod_younger_than_the_cold_start_offers_nothing_of_its_request() -> None:
    young = demand(created_s=START_S + 60 * 1500 - DAY_S)
    prediction = predict(trained(), young)
    assert amounts(prediction.pods.reclaimable) == (0, 0)
    assert amounts(prediction.pods.peak) == (8.0, 16 * GIB)
    assert (prediction.predicted_pods, prediction.cold_pods) == (0, 1)


def test_an_old_pod_offers_nothing_while_its_model_is_younger_than_the_cold_start() -> None:
    prediction = predict(trained(minutes=30), demand(created_s=0.0), minutes=30)
    assert amounts(prediction.pods.reclaimable) == (0, 0)
    assert prediction.cold_pods == 1


def test_a_pod_whose_age_nobody_knows_is_cold() -> None:
    assert predict(trained(), demand(created_s=None)).cold_pods == 1


def test_a_pod_without_usage_keeps_its_whole_request() -> None:
    prediction = predict(trained(), demand(), demand("b", request=(3.0, GIB)))
    assert amounts(prediction.pods.peak) == near(2.2 + 3.0, 5.4 * GIB)
    assert (prediction.predicted_pods, prediction.cold_pods) == (1, 1)


def test_pods_that_end_and_those_of_other_classes_do_not_count() -> None:
    prediction = predict(
        trained(), demand(is_ended=True), demand(priority_class="koord-batch"), demand("c")
    )
    assert (prediction.predicted_pods, prediction.cold_pods) == (0, 1)


def test_a_pod_that_uses_more_than_it_requests_offers_nothing_and_takes_from_no_other() -> None:
    prediction = predict(trained(), demand(request=(1.0, GIB)))
    assert amounts(prediction.pods.reclaimable) == (0, 0)


def test_what_is_reclaimable_is_capped_by_what_the_node_has_beyond_the_peak() -> None:
    prediction = trained().predict([demand()], (4.0, 8 * GIB), START_S + 60 * 1500)
    assert amounts(prediction.pods.reclaimable) == near(4 - 2.2, (8 - 4.4) * GIB)
    assert amounts(prediction.classes.reclaimable) == near(4 - 3.33, (8 - 5.5) * GIB)


def test_without_the_node_s_allocatable_nothing_is_predicted_and_the_reason_is_there() -> None:
    prediction = trained().predict([demand()], None, START_S + 60 * 1500)
    assert "allocatable" in prediction.error
    assert prediction.pods.reclaimable == ResourceUsage()


def test_before_the_first_minute_nothing_is_predicted() -> None:
    assert "minute" in predict(PeakPredictor(PredictionPolicy()), demand()).error


def test_a_node_whose_usage_is_not_known_is_no_idle_system() -> None:
    predictor = PeakPredictor(PredictionPolicy())
    predictor.train(None, {"a": (1.0, GIB)}, {"a": "koord-prod"}, START_S)
    assert predict(predictor, demand()).error


def test_a_model_without_samples_expires() -> None:
    predictor = trained()
    end_s = START_S + 60 * 1500
    predictor.train((1.0, GIB), {}, {}, end_s + EXPIRY_S + 60)
    assert "a" not in predictor.checkpoint().models


def test_models_of_ended_pods_make_room_for_those_of_new_pods_oldest_first() -> None:
    predictor, old = PeakPredictor(PredictionPolicy()), {"old": (1.0, GIB)}
    for minute in range(20):
        jobs = {f"job-{minute}-{i}": (0.1, GIB) for i in range(MAX_MODELS // 12)}
        # the kubelet lists pods in any order
        pods = {**jobs, **old} if minute % 2 else {**old, **jobs}
        predictor.train((64.0, 9 * GIB), pods, {}, START_S + 60 * minute)
        models = predictor.checkpoint().models
        assert pods.keys() <= models.keys()
        assert {"__node__", "__node-sys__", "__node-koord-prod__"} <= models.keys()
        assert models["old"].since == START_S
        assert len(models) <= MAX_MODELS
    assert "job-10-0" in models
    assert "job-5-0" not in models


def test_pods_beyond_the_limit_have_no_model_and_take_none() -> None:
    predictor = PeakPredictor(PredictionPolicy())
    for minute in range(2):
        pods = {f"pod-{i}": (0.1, GIB) for i in range(MAX_MODELS + 9)}
        predictor.train((64.0, 9 * GIB), pods, {}, START_S + 60 * minute)
        models = predictor.checkpoint().models
        assert len(models) == MAX_MODELS
        assert {"__node__", "__node-sys__", "__node-koord-prod__", "pod-0"} <= models.keys()
        assert models["pod-0"].since == START_S


def test_the_system_is_what_pods_leave_of_the_node_and_never_less_than_nothing() -> None:
    predictor = PeakPredictor(PredictionPolicy())
    predictor.train((1.0, GIB), {"a": (2.0, 2 * GIB)}, {"a": "koord-prod"}, START_S)
    weights = predictor.checkpoint().models["__node-sys__"].cpu.bucket_weights
    assert list(weights) == [0]


def test_a_restored_predictor_predicts_the_same() -> None:
    predictor, restored = trained(), PeakPredictor(PredictionPolicy())
    data = msgspec.json.encode(predictor.checkpoint())
    now_s = START_S + 60 * 1500
    checkpoint = msgspec.json.decode(data, type=PredictionCheckpoint)
    assert restored.restore(checkpoint, now_s) == ()
    first, second = predict(predictor, demand()), predict(restored, demand())
    assert amounts(second.pods.peak) == pytest.approx(amounts(first.pods.peak))
    assert second.cold_pods == 0


def test_models_whose_samples_are_older_than_the_cold_start_are_not_restored() -> None:
    restored = PeakPredictor(PredictionPolicy())
    restored.restore(trained().checkpoint(), START_S + 60 * 1500 + DAY_S)
    assert restored.checkpoint().models == {}


def test_a_damaged_model_is_named_and_the_others_are_restored() -> None:
    checkpoint = trained().checkpoint()
    model = checkpoint.models["a"]
    damaged = msgspec.structs.replace(
        model, cpu=msgspec.structs.replace(model.cpu, bucket_weights={999: 1})
    )
    broken = msgspec.structs.replace(checkpoint, models={**checkpoint.models, "a": damaged})
    restored = PeakPredictor(PredictionPolicy())
    assert restored.restore(broken, START_S + 60 * 1500) == ("a",)
    assert "__node__" in restored.checkpoint().models


def test_a_model_whose_weights_the_next_sample_would_clear_is_damaged() -> None:
    checkpoint, now_s = trained().checkpoint(), START_S + 60 * 1500
    model = checkpoint.models["a"]
    future = msgspec.structs.replace(model.cpu, reference_timestamp=now_s + 1.5 * 43_200)
    ahead = msgspec.structs.replace(model, cpu=future)
    restored = PeakPredictor(PredictionPolicy())
    broken = msgspec.structs.replace(checkpoint, models={**checkpoint.models, "a": ahead})
    assert restored.restore(broken, now_s) == ("a",)
    restored.train((1.1, 2 * GIB), {"a": (0.1, GIB)}, {"a": "koord-prod"}, now_s)
    assert amounts(predict(restored, demand()).pods.peak) == (8.0, 16 * GIB)


FIGURES = st.one_of(
    st.floats(), st.sampled_from([0.0, -1.0, 1e-9, 1e308, START_S, START_S + 1e9, float("nan")])
)
WEIGHTS = st.dictionaries(st.integers(-5, 300), st.integers(-5, 20_000), max_size=4)
HISTOGRAMS = st.builds(
    HistogramCheckpoint,
    reference_timestamp=FIGURES,
    bucket_weights=WEIGHTS,
    total_weight=FIGURES,
)


@st.composite
def spoiled(draw: st.DrawFn, model: ModelCheckpoint) -> ModelCheckpoint:
    """Return a model of which some parts are replaced by others."""
    changes: dict[str, object] = {}
    for name in draw(st.sets(st.sampled_from(("since", "last_updated", "cpu", "memory")))):
        changes[name] = draw(HISTOGRAMS if name in ("cpu", "memory") else FIGURES)
    return msgspec.structs.replace(model, **changes)


@given(data=st.data())
def test_a_damaged_model_never_predicts_that_nothing_is_used(data: st.DataObject) -> None:
    checkpoint = _TRAINED.checkpoint()
    models = {
        entity: data.draw(spoiled(model)) if data.draw(st.booleans()) else model
        for entity, model in checkpoint.models.items()
    }
    restored = PeakPredictor(PredictionPolicy())
    now_s = START_S + 60 * 1500
    restored.restore(msgspec.structs.replace(checkpoint, models=models), now_s)
    for entity, model in restored.checkpoint().models.items():
        cpu, memory = restored._models[entity].peak
        assert 0 < cpu < 2000
        assert 0 < memory < 2.0**42
        assert all(map(math.isfinite, (cpu, memory, model.since)))
    prediction = restored.predict((demand(),), NODE, now_s)
    if "a" not in restored.checkpoint().models:
        assert prediction.error or prediction.cold_pods == 1


@given(data=st.data())
def test_a_restored_model_still_learns(data: st.DataObject) -> None:
    model = data.draw(spoiled(_TRAINED.checkpoint().models["a"]))
    restored = PeakPredictor(PredictionPolicy())
    now_s = START_S + 60 * 1500
    restored.restore(PredictionCheckpoint(CHECKPOINT_VERSION, {"a": model}), now_s)
    restored.train((9.0, GIB), {"a": (8.0, GIB)}, {"a": "koord-prod"}, now_s)
    assert all(map(math.isfinite, restored._models["a"].peak))
    assert restored._models["a"].peak[0] > 0
