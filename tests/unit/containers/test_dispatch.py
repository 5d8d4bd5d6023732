"""Hooks asked one question: order, modes, policy, bugs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace

from agent.config.containers import EnforceHooksSettings, EnforceSettings
from agent.containers.dispatch import DispatchResult, adjust, hook_modes
from agent.containers.hooks import Hook, node_hooks
from agent.snapshot.allocation import AllocationRefused, RefusalReason
from agent.snapshot.container import (
    NO_ADJUSTMENT,
    Adjustment,
    HookRequest,
    HookStage,
    LinuxResources,
)
from agent.snapshot.edits import ContainerEdits, ContainerNote
from agent.snapshot.node import NodeSnapshot
from agent.wire_formats.annotations import AnnotationError
from agent.wire_formats.device_allocated import ANNOTATION
from tests.unit.containers.scene import ask, pod, scene

SHARES = Adjustment(resources=LinuxResources(shares=512))
CPUS = Adjustment(resources=LinuxResources(cpus="0-1"))


class Saying:
    """A hook that answers as it is told."""

    def __init__(
        self,
        name: str,
        answer: Callable[[], Adjustment],
        stages: frozenset[HookStage] = frozenset({HookStage.CREATE}),
        *,
        required: bool = False,
    ) -> None:
        self.name = name
        self.stages = stages
        self.required = required
        self._answer = answer

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        assert request.stage in self.stages
        assert snapshot.node.name
        return self._answer()


def raising(error: Exception) -> Callable[[], Adjustment]:
    def answer() -> Adjustment:
        raise error

    return answer


class Ticking:
    """A clock that goes on by a second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def dispatched(*hooks: Hook, modes: Mapping[str, str] | None = None) -> DispatchResult:
    all_on = {hook.name: "on" for hook in hooks}
    return adjust(hooks, ask(HookStage.CREATE, pod()), scene(), modes or all_on, Ticking())


def test_answers_are_put_together_and_each_hook_is_timed() -> None:
    result = dispatched(Saying("a", lambda: SHARES), Saying("b", lambda: CPUS))
    assert result.adjustment.resources == LinuxResources(shares=512, cpus="0-1")
    assert result.answers == (("a", SHARES), ("b", CPUS))
    assert result.duration_s == (("a", 1.0), ("b", 1.0))
    assert not result.failures


def test_a_hook_of_another_stage_is_not_called() -> None:
    elsewhere = Saying("a", raising(AssertionError()), frozenset({HookStage.UPDATE}))
    assert dispatched(elsewhere) == DispatchResult()


def test_disabled_and_unknown_hooks_are_not_called_and_planned_answers_are_separate() -> None:
    hooks = (
        Saying("off", raising(AssertionError())),
        Saying("unknown", raising(AssertionError())),
        Saying("plan", lambda: CPUS),
        Saying("silent", lambda: NO_ADJUSTMENT),
        Saying("on", lambda: SHARES),
    )
    modes = {"off": "off", "plan": "plan", "silent": "plan", "on": "on"}
    result = dispatched(*hooks, modes=modes)
    assert result.adjustment == SHARES
    assert result.planned == (("plan", CPUS),)


def test_a_bug_affects_only_its_hook_and_is_reported() -> None:
    result = dispatched(
        Saying("broken", raising(KeyError("x" * 500)), required=True), Saying("a", lambda: SHARES)
    )
    assert result.adjustment.resources == SHARES.resources
    assert not result.adjustment.failed
    assert [failure.hook for failure in result.failures] == ["broken"]
    assert len(result.failures[0].error) <= 200
    assert [note.reason for note in result.adjustment.edits.notes] == ["HookFailed"]


@pytest.mark.parametrize("required", [True, False])
def test_a_container_of_a_pod_with_a_grant_does_not_start_with_a_bug_of_a_required_hook(
    required: bool,
) -> None:
    hook = Saying("devices", raising(KeyError("x")), required=required)
    allocations = pod(annotations={ANNOTATION: "{}"})
    request = ask(HookStage.CREATE, allocations)
    result = adjust((hook,), request, scene(), {"devices": "on"}, Ticking())
    assert bool(result.adjustment.failed) is required
    assert result.adjustment.reason == ("HookFailed" if required else "")
    assert [failure.hook for failure in result.failures] == ["devices"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AllocationRefused(RefusalReason.DEVICE_UNKNOWN, "no such card"), "DeviceUnknown"),
        (AnnotationError("no JSON"), "BadAnnotation"),
    ],
)
def test_a_refusal_fails_the_container_only_of_a_required_hook(
    error: Exception, reason: str
) -> None:
    required = dispatched(Saying("a", raising(error), required=True)).adjustment
    optional = dispatched(Saying("a", raising(error)), Saying("b", lambda: CPUS)).adjustment
    assert required.reason == reason
    assert str(error) in required.failed
    assert not optional.failed
    assert optional.resources == CPUS.resources
    assert [note.reason for note in optional.edits.notes] == [reason]


def test_a_refusal_in_plan_mode_stops_nothing() -> None:
    refusal = raising(AllocationRefused(RefusalReason.MPS_DOWN, "x"))
    result = dispatched(Saying("a", refusal, required=True), modes={"a": "plan"})
    assert result.adjustment == NO_ADJUSTMENT
    assert result.planned[0][1].reason == "MPSDown"


def test_two_refusals_are_reported_with_the_message_of_the_first() -> None:
    result = dispatched(
        Saying("a", lambda: SHARES),
        Saying("b", raising(AllocationRefused(RefusalReason.MPS_DOWN, "x")), required=True),
        Saying("c", raising(AllocationRefused(RefusalReason.UVM_MISSING, "y")), required=True),
    )
    assert result.adjustment.reason == "MPSDown"


def test_two_values_of_one_field_are_a_bug_and_neither_is_used() -> None:
    other = Adjustment(resources=LinuxResources(shares=1024, cpus="3"))
    result = dispatched(Saying("a", lambda: SHARES), Saying("b", lambda: other))
    assert result.adjustment.resources == LinuxResources(cpus="3")
    assert [(f.hook, f.error) for f in result.failures] == [("a,b", "different values of shares")]


def test_equal_values_are_no_conflict() -> None:
    result = dispatched(Saying("a", lambda: SHARES), Saying("b", lambda: SHARES))
    assert result.adjustment == SHARES
    assert not result.failures


def test_edits_that_contradict_each_other_refuse_the_container() -> None:
    one = Adjustment(edits=ContainerEdits(env=(("A", "1"),)))
    other = Adjustment(edits=ContainerEdits(env=(("A", "2"),)))
    result = dispatched(Saying("a", lambda: one), Saying("b", lambda: other))
    assert result.adjustment.reason == "DeviceConflict"
    assert [failure.hook for failure in result.failures] == ["a,b"]


def quota(quota_us: int, period_us: int = 100000) -> Callable[[], Adjustment]:
    adjustment = Adjustment(resources=LinuxResources(quota_us=quota_us, period_us=period_us))
    return lambda: adjustment


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"batch_resources": 1, "cpu_normalization": 2, "cpuset": -1}, -1),
        ({"cpu_normalization": 2, "batch_resources": 1}, 2),
        ({"batch_resources": 1}, 1),
        ({"other": 1, "another": 1}, 1),
        ({"other": 1, "another": 2}, None),
        ({"other": 1, "batch_resources": 2}, None),
    ],
)
def test_the_limit_is_the_pinneds_then_the_scaled_then_the_batch_one_in_any_order(
    said: Mapping[str, int], expected: int | None
) -> None:
    for order in (list(said.items()), list(said.items())[::-1]):
        result = dispatched(*(Saying(name, quota(value)) for name, value in order))
        assert result.adjustment.resources.quota_us == expected
        assert bool(result.failures) is (expected is None)


def test_quota_and_period_are_of_one_hook() -> None:
    result = dispatched(
        Saying("batch_resources", quota(5000, 50000)), Saying("cpuset", quota(-1, 20000))
    )
    assert (result.adjustment.resources.quota_us, result.adjustment.resources.period_us) == (
        -1,
        20000,
    )


def test_no_hook_does_more_than_all_may() -> None:
    hooks = (*node_hooks(reads_kubelet=True), Saying("of_its_own", lambda: NO_ADJUSTMENT))
    on = hook_modes(hooks, EnforceSettings())
    planned = hook_modes(hooks, EnforceSettings(mode="plan"))
    off = EnforceHooksSettings(cpuset="off", resctrl="on")
    assert on["cpuset"] == "on"
    assert on["oom_score"] == "off"
    assert on["of_its_own"] == "on"
    assert planned["cpuset"] == "plan"
    assert planned["oom_score"] == "off"
    assert planned["of_its_own"] == "plan"
    assert hook_modes(hooks, EnforceSettings(hooks=off))["cpuset"] == "off"
    assert set(hook_modes(hooks, EnforceSettings(mode="off")).values()) == {"off"}


def test_every_hook_has_a_switch_of_its_name() -> None:
    switches = set(EnforceHooksSettings.__struct_fields__)
    assert {hook.name for hook in node_hooks(reads_kubelet=True)} == switches - {"devices"}


def test_notes_of_several_hooks_are_all_reported() -> None:
    first, second = (ContainerNote(reason=name, message="m") for name in "AB")
    result = dispatched(
        Saying("a", lambda: Adjustment(edits=ContainerEdits(notes=(first,)))),
        Saying("b", lambda: Adjustment(edits=replace(ContainerEdits(), notes=(second,)))),
    )
    assert result.adjustment.edits.notes == (first, second)
