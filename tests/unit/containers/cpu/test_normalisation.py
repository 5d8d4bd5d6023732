"""Quotas by the node's ratio, and which ratio is in force."""

from __future__ import annotations

import pytest

from agent.containers.cpu_quota import NodeRatio, NormalizationHook, next_ratio
from agent.snapshot.container import NO_ADJUSTMENT, HookStage, LinuxResources
from agent.snapshot.host_devices import KernelFeatures
from agent.wire_formats.resource_status import RESOURCE_STATUS
from tests.unit.containers.scene import ask, pod, scene


@pytest.mark.parametrize(
    ("quota_us", "ratio", "expected"),
    [
        pytest.param(200000, "1.20", 166667, id="V54 scaled"),
        pytest.param(120000, "1.20", 100000, id="V54 even"),
        pytest.param(-1, "1.20", None, id="V54 unlimited"),
        pytest.param(200000, "1.00", 200000, id="V54 of one"),
        pytest.param(1200, "1.50", 1000, id="never below what the kernel takes"),
        pytest.param(200000, None, None, id="no ratio"),
        pytest.param(None, "1.20", None, id="nothing asked for"),
        pytest.param(0, "1.20", None, id="not requested"),
    ],
)
@pytest.mark.parametrize("stage", [HookStage.CREATE, HookStage.UPDATE, HookStage.RECONCILE])
@pytest.mark.parametrize("qos", ["LS", ""])
def test_the_requested_quota_is_scaled(
    qos: str, stage: HookStage, quota_us: int | None, ratio: str | None, expected: int | None
) -> None:
    request = ask(stage, pod(qos), resources=LinuxResources(quota_us=quota_us))
    result = NormalizationHook(NodeRatio()).adjust(request, scene(ratio=ratio))
    assert result.resources.quota_us == expected


def test_an_update_is_scaled_once_however_often_it_comes() -> None:
    hook, now = NormalizationHook(NodeRatio()), scene(ratio="1.20")
    request = ask(
        HookStage.UPDATE, pod("LS"), resources=LinuxResources(quota_us=200000, period_us=50000)
    )
    for _ in range(3):
        assert hook.adjust(request, now).resources == LinuxResources(
            quota_us=166667, period_us=50000
        )


@pytest.mark.parametrize(
    ("qos", "annotations"),
    [("LSR", {}), ("BE", {}), ("SYSTEM", {}), ("", {RESOURCE_STATUS: '{"cpuset":"1"}'})],
)
def test_pods_of_other_classes_and_pinned_ones_are_left_alone(
    qos: str, annotations: dict[str, str]
) -> None:
    limited = LinuxResources(quota_us=200000)
    request = ask(HookStage.CREATE, pod(qos, annotations=annotations), resources=limited)
    assert NormalizationHook(NodeRatio()).adjust(request, scene(ratio="1.20")) == NO_ADJUSTMENT


@pytest.mark.parametrize(("version", "scaled"), [(1, None), (2, 166667), (None, None)])
def test_a_pods_own_quota_stays_on_version_1(version: int | None, scaled: int | None) -> None:
    request = ask(HookStage.RECONCILE, pod("LS"), None, LinuxResources(quota_us=200000))
    now = scene(ratio="1.20", kernel=KernelFeatures(cgroup_version=version))
    assert NormalizationHook(NodeRatio()).adjust(request, now).resources.quota_us == scaled


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        pytest.param("1.205", 1.20, 1.20, id="V55 too little to matter"),
        pytest.param("0", 1.20, 1.20, id="V55 nothing"),
        pytest.param("x", 1.20, 1.20, id="V55 no number"),
        pytest.param("-1", 1.20, 1.20, id="negative"),
        pytest.param("nan", 1.20, 1.20, id="NaN"),
        pytest.param("inf", 1.20, 1.20, id="endless"),
        pytest.param("1e3", 1.20, 1.20, id="an exponent"),
        pytest.param("9999", 1.20, 1.20, id="beyond belief"),
        pytest.param("1." + "1" * 9999, 1.20, 1.20, id="long"),
        pytest.param("x", None, None, id="no number at the start"),
        pytest.param("2.01", 2.00, 2.01, id="a hundredth"),
        pytest.param("1.10", None, 1.10, id="first"),
        pytest.param(None, 1.20, None, id="taken away"),
    ],
)
def test_the_ratio_in_force(text: str | None, before: float | None, after: float | None) -> None:
    assert next_ratio(text, before) == after


def test_a_worthless_ratio_leaves_the_old_one_in_force() -> None:
    ratio = NodeRatio()
    assert [ratio.get(scene(ratio=text)) for text in ("1.20", "x", "1.205", "1.30")] == [
        1.20,
        1.20,
        1.20,
        1.30,
    ]
