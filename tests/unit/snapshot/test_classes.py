from __future__ import annotations

import pytest

from agent.snapshot.pod import KubeQos, PodView
from agent.wire_formats.annotations import PRIORITY_LABEL, QOS_LABEL, priority_class, qos_class


def pod(
    kube: KubeQos = KubeQos.BURSTABLE,
    qos: str | None = None,
    label: str | None = None,
    priority: int | None = None,
) -> PodView:
    result = ((QOS_LABEL, qos), (PRIORITY_LABEL, label))
    labels = tuple((key, value) for key, value in result if value is not None)
    return PodView(uid="u", qos=kube, labels=labels, priority=priority)


@pytest.mark.parametrize("qos", ["LSE", "LSR", "LS", "BE", "SYSTEM"])
def test_a_valid_label_is_the_class(qos: str) -> None:
    assert qos_class(pod(KubeQos.GUARANTEED, qos)) == qos


@pytest.mark.parametrize("qos", [None, "", "ls", "Guaranteed", "LSX"])
@pytest.mark.parametrize(
    ("kube", "expected"),
    [(KubeQos.GUARANTEED, "LSR"), (KubeQos.BURSTABLE, "LS"), (KubeQos.BEST_EFFORT, "BE")],
)
def test_without_a_valid_label_kubernetes_class_decides(
    kube: KubeQos, expected: str, qos: str | None
) -> None:
    assert qos_class(pod(kube, qos)) == expected


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        (9000, "koord-prod"),
        (9999, "koord-prod"),
        (7000, "koord-mid"),
        (7999, "koord-mid"),
        (5000, "koord-batch"),
        (5999, "koord-batch"),
        (3000, "koord-free"),
        (3999, "koord-free"),
        (8000, "koord-prod"),
        (10000, "koord-prod"),
        (0, "koord-prod"),
        (-1, "koord-prod"),
        (None, "koord-prod"),
    ],
)
def test_the_priority_of_the_spec_is_in_a_band_or_the_qos_decides(
    priority: int | None, expected: str
) -> None:
    assert priority_class(pod(priority=priority)) == expected


def test_a_best_effort_pod_outside_the_bands_is_batch() -> None:
    assert priority_class(pod(KubeQos.BEST_EFFORT, priority=100)) == "koord-batch"
    assert priority_class(pod(KubeQos.GUARANTEED, qos="BE")) == "koord-batch"


def test_a_label_wins_over_the_spec() -> None:
    assert priority_class(pod(label="koord-free", priority=9500)) == "koord-free"


def test_a_label_that_is_none_skips_the_spec() -> None:
    assert priority_class(pod(label="gold", priority=3500)) == "koord-prod"
    assert priority_class(pod(KubeQos.BEST_EFFORT, label="", priority=9500)) == "koord-batch"
