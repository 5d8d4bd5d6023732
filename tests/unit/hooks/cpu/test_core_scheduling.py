"""Whose processes may share a core, and how they come by the cookie that says so."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agent.hooks.cpu.cookies import NOTHING_TO_DO, CookiePlan, KnownGroup, Process, cookie_plan
from agent.hooks.cpu.core_scheduling import (
    ALONE,
    GROUP_LABEL,
    POLICY_LABEL,
    CoreSchedulingHook,
    core_rule,
    directory_idle,
)
from agent.model.grant.kernel import KernelMeans
from agent.model.pod import KubeQos
from agent.model.runtime.adjustment import NOTHING, CoreGroup
from agent.model.runtime.request import Stage
from agent.model.slo.overlay import overlay
from tests.unit.hooks.scene import UID, ask, pod, scene

CAN = KernelMeans(core_scheduling=True)


def slo(policy: str = "coreSched", **classes: object) -> dict[str, object]:
    given = {f"{name}Class": {"cpuQOS": value} for name, value in classes.items()}
    return {"resourceQOSStrategy": {"policies": {"cpuPolicy": policy}, **given}}


ON = {"enable": True}
ALL = slo(lsr=ON, ls=ON, be={"enable": True, "schedIdle": 1})
LS_ONLY = slo(ls=ON)


def group(name: str) -> CoreGroup:
    return CoreGroup(enabled=True, id=name)


@pytest.mark.parametrize(
    ("spec", "qos", "place", "labels", "expected"),
    [
        (ALL, "BE", "BE", {}, group("")),
        (ALL, "BE", "BE", {GROUP_LABEL: "team"}, group("team")),
        (ALL, "LSE", "G", {GROUP_LABEL: "team"}, group("team-expeller")),
        (ALL, "", "Bu", {}, group("-expeller")),
        (ALL, "", "G", {}, group("-expeller")),
        (LS_ONLY, "", "G", {}, group("-expeller")),
        (LS_ONLY, "LSR", "G", {}, ALONE),
        (LS_ONLY, "", "BE", {}, ALONE),
        (ALL, "BE", "BE", {POLICY_LABEL: "exclusive", GROUP_LABEL: "team"}, group(UID)),
        (ALL, "LS", "Bu", {POLICY_LABEL: "exclusive"}, group(f"{UID}-expeller")),
        (ALL, "LS", "Bu", {POLICY_LABEL: "none"}, ALONE),
        (slo("groupIdentity", ls=ON), "LS", "Bu", {}, ALONE),
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
    expected: CoreGroup | None,
) -> None:
    asked = ask(Stage.RECONCILE, pod(qos, place, labels=labels), container)
    assert CoreSchedulingHook().adjust(asked, scene(spec, CAN)).core_group == expected


def test_a_kernel_without_it_and_a_pod_itself_get_none() -> None:
    hook = CoreSchedulingHook()
    assert hook.adjust(ask(Stage.RECONCILE, pod("BE", "BE")), scene(ALL)) == NOTHING
    assert hook.adjust(ask(Stage.RECONCILE, pod("BE", "BE"), None), scene(ALL, CAN)) == NOTHING


def test_idle_directories() -> None:
    rule, other = core_rule(overlay(ALL).slo), core_rule(overlay({}).slo)
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
            {"g": KnownGroup(cookie=5, pids=(3,))},
            {3: 5},
            CookiePlan(source=8, targets=(7,), cookie=5),
            id="by one of its own",
        ),
        pytest.param(
            group("g"),
            {7: 0},
            {"g": KnownGroup(cookie=5, pids=(2, 3))},
            {2: 9, 3: 5},
            CookiePlan(source=3, targets=(7,), cookie=5),
            id="by a sibling that still has it",
        ),
        pytest.param(
            group("g"),
            {7: 0},
            {"g": KnownGroup(cookie=5, pids=(2, 3))},
            {2: 9},
            CookiePlan(create=7, source=7),
            id="no sibling has it any more",
        ),
        pytest.param(
            group("g"),
            {7: 5, 8: 5},
            {"g": KnownGroup(cookie=5)},
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
            {"h": KnownGroup(cookie=6)},
            {},
            CookiePlan(create=7, source=7),
            id="another group's is replaced",
        ),
        pytest.param(
            ALONE,
            {7: 6, 8: 0, 9: 4},
            {"h": KnownGroup(cookie=6)},
            {},
            CookiePlan(targets=(7,), cookie=0),
            id="a group's is taken away, a program's own stays",
        ),
        pytest.param(ALONE, {7: 0}, {}, {}, NOTHING_TO_DO, id="there is none"),
        pytest.param(group("g"), {}, {}, {}, NOTHING_TO_DO, id="nobody is there"),
    ],
)
def test_who_gets_shares_or_loses_a_cookie(
    wanted: CoreGroup,
    processes: Mapping[int, int],
    known: Mapping[str, KnownGroup],
    living: Mapping[int, int],
    expected: CookiePlan,
) -> None:
    there = [Process(pid, cookie) for pid, cookie in processes.items()]
    assert cookie_plan(wanted, there, known, living) == expected
