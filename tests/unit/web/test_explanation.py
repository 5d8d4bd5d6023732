"""One pod, device or file explained over HTTP, and as text for people."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from agent.cli.admin import explanation_text
from agent.snapshot.allocation import (
    AllocatedDevice,
    AllocationView,
    ContainerVerification,
    DeviceAllocation,
    PodAllocation,
    VerificationStatus,
    VerificationView,
)
from agent.snapshot.container import RuntimeView
from agent.snapshot.edits import ContainerEdits, ContainerInjection
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import EvictionRuleView, KubeQos, PodEvictionView
from agent.snapshot.publications import AuditRecord
from agent.snapshot.self_check import (
    EnforcementView,
    FileExplanation,
    FileRequest,
    ResctrlGroup,
    ResctrlView,
    StrategyState,
    StrategyStatus,
)
from agent.web.explanation import UnknownSubject, explain_file, explain_pod
from agent.web.server import create_page_app
from tests import factory
from tests.unit.web.view import HOSTILE, NoExplanations, StillView, eight_cards

POD = factory.pod(0, 2)
CARD = factory.gpu(0)
FILE = f"/sys/fs/cgroup{POD.cgroup}/cpu.max"
CHANGE = AuditRecord(wall_s=1.0, owner="cpu_burst", path=FILE, key="cpu.cfs_quota_us", new="7")
EXPLANATION = FileExplanation(
    path=FILE,
    current="70000 100000",
    requests=(
        FileRequest(owner="cpu_burst", mode="on", value="70000", wins=True, source="NodeSLO a.b"),
        FileRequest(owner="batch_resources", mode="on", value="50000", wins=False),
    ),
    original="-1 100000",
    owner="cpu_burst",
    own_values=("70000 100000",),
    refusal="it was refused once; the next attempt is in 59 s",
    changes=(CHANGE,),
)


EVICTION = PodEvictionView(
    eviction_priority=-2,
    priority=5500,
    label_priority=5500,
    used=(("memory_bytes", 1024),),
    rules=(
        EvictionRuleView(
            rule="BEMemoryEvict",
            mode="on",
            state="waiting",
            reason="five evictions within a minute",
            release=(("memory", 4096),),
            place=2,
            candidates=9,
        ),
        EvictionRuleView(rule="CPUEvict", mode="plan", state="calm", exclusion="it is too dear"),
    ),
)


class Explanations(NoExplanations):
    """Knows one file, and the files and the order of evictions of one pod."""

    def explain_eviction(self, pod_uid: str) -> PodEvictionView | None:
        return EVICTION if pod_uid == POD.uid else None

    def explain_file(self, path: str) -> FileExplanation | None:
        return EXPLANATION if path == FILE else None

    def explain_group(self, cgroup: str) -> tuple[FileExplanation, ...]:
        return (EXPLANATION,) if cgroup == POD.cgroup else ()

    def explain_injection(self, pod_uid: str) -> tuple[ContainerInjection, ...]:
        edits = ContainerEdits(env=(("NVIDIA_VISIBLE_DEVICES", "void"),))
        return (ContainerInjection(container="main", edits=edits),) if pod_uid == POD.uid else ()


def full() -> NodeSnapshot:
    grant = PodAllocation(
        uid=POD.uid,
        namespace=POD.namespace,
        name=POD.name,
        grant=DeviceAllocation(devices=(AllocatedDevice(type="gpu", id=CARD.info.uuid or ""),)),
    )
    verification = ContainerVerification(
        container_id=POD.containers[0].id,
        container="main",
        pod_uid=POD.uid,
        verdict=VerificationStatus.MISSING,
        details=("/dev/nvidia0 is not there",),
    )
    return eight_cards(
        allocations=SnapshotPart(
            AllocationView(pods={POD.uid: grant}, held={CARD.info.key: (POD.uid,)}), 1.0
        ),
        verification=SnapshotPart(
            VerificationView(containers={verification.container_id: verification}), 1.0
        ),
        runtime=SnapshotPart(RuntimeView(missed={POD.containers[1].id: "AgentWasDown"}), 1.0),
        audit=(CHANGE, replace(CHANGE, path="/sys/fs/cgroup/kubepods/other/cpu.max")),
    )


def ask(path: str) -> tuple[int, Any]:
    async def act() -> tuple[int, Any]:
        view = StillView(full(), explanations=Explanations())
        async with TestClient(TestServer(create_page_app(view), host="127.0.0.1")) as client:
            answer = await client.get(path)
            return answer.status, await answer.json(content_type=None)

    return asyncio.run(act())


def test_a_pod_has_grant_injection_verification_files_and_changes() -> None:
    status, shown = ask(f"/api/v1/explain/pod/{POD.namespace}/{POD.name}")
    assert status == 200
    assert shown["pod"]["cgroup"] == POD.cgroup
    assert [container["missed"] for container in shown["pod"]["containers"]] == [
        None,
        "AgentWasDown",
    ]
    assert shown["grant"]["grant"]["devices"][0]["id"] == CARD.info.uuid
    assert shown["injection"][0]["edits"]["env"] == [["NVIDIA_VISIBLE_DEVICES", "void"]]
    assert shown["verification"][0]["details"] == ["/dev/nvidia0 is not there"]
    assert shown["files"][0]["requests"][0]["source"] == "NodeSLO a.b"
    assert [change["path"] for change in shown["changes"]] == [FILE]


def test_a_pod_has_its_place_in_the_order_of_evictions() -> None:
    _, shown = ask(f"/api/v1/explain/pod/{POD.namespace}/{POD.name}")
    eviction = shown["eviction"]
    assert (eviction["priority"], eviction["eviction_priority"]) == (5500, -2)
    assert [
        (rule["candidate"], rule["place"], rule["exclusion"]) for rule in eviction["rules"]
    ] == [
        (True, 2, None),
        (False, None, "it is too dear"),
    ]
    text = explanation_text(shown)
    for words in (
        "EVICTION (by the rules of the NodeSLO)",
        "candidate 2 of 9",
        "no candidate: it is too dear",
        "five evi",
    ):
        assert words in text


def test_text_for_people_says_what_each_section_is_also_of_a_pod_without_anything() -> None:
    pod: Any = explain_pod(StillView(eight_cards()), POD.namespace, POD.name)
    text = explanation_text(pod)
    for words in (
        "GRANT (devices that a scheduler allocated)  none",
        "RESCTRL (its group for cache and memory bandwidth)  none: it shares both",
        "EVICTION (by the rules of the NodeSLO)  not known",
        "FILES (cgroup files that hooks and strategies set)  none",
    ):
        assert words in text
    assert "CREATED WITHOUT HOOKS BECAUSE" not in text


@pytest.mark.parametrize(
    ("states", "brake", "shown"),
    [
        ((StrategyState.ACTIVE, StrategyState.IDLE), "", []),
        (
            (StrategyState.ACTIVE, StrategyState.WAITING),
            "",
            [("two", "on", "waiting", "no sample")],
        ),
        ((StrategyState.FROZEN, StrategyState.OFF), "", [("one", "on", "frozen", None)]),
        (
            (StrategyState.ACTIVE, StrategyState.WAITING),
            "9 writes were refused",
            [
                ("one", "on", "stopped", "9 writes were refused"),
                ("two", "on", "waiting", "no sample"),
            ],
        ),
    ],
)
def test_strategies_that_set_nothing_new_are_named_with_the_reason(
    states: tuple[StrategyState, ...], brake: str, shown: list[tuple[str, ...]]
) -> None:
    statuses = tuple(
        StrategyStatus(
            name=name,
            mode="on",
            state=state,
            message="no sample" if state is StrategyState.WAITING else "",
        )
        for name, state in zip(("one", "two"), states, strict=True)
    )
    enforcement = SnapshotPart(EnforcementView(strategies=statuses, brake=brake), 1.0)
    view = StillView(eight_cards(enforcement=enforcement), explanations=Explanations())
    for document in (explain_file(view, FILE), explain_pod(view, POD.namespace, POD.name)):
        rows: Any = document["strategies"]
        assert [tuple(row.values()) for row in rows] == shown


def test_a_strategy_that_is_off_is_named_if_somebody_asks_for_it() -> None:
    off = StrategyStatus(name="one", mode="off", state=StrategyState.OFF, message="NodeSLO asks")
    enforcement = SnapshotPart(EnforcementView(strategies=(off,)), 1.0)
    view = StillView(eight_cards(enforcement=enforcement), explanations=Explanations())
    text = explanation_text(explain_file(view, FILE))
    assert "STRATEGIES (those that set no new values now)" in text
    assert "NodeSLO asks" in text


@pytest.mark.parametrize(("namespaces", "is_protected"), [((), False), ((POD.namespace,), True)])
def test_a_pod_says_whether_its_namespace_is_protected(
    namespaces: tuple[str, ...], is_protected: bool
) -> None:
    resctrl = ResctrlView(protected_namespaces=namespaces)
    pod: Any = explain_pod(StillView(eight_cards(resctrl=resctrl)), POD.namespace, POD.name)["pod"]
    assert pod["protected"] is is_protected


def test_amounts_of_an_allocation_are_shown_with_their_names() -> None:
    amounts = [["koordinator.sh/gpu-core", "50"], ["koordinator.sh/gpu-memory", "8Gi"]]
    grant = {"grant": {"devices": [{"type": "gpu", "minor": 0, "resources": amounts}]}}
    text = explanation_text({"grant": {**grant, "refusal": None}})
    assert "resources koordinator.sh/gpu-core 50; koordinator.sh/gpu-memory 8Gi" in text


def test_a_container_that_gets_nothing_is_no_line_for_people() -> None:
    empty: dict[str, object] = {
        "container": "a",
        "refusal": None,
        "edits": {"env": [], "mounts": []},
    }
    full: dict[str, object] = {"container": "b", "refusal": "no such card", "edits": {"env": []}}
    title = "INJECTION (what a new container gets for its devices)"
    assert explanation_text({"injection": [empty]}) == f"{title}  nothing\n"
    assert explanation_text({"injection": [empty, full]}).split()[-4:] == [
        *("no", "such", "card", "-"),
    ]


@pytest.mark.parametrize("name", [CARD.info.uuid, CARD.info.bus_id, str(CARD.info.minor)])
def test_a_device_has_its_health_and_the_pods_that_hold_it(name: str) -> None:
    status, shown = ask(f"/api/v1/explain/device/{name}")
    assert status == 200
    assert shown["device"]["uuid"] == CARD.info.uuid
    assert shown["device"]["health"]["state"] == "healthy"
    (holder,) = shown["pods"]
    assert (holder["name"], holder["verification"][0]["verdict"]) == (POD.name, "missing")


def test_a_file_has_winner_losers_original_refusal_and_last_changes() -> None:
    status, shown = ask(f"/api/v1/explain/file{FILE}")
    file = shown["file"]
    assert status == 200
    assert [(request["by"], request["wins"]) for request in file["requests"]] == [
        ("cpu_burst", True),
        ("batch_resources", False),
    ]
    assert (file["current"], file["original"]) == ("70000 100000", "-1 100000")
    assert file["refusal"].startswith("it was refused once")
    assert file["changes"][0]["new"] == "7"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("pod/default/none", "no pod default/none is on this node"),
        ("device/GPU-none", "no device is called 'GPU-none'"),
        (f"device/{'x' * 5000}", "no device is called"),
        ("file/etc/shadow", "/etc/shadow: no hook and no strategy wants"),
        ("file//..%2f..%2fetc", "no hook and no strategy wants"),
    ],
)
def test_what_is_not_known_is_404_with_where_to_look(path: str, words: str) -> None:
    status, shown = ask(f"/api/v1/explain/{path}")
    assert status == 404
    assert words in shown["error"]
    assert len(shown["error"]) < 1000


def test_text_for_people_has_the_same() -> None:
    _, shown = ask(f"/api/v1/explain/file{FILE}")
    text = explanation_text(shown)
    changed = ("1970-01-01T00:00:01Z", "written")
    for words in ("cpu_burst", "NodeSLO a.b", "-1 100000", "next attempt is in 59 s", *changed):
        assert words in text
    _, shown = ask(f"/api/v1/explain/pod/{POD.namespace}/{POD.name}")
    text = explanation_text(shown)
    more = ("batch_resources (on): 50000", FILE)
    for words in ("NVIDIA_VISIBLE_DEVICES", "/dev/nvidia0 is not there", "AgentWasDown", *more):
        assert words in text
    assert "CREATED WITHOUT HOOKS BECAUSE" in text
    _, shown = ask("/api/v1/explain/device/2")
    assert HOSTILE in explanation_text(shown)


def test_a_resctrl_group_is_explained_with_the_pods_that_it_is_for() -> None:
    schemata = "/sys/fs/resctrl/BE/schemata"
    change = replace(CHANGE, path=schemata, owner="resctrl", source="NodeSLO class BE")
    group = ResctrlGroup(name="BE", classes=("BE",), values=(("L3", 0, 7),))
    resctrl = ResctrlView(
        mode="on", groups=(group,), class_groups=(("BE", "BE"),), ready_groups=("BE",)
    )
    best_effort = replace(POD, labels=(("koordinator.sh/qosClass", "BE"),))
    snapshot = replace(
        eight_cards(resctrl=resctrl, audit=(change,)), pods=SnapshotPart((best_effort,), 1.0)
    )
    view = StillView(snapshot)
    file: Any = explain_file(view, schemata)["file"]
    assert file["current"] == "L3:0=7"
    assert [(request["by"], request["source"]) for request in file["requests"]] == [
        ("resctrl", "NodeSLO class BE")
    ]
    pod: Any = explain_pod(view, POD.namespace, POD.name)
    assert pod["resctrl"] == {"group": "BE", "classes": ["BE"], "schemata": "L3:0=7"}
    without_label = replace(POD, labels=(), qos=KubeQos.BEST_EFFORT)
    other = StillView(replace(snapshot, pods=SnapshotPart((without_label,), 1.0)))
    shown: Any = explain_pod(other, POD.namespace, POD.name)
    assert shown["resctrl"]["group"] == "BE"
    with pytest.raises(UnknownSubject):
        explain_file(view, "/sys/fs/resctrl/pqos/schemata")
