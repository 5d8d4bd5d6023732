from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.cli.doctor import results_text
from agent.config.containers import HookSettings, NriSettings
from agent.config.settings import Settings
from agent.doctor.check import Check, CheckGroup, CheckResult, CheckStatus
from agent.doctor.report import Finding, is_bad_news, result_rows, run_checks
from agent.snapshot.device import Health, HealthState
from agent.snapshot.host_devices import HostDevices, HostDevicesView
from agent.snapshot.inventory import RejectionCount
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.usage import CollectorStatus
from agent.wire_formats.snapshot_json import to_json_data
from tests import factory
from tests.unit.doctor.inputs import CONTAINERD, agent_with, facts, node, of


def test_a_healthy_node_has_no_bad_news() -> None:
    assert not is_bad_news(run_checks(facts()), strict=True)


def test_every_bad_finding_says_why_it_matters_and_what_to_do() -> None:
    sick = factory.gpu(0)
    info = replace(sick.info, health=Health(state=HealthState.FAILED, reason="Xid79", message="m"))
    snapshot = factory.snapshot((replace(sick, info=info), factory.nic(0)), ())
    means = {"nvidia": HostDevices(default_handler="nvidia")}
    view = HostDevicesView(vendors=means, problems=(("CdiSpecStale", "x is gone"),))
    silent = VendorState(vendor="ascend", state="stalled", message="no answer")
    checks = run_checks(
        facts(
            replace(
                snapshot, host_devices=SnapshotPart(view, 0.0), vendors=(*snapshot.vendors, silent)
            ),
            is_root=False,
            agent=None,
            runtimes=(replace(CONTAINERD, is_nri_disabled=True),),
            paths=frozenset({"/usr/local/vgpu/libvgpu.so"}),
            char_links={"/dev/nvidia0": False},
            cgroup_version=None,
            protobuf="python",
        )
    )
    poor = {check.id for check in checks if check.status in (CheckStatus.WARN, CheckStatus.FAIL)}
    assert poor == {
        "privileges",
        "vendor:ascend",
        f"device:{sick.key}",
        "char-links",
        "memlock",
        "cgroups",
        "agent",
        "nri",
        "means",
        "hami-core",
        "ungranted",
        "protobuf",
    }
    assert all(check.impact and check.remedy for check in checks if check.id in poor)


@pytest.mark.parametrize(
    ("changes", "result", "words"),
    [
        (
            {"agent": None, "runtimes": (), "paths": frozenset()},
            CheckStatus.SKIP,
            "no container runtime",
        ),
        ({"agent": None, "is_live": False}, CheckStatus.SKIP, "recorded"),
        (
            {
                "agent": agent_with(
                    "grants", {"pods": {"u": {"refusal": ""}, "v": {"refusal": "R"}}}
                ),
                "settings": Settings(nri=NriSettings(attach="off")),
            },
            CheckStatus.WARN,
            "off; 1 pod has a grant",
        ),
        (
            {"agent": None, "settings": Settings(nri=NriSettings(attach="off"))},
            CheckStatus.SKIP,
            "off",
        ),
        ({"agent": None, "paths": frozenset()}, CheckStatus.FAIL, "not there"),
        (
            {"agent": agent_with("runtime", {"state": "waiting", "reason": "R"})},
            CheckStatus.WARN,
            "waiting R",
        ),
        (
            {"agent": agent_with("runtime", {"state": "refused", "reason": "R"})},
            CheckStatus.FAIL,
            "refused R",
        ),
        (
            {
                "agent": agent_with("runtime", {"state": "waiting"}),
                "runtimes": (),
                "paths": frozenset(),
            },
            CheckStatus.FAIL,
            "not there",
        ),
        (
            {
                "agent": agent_with("runtime", {"state": "synchronized", "runtime": "containerd"}),
                "runtimes": (),
                "paths": frozenset(),
            },
            CheckStatus.OK,
            "containerd",
        ),
        (
            {"agent": None, "runtimes": (replace(CONTAINERD, is_nri_disabled=True),)},
            CheckStatus.FAIL,
            "switched off",
        ),
    ],
)
def test_the_reason_why_the_runtime_does_not_call_is_reported(
    changes: dict[str, object], result: CheckStatus, words: str
) -> None:
    one = of(run_checks(facts(None, **changes)), "nri")
    assert one.status is result
    assert words in one.observation


def test_refusals_and_missing_devices_of_the_running_agent_are_reported() -> None:
    agent: dict[str, object] = {
        "containers": {
            "grants": {
                "value": {
                    "pods": {
                        "u": {"refusal": "DeviceConflict", "message": "m", "name": "p"},
                        "v": {"refusal": "", "name": "q"},
                    }
                }
            },
            "proof": {
                "value": {
                    "containers": {
                        "c": {"verdict": "missing", "pod": "p", "details": ["/dev/nvidia0"]},
                        "d": {"verdict": "verified", "pod": "q"},
                    }
                }
            },
            "served": {"value": {"resources": [{"name": "nvidia.com/gpu", "state": "conflict"}]}},
        }
    }
    checks = run_checks(facts(agent=agent))
    failed = {check.id for check in checks if check.status is CheckStatus.FAIL}
    assert failed == {"grant:None/p", "container:None/p/None", "kubelet:nvidia.com/gpu"}


def test_devices_that_the_kubelet_accounts_otherwise_are_named() -> None:
    gpu, hca = (
        {"name": name, "state": "watched", "withdrawn_ids": ids}
        for name, ids in (("nvidia.com/gpu", ["GPU-7"]), ("rdma/hca", []))
    )
    entries = [{"resource": "rdma/hca", "exchanges": [["a", "b"]]}, {"resource": "rdma/hca"}]
    served = {"value": {"resources": [gpu, hca], "held": entries}}
    checks = run_checks(facts(agent={"containers": {"served": served}}))
    withdrawn, exchanged = of(checks, "kubelet:nvidia.com/gpu"), of(checks, "kubelet:rdma/hca")
    assert (withdrawn.status, exchanged.status) == (CheckStatus.WARN, CheckStatus.OK)
    assert "GPU-7" in withdrawn.observation
    assert "b in place of a" in exchanged.observation


@pytest.mark.parametrize(
    ("grant", "result", "do"),
    [
        ({"refusal": "DeviceTaken", "message": "m"}, CheckStatus.FAIL, "the scheduler grants anew"),
        (
            {"refusal": "GrantNotAskedFor", "message": "m"},
            CheckStatus.FAIL,
            "daemonset/policy/grants",
        ),
        ({"refusal": "PodRequestsUnknown", "message": "m"}, CheckStatus.WARN, "or the kubelet"),
        ({"refusal": "", "awaits_requests": True}, CheckStatus.WARN, "or the kubelet"),
        ({"refusal": "", "awaits_requests": False}, None, ""),
    ],
)
def test_each_grant_that_is_not_honoured_has_the_remedy_of_its_cause(
    grant: dict[str, object], result: CheckStatus | None, do: str
) -> None:
    row = {"namespace": "n", "name": "p", **grant}
    checks = run_checks(facts(agent=agent_with("grants", {"pods": {"u": row}})))
    own = [check for check in checks if check.id == "grant:n/p"]
    assert [one.status for one in own] == ([] if result is None else [result])
    assert all(do in one.remedy and one.observation and one.impact for one in own)


@pytest.mark.parametrize(
    ("verdict", "detail", "result", "do"),
    [
        ("excess", "/dev/nvidia1 shows a card", CheckStatus.FAIL, "CDI file"),
        ("missing", "/dev/nvidia0 is not there", CheckStatus.FAIL, "delete the pod"),
        ("missing", "DeviceDenied", CheckStatus.FAIL, "create-dev-char-symlinks"),
        ("unknown", "SystemdReloaded", CheckStatus.WARN, "create-dev-char-symlinks"),
        ("unknown", "it has no process (yet)", None, ""),
        ("verified", "", None, ""),
    ],
)
def test_each_container_that_is_not_as_it_must_be_has_the_remedy_of_its_cause(
    verdict: str, detail: str, result: CheckStatus | None, do: str
) -> None:
    about = {"namespace": "n", "pod": "p", "container": "c"}
    row = {**about, "verdict": verdict, "details": [detail], "causes": [detail]}
    checks = run_checks(facts(agent=agent_with("proof", {"containers": {"id": row}})))
    own = [check for check in checks if check.id == "container:n/p/c"]
    assert [one.status for one in own] == ([] if result is None else [result])
    assert all(do in one.remedy and detail in one.observation and one.impact for one in own)
    assert any(check.id == "containers" for check in checks) is (result is None)


@pytest.mark.parametrize("odd", [[], "x", 1, None, {"containers": 3}, {"containers": {"proof": 1}}])
def test_an_agent_that_answers_oddly_breaks_no_check(odd: object) -> None:
    agent = {"containers": odd} if not isinstance(odd, dict) else odd
    assert run_checks(facts(agent=agent))


def test_a_node_with_a_kubelet_and_without_its_groups_is_bad_news() -> None:
    words = "the kubelet runs as process 812"
    (result,) = (
        check
        for check in run_checks(facts(cgroup_driver=None, kubelet=words))
        if check.id == "cgroups"
    )
    assert (result.status, words in result.observation) == (CheckStatus.FAIL, True)
    assert "kubelet.cgroup_root" in result.remedy
    bare = of(run_checks(facts(cgroup_driver=None)), "cgroups")
    assert (bare.status, "no group of the kubelet's yet" in bare.observation) == (
        CheckStatus.OK,
        True,
    )


def test_void_leaves_nothing_to_warn_of() -> None:
    view = HostDevicesView(vendors={"nvidia": HostDevices(default_handler="nvidia")})
    snapshot = replace(node(), host_devices=SnapshotPart(view, 0.0))
    settings = Settings(hooks=HookSettings(ungranted="void"))
    assert of(run_checks(facts(snapshot, settings=settings)), "ungranted").status is CheckStatus.OK


def check(name: str, group: CheckGroup = CheckGroup.KERNEL) -> Check:
    return Check(id=name, group=group, question="?", run=lambda _: iter(()))


def finding(name: str, status: CheckStatus, seen: str = "s", **more: str) -> Finding:
    group = CheckGroup(more.pop("group", "kernel"))
    anchor = more.pop("anchor", "")
    result = CheckResult(id=name, status=status, observation=seen, **more)
    return Finding(check=check(name.split(":", maxsplit=1)[0], group), result=result, anchor=anchor)


def test_absent_words_are_null_for_programs_and_nothing_for_people() -> None:
    one = finding("a:b", CheckStatus.OK)
    assert result_rows([one]) == [
        {
            "id": "a:b",
            "group": "kernel",
            "check": "a",
            "result": "ok",
            "seen": "s",
            "why": None,
            "do": None,
            "runbook": None,
        }
    ]
    assert results_text([one]).splitlines()[:2] == ["KERNEL", "ok    a:b: s"]


def test_a_value_that_anybody_wrote_does_not_act_on_the_terminal() -> None:
    odd = "\x1b[2Jall\r\n\u202e\x9b31m"
    text = results_text([finding("a", CheckStatus.WARN, odd, impact=odd, remedy="r")])
    assert not {"\x1b", "\r", "\u202e", "\x9b"} & set(text)
    assert "\\x1b[2Jall\\r\\n\\u202e" in text
    assert len(text.splitlines()) == 6


def test_the_group_with_a_failure_is_printed_first_and_its_worst_finding_first() -> None:
    text = results_text(
        [
            finding("fine", CheckStatus.OK),
            finding("odd", CheckStatus.WARN, impact="why", remedy="do", anchor="xid-79"),
            finding("unread", CheckStatus.SKIP, "no kernel"),
            finding("unread2", CheckStatus.SKIP, "no kernel"),
            finding("well", CheckStatus.OK, group="time"),
            finding("bad", CheckStatus.FAIL, group="time", impact="w", remedy="d"),
        ]
    )
    assert text.splitlines() == [
        "TIME",
        "fail  bad: s",
        "      w",
        "      d",
        "ok    well: s",
        "",
        "KERNEL",
        "warn  odd: s",
        "      why",
        "      do",
        "      runbook: docs/runbook.md#xid-79",
        "ok    fine: s",
        "",
        "NOT CHECKED HERE",
        "no kernel: unread, unread2",
        "",
        "1 failed, 1 warning, 2 ok, 2 skipped",
    ]


def collectors(*statuses: object) -> dict[str, object]:
    """Return the running agent's snapshot with the statuses of its collectors."""
    return {"parts": {"usage": {"value": {"collectors": list(statuses)}}}}


def test_a_collector_that_cannot_measure_is_a_warning_with_its_reason() -> None:
    problem = {"reason": "KidledMissing", "message": "this kernel has no kidled"}
    agent = collectors(
        to_json_data(CollectorStatus(name="usage", success=True, duration_s=0.1)),
        {"name": "cold_memory", "success": False, "problems": [problem]},
    )
    checks = [one for one in run_checks(facts(agent=agent)) if one.id.startswith("collector:")]
    assert [(one.id, one.status) for one in checks] == [("collector:cold_memory", CheckStatus.WARN)]
    assert checks[0].observation == "KidledMissing: this kernel has no kidled"
    assert "collect.cold_memory: false" in checks[0].remedy


@pytest.mark.parametrize("odd", [None, 5, "x", {"name": 3}, {"problems": []}, []])
def test_odd_statuses_of_collectors_break_no_check(odd: object) -> None:
    checks = run_checks(facts(agent=collectors(odd)))
    assert not [check for check in checks if check.id.startswith("collector:")]


def test_families_with_impossible_readings_are_named_with_their_first_value() -> None:
    counts = tuple(
        RejectionCount(family=f"xpu_x{number}_ratio", count=9, device="k", value="4294967295")
        for number in range(10)
    )
    healthy = node()
    (vendor,) = healthy.vendors
    snapshot = replace(healthy, vendors=(replace(vendor, rejections=counts),))
    result = of(run_checks(facts(snapshot)), "readings:nvidia")
    assert result.status is CheckStatus.WARN
    assert "xpu_x0_ratio (9, first 4294967295 of k)" in result.observation
    assert result.observation.endswith("and 2 more")
