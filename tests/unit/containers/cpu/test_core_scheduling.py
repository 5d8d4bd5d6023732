"""Whose processes may share a core, and how they come by the cookie that says so."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agent.containers.core_scheduling import (
    GROUP_LABEL,
    NO_GROUP,
    POLICY_LABEL,
    CoreSchedulingHook,
    core_scheduling_rule,
    directory_idle,
)
from agent.reconcile.core_cookies import (
    EMPTY_PLAN,
    CookieGroup,
    CookiePlan,
    CookieProcess,
    plan_cookies,
)
from agent.slo.overlay import overlay_spec
from agent.snapshot.container import NO_ADJUSTMENT, CoreSchedulingGroup, HookStage
from agent.snapshot.host_devices import KernelFeatures
from agent.snapshot.pod import KubeQos
from tests.unit.containers.scene import UID, ask, pod, scene

CAN = KernelFeatures(core_scheduling=True)


def slo(policy: str = "coreSched", **classes: object) -> dict[str, object]:
    inputs = {f"{name}Class": {"cpuQOS": value} for name, value in classes.items()}
    return {"resourceQOSStrategy": {"policies": {"cpuPolicy": policy}, **inputs}}


ON = {"enable": True}
ALL = slo(lsr=ON, ls=ON, be={"enable": True, "schedIdle": 1})
LS_ONLY = slo(ls=ON)


def group(name: str) -> CoreSchedulingGroup:
    return CoreSchedulingGroup(enabled=True, id=name)


@pytest.mark.parametrize(
    ("spec", "qos", "place", "labels", "expected"),
    [
        (ALL, "BE", "BE", {}, group("")),
        (ALL, "BE", "BE", {GROUP_LABEL: "team"}, group("team")),
        (ALL, "LSE", "G", {GROUP_LABEL: "team"}, group("team-expeller")),
        (ALL, "", "Bu", {}, group("-expeller")),
        (ALL, "", "G", {}, group("-expeller")),
        (LS_ONLY, "", "G", {}, group("-expeller")),
        (LS_ONLY, "LSR", "G", {}, NO_GROUP),
        (LS_ONLY, "", "BE", {}, NO_GROUP),
        (ALL, "BE", "BE", {POLICY_LABEL: "exclusive", GROUP_LABEL: "team"}, group(UID)),
        (ALL, "LS", "Bu", {POLICY_LABEL: "exclusive"}, group(f"{UID}-expeller")),
        (ALL, "LS", "Bu", {POLICY_LABEL: "none"}, NO_GROUP),
        (slo("groupIdentity", ls=ON), "LS", "Bu", {}, NO_GROUP),
        (ALL, "SYSTEM", "G", {}, None),
        (ALL, "BE", "BE", {GROUP_LABEL: "x" * 5000}, group("x" * 63)),
    ],
)
@pytest.mark.parametrize("container", ["a", ""])
def test_a_containers_group(
    container: str,
    spec: object,
    qos: str,
    place: str,
    labels: Mapping[str, str],
    expected: CoreSchedulingGroup | None,
) -> None:
    request = ask(HookStage.RECONCILE, pod(qos, place, labels=labels), container)
    assert CoreSchedulingHook().adjust(request, scene(spec, CAN)).core_group == expected


def test_a_kernel_without_it_and_a_pod_itself_get_none() -> None:
    hook = CoreSchedulingHook()
    assert hook.adjust(ask(HookStage.RECONCILE, pod("BE", "BE")), scene(ALL)) == NO_ADJUSTMENT
    assert (
        hook.adjust(ask(HookStage.RECONCILE, pod("BE", "BE"), None), scene(ALL, CAN))
        == NO_ADJUSTMENT
    )


def test_idle_directories() -> None:
    rule, other = (
        core_scheduling_rule(overlay_spec(ALL).slo),
        core_scheduling_rule(overlay_spec({}).slo),
    )
    assert [directory_idle(rule, qos) for qos in KubeQos] == [0, 0, 1]
    assert directory_idle(other, KubeQos.BEST_EFFORT) is None


@pytest.mark.parametrize(
    ("wanted", "processes", "known", "living", "expected"),
    [
        pytest.param(
            group("g"),
            {7: 0, 8: 0},
            {},
            {},
            CookiePlan(create=7, source=7, targets=(8,)),
            id="a new group",
        ),
        pytest.param(
            group("g"),
            {7: 0, 8: 5},
            {"g": CookieGroup(cookie=5, pids=(3,))},
            {3: 5},
            CookiePlan(source=8, targets=(7,), cookie=5),
            id="by one of its own",
        ),
        pytest.param(
            group("g"),
            {7: 0},
            {"g": CookieGroup(cookie=5, pids=(2, 3))},
            {2: 9, 3: 5},
            CookiePlan(source=3, targets=(7,), cookie=5),
            id="by a sibling that still has it",
        ),
        pytest.param(
            group("g"),
            {7: 0},
            {"g": CookieGroup(cookie=5, pids=(2, 3))},
            {2: 9},
            CookiePlan(create=7, source=7),
            id="no sibling has it any more",
        ),
        pytest.param(
            group("g"),
            {7: 5, 8: 5},
            {"g": CookieGroup(cookie=5)},
            {},
            CookiePlan(cookie=5),
            id="all have it",
        ),
        pytest.param(
            group("g"),
            {7: 0, 8: 6},
            {},
            {},
            CookiePlan(source=8, targets=(7,), cookie=6),
            id="one of before a restart is adopted",
        ),
        pytest.param(
            group("g"),
            {7: 6},
            {"h": CookieGroup(cookie=6)},
            {},
            CookiePlan(create=7, source=7),
            id="another group's is replaced",
        ),
        pytest.param(
            NO_GROUP,
            {7: 6, 8: 0, 9: 4},
            {"h": CookieGroup(cookie=6)},
            {},
            CookiePlan(targets=(7,), cookie=0),
            id="a group's is taken away, a program's own stays",
        ),
        pytest.param(NO_GROUP, {7: 0}, {}, {}, EMPTY_PLAN, id="there is none"),
        pytest.param(group("g"), {}, {}, {}, EMPTY_PLAN, id="nobody is there"),
    ],
)
def test_which_containers_get_share_or_lose_a_cookie(
    wanted: CoreSchedulingGroup,
    processes: Mapping[int, int],
    known: Mapping[str, CookieGroup],
    living: Mapping[int, int],
    expected: CookiePlan,
) -> None:
    there = [CookieProcess(pid, cookie) for pid, cookie in processes.items()]
    assert plan_cookies(wanted, there, known, living) == expected
