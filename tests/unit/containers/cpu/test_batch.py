"""Weight, quota and memory of best-effort pods, by Koordinator's numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.containers.batch import BatchHook
from agent.containers.cpu_quota import NodeRatio, quota_of, scale_quota, shares_of
from agent.snapshot.cluster import KubeletView
from agent.snapshot.container import (
    NO_ADJUSTMENT,
    HookStage,
    LinuxResources,
    RuntimeContainer,
    RuntimeView,
)
from agent.snapshot.host_devices import KernelFeatures
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerResources, ContainerView
from agent.snapshot.slo import NodeSloView
from agent.wire_formats.annotations import AnnotationError
from agent.wire_formats.extended_resource_spec import EXTENDED_SPEC, parse_extended_resource_spec
from tests.clustered import KUBELET
from tests.clustered import pod as pod_view
from tests.unit.containers.scene import UID, ask, pod, scene, to_json

GIB = 1 << 30
QUOTA_POLICY = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}


def one(request: object, limit: object = None, memory: object = None) -> dict[str, object]:
    limits = {"kubernetes.io/batch-cpu": limit, "kubernetes.io/batch-memory": memory}
    return {
        "requests": {"kubernetes.io/batch-cpu": request},
        "limits": {key: value for key, value in limits.items() if value is not None},
    }


def spec(**containers: object) -> dict[str, str]:
    return {EXTENDED_SPEC: to_json({"containers": containers})}


TWO = spec(a=one("500", "1000", "1Gi"), b=one("1000", "2000", "2Gi"))
NO_LIMIT = spec(a=one("500", "1000", "1Gi"), b=one("1000", None, "2Gi"))
TINY = spec(a=one("1", "5", "1Gi"))


@pytest.mark.parametrize(
    ("milli", "shares"),
    [(0, 2), (1, 2), (100, 102), (1000, 1024), (1500, 1536), (255999, 262142), (300000, 262144)],
)
def test_weight_of_thousandths(milli: int, shares: int) -> None:  # V12, C2
    assert shares_of(milli) == shares


@pytest.mark.parametrize(
    ("milli", "quota"), [(-1, -1), (0, -1), (5, 1000), (100, 10000), (500, 50000), (2000, 200000)]
)
def test_quota_of_thousandths(milli: int, quota: int) -> None:  # V13, C1
    assert quota_of(milli) == quota


def values(shares: int, quota_us: int, memory_bytes: int) -> LinuxResources:
    return LinuxResources(
        shares=shares, quota_us=quota_us, period_us=100000, memory_bytes=memory_bytes
    )


@pytest.mark.parametrize(
    ("annotations", "slo", "ratio", "container", "expected"),
    [
        pytest.param(TWO, None, None, None, values(1536, 300000, 3 * GIB), id="V47"),
        pytest.param(TWO, None, "1.20", None, values(1536, 250000, 3 * GIB), id="V48"),
        pytest.param(NO_LIMIT, None, None, None, values(1536, -1, 3 * GIB), id="V49"),
        pytest.param(TWO, QUOTA_POLICY, None, None, values(1536, -1, 3 * GIB), id="V50"),
        pytest.param(TINY, None, "1.50", "a", values(2, 1000, GIB), id="V51"),
        pytest.param(TWO, QUOTA_POLICY, None, "a", values(512, -1, GIB), id="V50 of a container"),
        pytest.param(NO_LIMIT, None, None, "b", values(1024, -1, 2 * GIB), id="no limit"),
        pytest.param(spec(a={}), None, None, "a", values(2, -1, -1), id="named, and no more"),
    ],
)
def test_values(
    annotations: dict[str, str],
    slo: object,
    ratio: str | None,
    container: str | None,
    expected: LinuxResources,
) -> None:
    hook = BatchHook(NodeRatio())
    request = ask(HookStage.RECONCILE, pod("BE", "BE", annotations), container)
    assert hook.adjust(request, scene(slo, ratio=ratio)).resources == expected


def listed(**containers: tuple[int | None, int | None, int | None]) -> NodeSnapshot:
    """Return a node whose list has the pod, with batch resources in its spec alone."""
    resources = tuple(
        ContainerResources(
            name=name,
            batch_cpu_milli=milli,
            batch_cpu_limit_milli=limit,
            batch_memory_limit_bytes=memory,
        )
        for name, (milli, limit, memory) in containers.items()
    )
    view = replace(pod_view("p", qos="BE"), uid=UID, resources=resources)
    return replace(scene(), pods=SnapshotPart((view,), 1.0))


@pytest.mark.parametrize("stage", [HookStage.RUN_POD, HookStage.CREATE, HookStage.RECONCILE])
def test_without_the_annotation_the_amounts_of_the_pod_s_spec_are_set(stage: HookStage) -> None:
    now = listed(a=(500, 1000, GIB), b=(1000, 2000, 2 * GIB), plain=(None, None, None))
    hook, sandbox = BatchHook(NodeRatio()), pod("BE", "BE")
    expected = {
        None: values(1536, 300000, 3 * GIB),
        "a": values(512, 100000, GIB),
        "plain": LinuxResources(),
    }
    for container in (None,) if stage is HookStage.RUN_POD else expected:
        answer = hook.adjust(ask(stage, sandbox, container), now)
        assert answer.resources == expected[container]
    others = (pod("LS", "BE"), replace(sandbox, uid="another"))
    assert all(hook.adjust(ask(stage, one, None), now) == NO_ADJUSTMENT for one in others)


def test_a_limit_that_a_pod_s_spec_does_not_set_is_none() -> None:
    now = listed(a=(500, None, None))
    answer = BatchHook(NodeRatio()).adjust(ask(HookStage.CREATE, pod("BE", "BE")), now)
    assert answer.resources == values(512, -1, -1)


def test_the_annotation_comes_before_the_pod_s_spec() -> None:
    now = listed(a=(1, 2, 3), b=(1, 2, 3))
    answer = BatchHook(NodeRatio()).adjust(ask(HookStage.CREATE, pod("BE", "BE", TWO)), now)
    assert answer.resources == values(512, 100000, GIB)


CPUSET_POLICY = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cpuset"}}
STATIC = replace(KUBELET, cpu_manager_policy="static")


@pytest.mark.parametrize(
    ("version", "slo", "kubelet", "pressure", "quota_us"),
    [
        (1, CPUSET_POLICY, KUBELET, False, 300000),
        (1, CPUSET_POLICY, KUBELET, True, -1),
        (1, CPUSET_POLICY, STATIC, False, -1),
        (1, None, STATIC, True, 300000),
        (2, CPUSET_POLICY, STATIC, True, 300000),
        (2, QUOTA_POLICY, KUBELET, False, -1),
    ],
)
def test_version_1_leaves_no_quota_of_a_pod_above_one_that_its_class_may_get(
    version: int, slo: object, kubelet: KubeletView, pressure: bool, quota_us: int
) -> None:
    hook = BatchHook(NodeRatio(), reacts_to_pressure=pressure)
    now = scene(slo, KernelFeatures(cgroup_version=version), kubelet=kubelet)
    adjusted = hook.adjust(ask(HookStage.RUN_POD, pod("BE", "BE", TWO), None), now)
    assert adjusted.resources.quota_us == quota_us


@pytest.mark.parametrize(
    ("qos", "annotations", "container"),
    [
        pytest.param("BE", {EXTENDED_SPEC: '{"containers":{}}'}, None, id="V52"),
        pytest.param("LS", TWO, None, id="V53"),
        pytest.param("", TWO, "a", id="no label"),
        pytest.param("BE", TWO, "other", id="not in the spec"),
        pytest.param("BE", TWO, "", id="the sandbox"),
        pytest.param("BE", {}, None, id="no spec"),
        pytest.param("LS", {EXTENDED_SPEC: "{"}, None, id="not read where it does not count"),
    ],
)
@pytest.mark.parametrize(
    "stage", [HookStage.RUN_POD, HookStage.CREATE, HookStage.UPDATE, HookStage.RECONCILE]
)
def test_nothing_is_changed(
    stage: HookStage, qos: str, annotations: dict[str, str], container: str | None
) -> None:
    request = ask(stage, pod(qos, "BE", annotations), container)
    assert BatchHook(NodeRatio()).adjust(request, scene()) == NO_ADJUSTMENT


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        pytest.param("/kubepods/x", LinuxResources(quota_us=-1, memory_bytes=-1), id="it runs"),
        pytest.param("", LinuxResources(quota_us=300000, memory_bytes=3 * GIB), id="it has ended"),
    ],
)
def test_a_sidecar_without_batch_limits_leaves_its_pod_unlimited_while_it_runs(
    cgroup: str, expected: LinuxResources
) -> None:
    request = ask(HookStage.RECONCILE, pod("BE", "BE", TWO), None)
    container_view = ContainerView(id="1", name="a", cgroup="/kubepods/a")
    sandbox = ContainerView(id="3", cgroup="/kubepods/s")
    sidecar = ContainerView(id="2", name="sidecar", cgroup=cgroup)
    view = replace(
        pod_view("p"), uid=request.pod.uid, containers=(container_view, sidecar, sandbox)
    )
    now = replace(scene(), pods=SnapshotPart((view,), 1.0))
    resources = BatchHook(NodeRatio()).adjust(request, now).resources
    assert (resources.quota_us, resources.memory_bytes) == (
        expected.quota_us,
        expected.memory_bytes,
    )
    assert resources.shares == 1536


def test_a_sidecar_that_the_runtime_alone_knows_counts_too() -> None:
    request = ask(HookStage.RECONCILE, pod("BE", "BE", TWO), None)
    nameless = (ContainerView(id=one, cgroup=f"/kubepods/{one}") for one in "123")
    view = replace(pod_view("p"), uid=request.pod.uid, name="", containers=tuple(nameless))
    reports = {"2": RuntimeContainer(id="2", sandbox_id="3", name="sidecar")}
    now = replace(scene(), pods=SnapshotPart((view,), 1.0))
    hook = BatchHook(NodeRatio())
    assert hook.adjust(request, now).resources.memory_bytes == 3 * GIB
    now = replace(now, runtime=SnapshotPart(RuntimeView(containers=reports), 1.0))
    assert hook.adjust(request, now).resources.memory_bytes == -1


@pytest.mark.parametrize(
    ("stage", "quota_us"),
    [(HookStage.RECONCILE, None), (HookStage.RUN_POD, 300000), (HookStage.CREATE, 300000)],
)
def test_after_a_start_without_the_cluster_quotas_in_force_stay(
    stage: HookStage, quota_us: int | None
) -> None:
    entries = scene()
    untold = replace(entries, cluster=replace(entries.cluster, slo=SnapshotPart(NodeSloView())))
    result = BatchHook(NodeRatio()).adjust(ask(stage, pod("BE", "BE", TWO), None), untold)
    assert result.resources.quota_us == quota_us
    assert result.resources.memory_bytes == 3 * GIB


def test_sums_beyond_what_memory_can_be_are_no_limit() -> None:
    most = str(2**63 - 1)
    both = spec(a=one("1", "1000", most), b=one("1", "1000", most))
    request = ask(HookStage.RUN_POD, pod("BE", "BE", both), None)
    assert BatchHook(NodeRatio()).adjust(request, scene()).resources.memory_bytes == -1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"containers":[]}',
        '{"containers":{"a":[]}}',
        '{"containers":{"a":{"limits":"1"}}}',
        '{"containers":{"a":{"limits":{"kubernetes.io/batch-cpu":"x"}}}}',
        '{"containers":{"a":{"limits":{"kubernetes.io/batch-cpu":true}}}}',
        '{"containers":{"a":{"limits":{"kubernetes.io/batch-cpu":[]}}}}',
        '{"containers":{"a":{"limits":{"kubernetes.io/batch-cpu":NaN}}}}',
        '{"containers":{"a":{"limits":{"kubernetes.io/batch-cpu":"1e30"}}}}',
        '{"containers":{"a":{"limits":{"kubernetes.io/batch-memory":9223372036854775808}}}}',
        '{"containers":{"a":{"requests":{"kubernetes.io/batch-cpu":"' + "9" * 64 + '"}}}}',
        to_json({"containers": {str(n): {} for n in range(257)}}),
        " " * 70000,
    ],
)
def test_a_hostile_spec_is_refused_whole(text: str) -> None:
    with pytest.raises(AnnotationError, match="extended-resource-spec"):
        parse_extended_resource_spec(text)


def test_of_two_equal_keys_the_last_counts_and_what_is_below_nothing_is_nothing() -> None:
    extended_resource_spec = parse_extended_resource_spec(
        '{"containers":{"a":{"requests":{"kubernetes.io/batch-cpu":"1",'
        '"kubernetes.io/batch-cpu":"1500m"},"limits":{"kubernetes.io/batch-cpu":-5}}}}'
    )
    assert (extended_resource_spec["a"].request_milli, extended_resource_spec["a"].limit_milli) == (
        2,
        0,
    )


@given(st.integers(-(10**6), 10**12), st.floats(0.01, 1000.0))
def test_a_scaled_quota_is_one_that_kernels_take(quota_us: int, ratio: float) -> None:
    result = scale_quota(quota_us, ratio)
    assert result == quota_us if quota_us <= 0 or ratio <= 1 else result >= 1000
    assert result <= max(quota_us, 1000)


@pytest.mark.parametrize(
    ("version", "asked", "sent"),
    [
        pytest.param(2, None, None, id="an update of CPUs"),
        pytest.param(2, 0, None, id="an update with an empty limit"),
        pytest.param(2, -1, None, id="an update to no limit"),
        pytest.param(2, 2 * GIB, None, id="an update to a higher limit"),
        pytest.param(2, GIB // 2, GIB, id="an update to a lower limit"),
        pytest.param(None, None, None, id="the version is not read yet"),
        pytest.param(1, None, GIB, id="version 1, which refuses a limit below the use"),
    ],
)
def test_a_running_container_is_limited_by_the_loop_that_reclaims_not_by_the_runtime(
    version: int | None, asked: int | None, sent: int | None
) -> None:
    request = ask(HookStage.UPDATE, pod("BE", "BE", TWO), "a", LinuxResources(memory_bytes=asked))
    now = scene(kernel=KernelFeatures(cgroup_version=version))
    adjusted = BatchHook(NodeRatio()).adjust(request, now).resources
    assert (adjusted.memory_bytes, adjusted.shares) == (sent, 512)


@pytest.mark.parametrize("stage", [HookStage.CREATE, HookStage.RECONCILE])
def test_where_nothing_runs_yet_or_memory_is_reclaimed_first_the_limit_is_set(
    stage: HookStage,
) -> None:
    now = scene(kernel=KernelFeatures(cgroup_version=2))
    adjusted = BatchHook(NodeRatio()).adjust(ask(stage, pod("BE", "BE", TWO), "a"), now)
    assert adjusted.resources.memory_bytes == GIB


def test_no_limit_is_sent_to_a_running_container_as_well() -> None:
    now = scene(kernel=KernelFeatures(cgroup_version=2))
    request = ask(
        HookStage.UPDATE, pod("BE", "BE", spec(a=one("500"))), "a", LinuxResources(memory_bytes=5)
    )
    assert BatchHook(NodeRatio()).adjust(request, now).resources.memory_bytes == -1
