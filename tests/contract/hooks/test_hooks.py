"""What every hook promises, whatever users write on their pods."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from agent.config.containers import HookSettings
from agent.containers.devices import DevicesHook
from agent.containers.dispatch import ON, PLAN, DispatchResult, adjust
from agent.containers.hooks import Hook, node_hooks
from agent.snapshot.container import UNLIMITED, Adjustment, HookRequest, HookStage
from agent.snapshot.host_devices import KernelFeatures
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerView
from agent.wire_formats.annotations import AnnotationError
from agent.wire_formats.extended_resource_spec import EXTENDED_SPEC
from agent.wire_formats.resource_status import RESOURCE_STATUS
from agent.workers.load import load_vendors
from tests.clustered import pod as pod_view
from tests.contract.hooks.generated import ALLOCATED, nodes, requests
from tests.unit.containers.scene import ask, pod, scene, to_json


def hooks() -> tuple[Hook, ...]:
    wished = HookSettings(best_effort_cpus=True)
    return (DevicesHook(load_vendors(), wished), *node_hooks(reads_kubelet=True, hooks=wished))


EACH = [pytest.param(number, id=hook.name) for number, hook in enumerate(hooks())]
MAX_MESSAGE = 200  # characters, with nothing of the annotation in them
MAX_CALLS = 1500  # of functions, for one question to all hooks; some tens of microseconds


def dispatch(
    all_of: tuple[Hook, ...], request: HookRequest, snapshot: NodeSnapshot, mode: str = ON
) -> DispatchResult:
    return adjust(all_of, request, snapshot, {h.name: mode for h in all_of}, lambda: 0.0)


@pytest.mark.parametrize("number", EACH)
@given(request=requests, snapshot=nodes)
@settings(max_examples=60)
def test_a_hook_answers_plain_data_or_refuses_what_users_wrote(
    number: int, request: HookRequest, snapshot: NodeSnapshot
) -> None:
    hook = hooks()[number]
    try:
        first = hook.adjust(request, snapshot)
    except AnnotationError:
        return
    assert isinstance(first, Adjustment)
    hash(first)  # frozen, with nothing in it that changes
    assert hook.adjust(request, snapshot) == first
    assert hooks()[number].adjust(request, snapshot) == first


@given(request=requests, snapshot=nodes)
@settings(max_examples=300)
def test_no_two_hooks_set_one_field_and_none_has_a_bug(
    request: HookRequest, snapshot: NodeSnapshot
) -> None:
    result = dispatch(hooks(), request, snapshot)
    assert result.failures == ()
    allocations = any(key == ALLOCATED for key, _ in request.pod.annotations)
    assert (
        allocations or not result.adjustment.failed
    )  # nothing else keeps a container from starting
    assert all(len(note.message) <= MAX_MESSAGE for note in result.adjustment.edits.notes)
    assert dispatch(tuple(reversed(hooks())), request, snapshot).adjustment.resources == (
        result.adjustment.resources
    )


@given(request=requests, snapshot=nodes)
@settings(max_examples=200)
def test_what_is_set_is_what_kernels_take(request: HookRequest, snapshot: NodeSnapshot) -> None:
    adjustment = dispatch(hooks(), request, snapshot).adjustment
    resources = adjustment.resources
    assert resources.shares is None or 2 <= resources.shares <= 262144
    assert (
        resources.memory_bytes is None
        or resources.memory_bytes == UNLIMITED
        or resources.memory_bytes > 0
    )
    assert adjustment.bvt_warp_ns is None or -1 <= adjustment.bvt_warp_ns <= 2
    assert adjustment.oom_score_adj is None or -1000 <= adjustment.oom_score_adj <= 1000
    assert resources.cpus != ""
    if resources.quota_us is not None and resources.quota_us != request.resources.quota_us:
        assert resources.quota_us == UNLIMITED or resources.quota_us >= 1000


@given(request=requests, snapshot=nodes)
@settings(max_examples=60)
def test_a_plan_changes_nothing(request: HookRequest, snapshot: NodeSnapshot) -> None:
    on, planned = dispatch(hooks(), request, snapshot), dispatch(hooks(), request, snapshot, PLAN)
    assert planned.adjustment == Adjustment()
    assert planned.planned == on.answers


def test_each_hook_has_a_unique_name_and_at_least_one_stage() -> None:
    names = [hook.name for hook in hooks()]
    assert len(set(names)) == len(names)
    assert all(hook.stages for hook in hooks())
    assert [hook.name for hook in hooks() if hook.required] == ["devices"]


@pytest.mark.parametrize(
    "stage", [HookStage.RUN_POD, HookStage.CREATE, HookStage.UPDATE, HookStage.RECONCILE]
)
def test_the_work_of_a_question_does_not_grow_with_the_node(stage: HookStage) -> None:
    few, many = work(stage, 3), work(stage, 900)
    assert many <= few + 10
    assert many <= MAX_CALLS


@pytest.mark.parametrize("key", [RESOURCE_STATUS, EXTENDED_SPEC])
def test_the_work_of_a_question_does_not_grow_with_an_annotation_beyond_its_bound(
    key: str,
) -> None:
    request = ask(HookStage.CREATE, pod("BE", "BE", {key: "[" * 2**20}))
    all_of, snapshot = hooks(), scene()
    dispatch(all_of, request, snapshot)
    assert calls(lambda: dispatch(all_of, request, snapshot)) <= MAX_CALLS


def work(stage: HookStage, size: int) -> int:
    """Count the calls of a question on a node of so many pods, when one was answered before."""
    pods = tuple(
        replace(
            pod_view(f"p{n}", "1", "LSR"),
            containers=(ContainerView(id=f"{n}", name="a", cgroup=f"/kubepods/{n}"),),
        )
        for n in range(size)
    )
    snapshot = replace(
        scene(kernel=KernelFeatures(cgroup_version=2, bvt_file=True), ratio="1.20"),
        pods=SnapshotPart(pods, 1.0),
    )
    spec = {"containers": {"a": {"limits": {"kubernetes.io/batch-cpu": 1000}}}}
    asked = [
        ask(stage, pod(qos, place, {EXTENDED_SPEC: to_json(spec)}), name)
        for qos, place in (("BE", "BE"), ("LS", "Bu"), ("", "G"))
        for name in (None, "a")
    ]
    all_of = hooks()
    for one in asked:
        dispatch(all_of, one, snapshot)
    return max(calls(lambda one=one: dispatch(all_of, one, snapshot)) for one in asked)  # type: ignore[misc]  # the default binds the loop's value


def calls(run: Callable[[], object]) -> int:
    """Count the calls of functions, of Python's and of C's."""
    count = 0

    def seen(_frame: object, event: str, _of: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count
