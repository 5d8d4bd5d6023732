"""Which CPUs a pod's containers get: Koordinator's table, and what of it was mended."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.allocation.cpus import CpuPool
from agent.containers.cpuset import (
    EMPTY_SET,
    CpusetHook,
    SharedCpuRule,
    select_cpus,
)
from agent.snapshot.cluster import KubeletView
from agent.snapshot.container import NO_ADJUSTMENT, HookStage, LinuxResources
from agent.snapshot.host_devices import KernelFeatures
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import KubeQos
from agent.wire_formats.annotations import AnnotationError
from agent.wire_formats.kernel_text import format_cpu_list, parse_cpu_list
from agent.wire_formats.resource_status import RESOURCE_STATUS, parse_resource_status
from tests.clustered import pod as pinned_view
from tests.unit.containers.scene import ask, pod, scene, to_json

G, BU, BE = KubeQos.GUARANTEED, KubeQos.BURSTABLE, KubeQos.BEST_EFFORT
LS_POOLS = (CpuPool(0, 0, parse_cpu_list("0-3")), CpuPool(0, 1, parse_cpu_list("4-7")))
BE_POOLS = (CpuPool(0, 0, parse_cpu_list("2-3")), CpuPool(0, 1, parse_cpu_list("6-7")))
SYSTEM = parse_cpu_list("0")
CPU_ON_1 = '{"numaNodeResources":[{"node":1,"resources":{"cpu":"2"}}]}'
BATCH_ON_1 = '{"numaNodeResources":[{"node":1,"resources":{"kubernetes.io/batch-cpu":"1000"}}]}'
MEMORY_ON_1 = '{"numaNodeResources":[{"node":1,"resources":{"memory":"1Gi"}}]}'
CPU_ON_7 = '{"numaNodeResources":[{"node":7,"resources":{"cpu":"2"}}]}'


def rule(*, be: bool = False, system: bool = True, static: bool | None = False) -> SharedCpuRule:
    return SharedCpuRule(
        ls=LS_POOLS,
        be=BE_POOLS if be else None,
        system=SYSTEM if system else frozenset(),
        static=static,
    )


@pytest.mark.parametrize(
    ("qos", "kube", "status", "of_node", "expected"),
    [
        pytest.param("LSR", G, '{"cpuset":"4,5-6"}', rule(), "4-6", id="V63"),
        pytest.param("LS", BU, None, rule(), "0-7", id="V64"),
        pytest.param("LS", BU, CPU_ON_1, rule(), "4-7", id="V65"),
        pytest.param("BE", BE, BATCH_ON_1, rule(be=True), "6-7", id="V66 managed"),
        pytest.param("BE", BE, BATCH_ON_1, rule(), "", id="V66 not managed: cleared"),
        pytest.param("", BU, MEMORY_ON_1, rule(), "0-7", id="V67"),
        pytest.param("SYSTEM", BU, None, rule(), "0", id="V68 with a set"),
        pytest.param("SYSTEM", BU, None, rule(system=False, static=True), None, id="V68 without"),
        pytest.param("", G, None, rule(static=True), None, id="V69 static"),
        pytest.param("", G, None, rule(), "0-7", id="V69 none"),
        pytest.param("LS", BU, None, None, None, id="V70 no rule"),
        pytest.param("LS", BU, None, rule(static=True), "0-7", id="LS with a static kubelet"),
        pytest.param("LS", BE, None, rule(), "0-7", id="the label comes before the place"),
        pytest.param("LS", BU, CPU_ON_7, rule(), None, id="no pool on that node"),
        pytest.param("", BE, None, rule(), "", id="best effort without a label"),
        pytest.param("LSR", G, None, rule(), "0-7", id="LSR without CPUs"),
        pytest.param("BE", BU, None, rule(), "0-7", id="BE outside of its directory"),
        pytest.param("", G, None, rule(static=None), None, id="the kubelet has not told"),
        pytest.param("", None, None, rule(), None, id="nobody told where it is"),
    ],
)
def test_the_first_row_that_holds_decides(
    qos: str,
    kube: KubeQos | None,
    status: str | None,
    of_node: SharedCpuRule | None,
    expected: str | None,
) -> None:
    cpus = select_cpus(parse_resource_status(status), qos, kube, of_node)
    assert (None if cpus is None else format_cpu_list(cpus)) == expected


def test_a_status_that_is_no_json_is_refused_and_sets_nothing() -> None:  # V70
    hook = CpusetHook(reads_kubelet=True)
    request = ask(HookStage.CREATE, pod("LSR", "G", {RESOURCE_STATUS: "{"}))
    with pytest.raises(AnnotationError, match="resource-status"):
        hook.adjust(request, scene())


@pytest.mark.parametrize("stage", [HookStage.CREATE, HookStage.UPDATE, HookStage.RECONCILE])
@pytest.mark.parametrize("qos", ["LSR", "LSE", "LS", ""])
def test_a_pod_with_cpus_of_its_own_has_no_limit_whatever_its_label(
    stage: HookStage, qos: str
) -> None:
    hook = CpusetHook(reads_kubelet=True)
    pinned = pod(qos, "G", {RESOURCE_STATUS: '{"cpuset":"4,5-6"}'})
    limited = LinuxResources(quota_us=300000, period_us=100000)
    of_container = hook.adjust(ask(stage, pinned, resources=limited), scene()).resources
    of_pod = hook.adjust(ask(HookStage.RUN_POD, pinned, None), scene()).resources
    assert of_container == LinuxResources(cpus="4-6", quota_us=-1, period_us=100000)
    assert of_pod == LinuxResources(quota_us=-1, period_us=100000)


def test_the_limit_stays_where_a_setting_says_so() -> None:
    hook = CpusetHook(reads_kubelet=True, unsets_quota=False)
    pinned = pod("LSR", "G", {RESOURCE_STATUS: '{"cpuset":"4"}'})
    assert hook.adjust(ask(HookStage.CREATE, pinned), scene()).resources == LinuxResources(cpus="4")
    assert hook.adjust(ask(HookStage.RUN_POD, pinned, None), scene()) == NO_ADJUSTMENT


def test_the_sandbox_gets_the_cpus_of_its_pod() -> None:
    hook = CpusetHook(reads_kubelet=True)
    assert hook.adjust(ask(HookStage.RECONCILE, pod("LS"), ""), scene()).resources.cpus == "0-7"
    assert hook.adjust(ask(HookStage.RECONCILE, pod("LS"), None), scene()) == NO_ADJUSTMENT


def test_cpus_that_are_offline_are_left_out_and_none_left_changes_nothing() -> None:
    hook = CpusetHook(reads_kubelet=True)
    some = pod("LSR", "G", {RESOURCE_STATUS: '{"cpuset":"6-9"}'})
    none = pod("LSR", "G", {RESOURCE_STATUS: '{"cpuset":"8-9"}'})
    assert hook.adjust(ask(HookStage.CREATE, some), scene()).resources.cpus == "6-7"
    with pytest.raises(AnnotationError, match="online"):
        hook.adjust(ask(HookStage.CREATE, none), scene())


@pytest.mark.parametrize(
    ("version", "squeezed", "requested", "expected"),
    [
        pytest.param(1, "0-1", "0-7", "0-1", id="V71"),
        pytest.param(1, "0-1", "1-3", "1", id="what is left of the request"),
        pytest.param(1, "0-1", "", "0-1", id="nothing requested: the directory's"),
        pytest.param(1, "0-1", "4-7", "0-1", id="nothing left of the request"),
        pytest.param(1, "", "0-7", None, id="an empty directory is none to go by"),
        pytest.param(1, None, "0-7", None, id="not read yet"),
        pytest.param(2, "0-1", "0-7", None, id="v2 intersects by itself"),
        pytest.param(None, "0-1", "0-7", None, id="the version is not known"),
    ],
)
@pytest.mark.parametrize("stage", [HookStage.CREATE, HookStage.UPDATE])
def test_a_best_effort_container_fits_into_its_squeezed_directory(
    stage: HookStage,
    version: int | None,
    squeezed: str | None,
    requested: str,
    expected: str | None,
) -> None:
    cpus = None if squeezed is None else parse_cpu_list(squeezed)
    now = scene(kernel=KernelFeatures(cgroup_version=version, besteffort_cpus=cpus))
    request = ask(stage, pod("BE", "BE"), resources=LinuxResources(cpus=requested))
    hook = CpusetHook(reads_kubelet=True)
    assert hook.adjust(request, now).resources.cpus == expected


def test_a_running_containers_set_is_never_emptied() -> None:
    kernel = KernelFeatures(cgroup_version=1, besteffort_cpus=frozenset({0}))
    hook = CpusetHook(reads_kubelet=True)
    assert select_cpus(parse_resource_status(None), "BE", BE, rule()) == EMPTY_SET
    assert (
        hook.adjust(ask(HookStage.RECONCILE, pod("BE", "BE")), scene(kernel=kernel))
        == NO_ADJUSTMENT
    )


def test_pools_are_those_that_the_agent_publishes() -> None:
    hook = CpusetHook(reads_kubelet=True)
    on_one = pod("LS", "Bu", {RESOURCE_STATUS: CPU_ON_1})
    assert hook.adjust(ask(HookStage.CREATE, on_one), scene()).resources.cpus == "2-3,6-7"


@pytest.mark.parametrize("stage", [HookStage.CREATE, HookStage.UPDATE, HookStage.RECONCILE])
@pytest.mark.parametrize(("qos", "place"), [("", "G"), ("", "Bu"), ("LSR", "G"), ("SYSTEM", "Bu")])
def test_pods_without_a_request_are_left_alone_until_a_pod_has_its_own_cpus(
    stage: HookStage, qos: str, place: str
) -> None:
    hook = CpusetHook(reads_kubelet=True)
    requests, free = ask(stage, pod(qos, place)), scene()
    assert hook.adjust(requests, free) == NO_ADJUSTMENT
    pinned = replace(free, pods=SnapshotPart((pinned_view("pinned", cpus="1", qos="LSR"),), 1.0))
    assert hook.adjust(requests, pinned).resources.cpus == "0,2-7"
    assert hook.adjust(requests, free) == NO_ADJUSTMENT


@pytest.mark.parametrize("stage", [HookStage.CREATE, HookStage.UPDATE])
def test_a_best_effort_directory_that_nobody_squeezed_changes_no_container(
    stage: HookStage,
) -> None:
    kernel = KernelFeatures(cgroup_version=1, besteffort_cpus=frozenset(range(8)))
    hook = CpusetHook(reads_kubelet=True)
    for requested in ("", "0-7", "1"):
        request = ask(stage, pod("BE", "BE"), resources=LinuxResources(cpus=requested))
        assert hook.adjust(request, scene(kernel=kernel)) == NO_ADJUSTMENT


def test_best_effort_pods_are_placed_where_a_setting_says_so() -> None:
    placed = ask(HookStage.CREATE, pod("BE", "BE", {RESOURCE_STATUS: BATCH_ON_1}))
    manages = CpusetHook(reads_kubelet=True, manages_be=True)
    assert manages.adjust(placed, scene()).resources.cpus == "2-3,6-7"
    assert CpusetHook(reads_kubelet=True).adjust(placed, scene()) == NO_ADJUSTMENT


def test_shared_cpus_are_not_set_before_the_kubelet_reported_its_allocations() -> None:
    hook = CpusetHook(reads_kubelet=True)
    assert hook.adjust(ask(HookStage.CREATE, pod("LS")), scene(kubelet=None)) == NO_ADJUSTMENT


def test_a_static_kubelet_keeps_its_own_pods() -> None:
    static = KubeletView(cpu_manager_policy="static", topology_policy="none")
    hook = CpusetHook(reads_kubelet=True)
    assert hook.adjust(ask(HookStage.UPDATE, pod("", "G")), scene(kubelet=static)) == NO_ADJUSTMENT
    shared = hook.adjust(ask(HookStage.UPDATE, pod("LS")), scene(kubelet=static))
    assert shared.resources.cpus == "0-7"


@pytest.mark.parametrize(
    "status",
    [
        "",
        "[]",
        "null",
        "NaN",
        '{"cpuset":1}',
        '{"cpuset":"a"}',
        '{"cpuset":"0-99999999999"}',
        '{"cpuset":"0-8:1/2"}',
        '{"numaNodeResources":{}}',
        '{"numaNodeResources":[1]}',
        '{"numaNodeResources":[{"node":-1}]}',
        '{"numaNodeResources":[{"node":true}]}',
        '{"numaNodeResources":[{"node":1e99}]}',
        '{"numaNodeResources":[{"node":1,"resources":3}]}',
        '{"numaNodeResources":[{"node":1,"resources":{"cpu":"x"}}]}',
        '{"numaNodeResources":[{"node":1,"resources":{"cpu":NaN}}]}',
        to_json({"numaNodeResources": [{"node": 0}] * 1025}),
        '{"cpuset":' + "[" * 3000,
    ],
)
def test_a_hostile_status_is_refused(status: str) -> None:
    with pytest.raises(AnnotationError):
        parse_resource_status(status)


@pytest.mark.parametrize(
    ("status", "aware"),
    [
        ('{"numaNodeResources":null,"cpuset":null}', False),
        ('{"numaNodeResources":[{"resources":{"cpu":2}}]}', True),
        ('{"numaNodeResources":[{"node":0,"resources":{"cpu":"500m"}}]}', True),
        ('{"numaNodeResources":[{"node":0,"resources":null}]}', False),
        ('{"cpuset":"3","cpuset":""}', False),
    ],
)
def test_a_status_may_leave_things_out(status: str, aware: bool) -> None:
    resource_status = parse_resource_status(status)
    assert (resource_status.is_numa_aware, resource_status.cpus) == (aware, frozenset())


def test_host_applications_of_the_class_ls_share_the_cpus_that_no_pod_owns() -> None:  # V72
    cpus = CpusetHook(reads_kubelet=True).application_cpus(scene())
    assert cpus is not None
    assert format_cpu_list(cpus) == "0-7"
    unread = scene(kubelet=None)
    assert CpusetHook(reads_kubelet=True).application_cpus(unread) is None
