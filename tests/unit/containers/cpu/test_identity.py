"""Group identity by Koordinator's values, with one function for every caller."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agent.cgroup.ledger import CORE_SWITCH, IDENTITY_SWITCH
from agent.containers.identity import (
    CPU_QOS,
    IdentityHook,
    directory_identity,
    identity_rule,
    identity_switches,
)
from agent.slo.overlay import overlay_spec
from agent.snapshot.container import NO_ADJUSTMENT, HookStage
from agent.snapshot.host_devices import KernelFeatures
from agent.snapshot.pod import KubeQos
from agent.wire_formats.annotations import AnnotationError
from tests.unit.containers.scene import ask, pod, scene

HAS_FILE = KernelFeatures(bvt_file=True)


def classes(*names: str, policy: str = "groupIdentity") -> dict[str, object]:
    enabled = {f"{name}Class": {"cpuQOS": {"enable": True}} for name in names}
    return {"resourceQOSStrategy": {"policies": {"cpuPolicy": policy}, **enabled}}


ALL = classes("lsr", "ls", "be")
ONLY_LS = classes("ls")
CORE = classes("lsr", "ls", "be", policy="coreSched")


def own(text: str) -> dict[str, str]:
    return {CPU_QOS: text}


@pytest.mark.parametrize(
    ("slo", "qos", "place", "annotations", "expected"),
    [
        pytest.param(ALL, "LSE", "G", {}, 2, id="V56 LSE"),
        pytest.param(ALL, "BE", "BE", {}, -1, id="V56 BE"),
        pytest.param(ALL, "", "G", {}, 2, id="V56 none in Guaranteed"),
        pytest.param(ALL, "", "BE", {}, -1, id="V56 none in BestEffort"),
        pytest.param(ALL, "", "Bu", {}, 2, id="none in Burstable"),
        pytest.param(ONLY_LS, "LSR", "G", {}, 0, id="V58 label LSR"),
        pytest.param(ONLY_LS, "", "G", {}, 2, id="V58 none in Guaranteed"),
        pytest.param(ALL, "LS", "Bu", own('{"enable":true,"groupIdentity":-1}'), -1, id="V59 own"),
        pytest.param(ALL, "LS", "Bu", own('{"groupIdentity":1}'), 0, id="V59 not enabled"),
        pytest.param(ALL, "LS", "Bu", own('{"enable":true}'), 2, id="own without a value"),
        pytest.param(
            ALL, "BE", "BE", own('{"enable":true,"groupIdentity":2}'), -1, id="V60 not of BE"
        ),
        pytest.param(ALL, "LSR", "G", own("{"), 2, id="not read where it does not count"),
        pytest.param(CORE, "LSE", "G", {}, 0, id="V61 LSE"),
        pytest.param(CORE, "BE", "BE", {}, 0, id="V61 BE"),
        pytest.param(CORE, "LS", "Bu", own('{"enable":true,"groupIdentity":2}'), 0, id="V61 own"),
        pytest.param(ALL, "SYSTEM", "G", {}, 0, id="SYSTEM has its own class"),
        pytest.param({}, "BE", "BE", {}, 0, id="no class is enabled"),
        pytest.param(ALL, "", "", {}, None, id="nobody told where it is"),
    ],
)
@pytest.mark.parametrize("stage", [HookStage.RUN_POD, HookStage.RECONCILE])
def test_a_pods_value(
    stage: HookStage,
    slo: object,
    qos: str,
    place: str,
    annotations: Mapping[str, str],
    expected: int | None,
) -> None:
    request = ask(stage, pod(qos, place, annotations), None)
    assert IdentityHook().adjust(request, scene(slo, HAS_FILE)).bvt_warp_ns == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"enable":true,"groupIdentity":3}',
        '{"enable":true,"groupIdentity":-2}',
        '{"enable":true,"groupIdentity":true}',
        '{"enable":true,"groupIdentity":1.5}',
        '{"enable":true,"groupIdentity":99999999999999999999999}',
        '{"enable":"yes"}',
        '{"enable":true,"groupIdentity":NaN}',
        "[]",
        "",
    ],
)
def test_a_hostile_value_of_a_pod_is_refused(text: str) -> None:  # V59
    request = ask(HookStage.RUN_POD, pod("LS", "Bu", own(text)), None)
    with pytest.raises(AnnotationError, match="cpuQOS"):
        IdentityHook().adjust(request, scene(ALL, HAS_FILE))


def test_values_of_directories() -> None:  # V57, V58
    rule = identity_rule(overlay_spec(ALL).slo)
    assert [directory_identity(rule, qos) for qos in KubeQos] == [0, 2, -1]
    assert directory_identity(identity_rule(overlay_spec(ONLY_LS).slo), KubeQos.BEST_EFFORT) == 0


@pytest.mark.parametrize("name", ["beClass", "systemClass"])
def test_a_class_that_is_not_enabled_is_neutral_whatever_value_it_has(name: str) -> None:  # V58
    enabled = {"lsClass": {"cpuQOS": {"enable": True}}}
    off = {name: {"cpuQOS": {"enable": False, "groupIdentity": 1}}}
    policy = {"policies": {"cpuPolicy": "groupIdentity"}}
    rule = identity_rule(overlay_spec({"resourceQOSStrategy": {**policy, **enabled, **off}}).slo)
    assert (rule.ls, rule.be, rule.system) == (2, 0, 0)


@pytest.mark.parametrize(
    ("slo", "kernel", "expected"),
    [
        pytest.param(
            {}, KernelFeatures(identity_switch_present=True, identity_switch=0), None, id="V62 off"
        ),
        pytest.param(ALL, KernelFeatures(), None, id="V62 another kernel"),
        pytest.param(ALL, KernelFeatures(identity_switch_present=True), None, id="not readable"),
        pytest.param(
            {},
            KernelFeatures(identity_switch_present=True, identity_switch=1),
            0,
            id="to be undone",
        ),
        pytest.param({}, HAS_FILE, 0, id="a kernel without a switch"),
    ],
)
def test_the_kernels_abilities_decide_whether_a_value_is_set(
    slo: object, kernel: KernelFeatures, expected: int | None
) -> None:
    request = ask(HookStage.RECONCILE, pod("BE", "BE"), None)
    assert IdentityHook().adjust(request, scene(slo, kernel)).bvt_warp_ns == expected


def test_nothing_is_set_for_containers_or_before_the_first_node_slo() -> None:
    of_container = ask(HookStage.RECONCILE, pod("BE", "BE"), "a")
    assert IdentityHook().adjust(of_container, scene(ALL, HAS_FILE)) == NO_ADJUSTMENT


@pytest.mark.parametrize(
    ("slo", "kernel", "expected"),
    [
        pytest.param(
            ALL,
            KernelFeatures(identity_switch_present=True, identity_switch=0, core_switch=1),
            ((CORE_SWITCH, "0"), (IDENTITY_SWITCH, "1")),
            id="core scheduling is switched off first",
        ),
        pytest.param(
            ALL,
            KernelFeatures(identity_switch_present=True, identity_switch=1, core_switch=0),
            (),
            id="all is as it must be",
        ),
        pytest.param(
            {}, KernelFeatures(identity_switch_present=True, identity_switch=0), (), id="disabled"
        ),
        pytest.param(ALL, HAS_FILE, (), id="no switch"),
    ],
)
def test_switches(
    slo: object, kernel: KernelFeatures, expected: tuple[tuple[str, str], ...]
) -> None:
    assert identity_switches(identity_rule(overlay_spec(slo).slo), kernel) == expected
