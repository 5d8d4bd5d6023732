from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.errors import ParseError
from agent.kubelet.pod_merge import merge_pods
from agent.snapshot.pod import ComputeRequest, ContainerView, KubeQos, PodView, PodVolume
from agent.wire_formats.json_values import repair_json
from agent.wire_formats.pod import decode_pod, decode_pod_list

HASH = "0123456789abcdef0123456789abcdef"
MIRROR = "kubernetes.io/config.mirror"
CONFIG = "kubernetes.io/config.hash"


def pod(uid: str, *containers: str, **changes: object) -> PodView:
    base = PodView(
        uid=uid,
        qos=KubeQos.BURSTABLE,
        name=f"name-{uid[:8]}",
        namespace="d",
        node_name="n",
        containers=tuple(ContainerView(id=container, name="main") for container in containers),
    )
    return replace(base, **changes)


MIRRORED = pod("mirror-uid", name="etcd-n", annotations=((CONFIG, HASH), (MIRROR, HASH)))
STATIC = pod(HASH, "aa", name="etcd-n", annotations=((CONFIG, HASH),), phase="Running")


def uids(*merged: PodView) -> list[str]:
    return [one.uid for one in merged]


def test_each_pod_is_listed_once_whatever_its_sources() -> None:
    merged = merge_pods("n", (pod("a"), pod("b")), (pod("b"), pod("c")))
    assert uids(*merged) == ["a", "b", "c"]


@pytest.mark.parametrize("api", [None, ()])
def test_without_the_api_server_the_kubelets_pods_count(api: tuple[PodView, ...] | None) -> None:
    assert uids(*merge_pods("n", api, (pod("a"), STATIC))) == [HASH, "a"]


def test_a_kubelet_that_lists_nothing_takes_nothing_away() -> None:
    assert uids(*merge_pods("n", (pod("a"), MIRRORED), ())) == [HASH, "a"]


def test_a_kubelet_that_restarted_and_lists_static_pods_only_takes_nothing_away() -> None:
    merged = merge_pods("n", (pod("a"), MIRRORED), (STATIC,), api_fresh=False)
    assert uids(*merged) == [HASH, "a"]


def test_a_pod_that_was_deleted_by_force_and_still_runs_is_known() -> None:
    assert uids(*merge_pods("n", (), (pod("a", "aa"),))) == ["a"]


def test_a_kubelet_that_hangs_does_not_keep_pods_that_the_api_server_saw_go() -> None:
    merged = merge_pods("n", (pod("b"),), (pod("a"), STATIC), kubelet_fresh=False)
    assert uids(*merged) == [HASH, "b"]


def test_while_neither_answers_nothing_is_forgotten() -> None:
    merged = merge_pods("n", (pod("b"),), (pod("a"),), api_fresh=False, kubelet_fresh=False)
    assert uids(*merged) == ["a", "b"]


def test_a_mirror_and_its_static_pod_are_one_under_the_cgroups_uid() -> None:
    (merged,) = merge_pods("n", (replace(MIRRORED, labels=(("a", "b"),)),), (STATIC,))
    assert merged.uid == HASH
    assert merged.labels == (("a", "b"),)
    assert [container.id for container in merged.containers] == ["aa"]
    assert merged.phase == "Running"


def test_a_pod_that_only_claims_to_be_a_mirror_is_not_believed() -> None:
    liar = pod("liar", annotations=((MIRROR, HASH),))
    assert uids(*merge_pods("n", (liar, MIRRORED), (STATIC,))) == [HASH, "liar"]
    assert uids(*merge_pods("n", (liar, MIRRORED), ())) == ["liar", "mirror-uid"]


def test_pods_of_another_node_are_left_out() -> None:
    other = pod("x", node_name="other")
    assert uids(*merge_pods("n", (pod("a"), other), (other,))) == ["a"]


@pytest.mark.parametrize(
    ("api_fresh", "kubelet_fresh", "labels"),
    [(True, True, "api"), (True, False, "api"), (False, False, "api"), (False, True, "kubelet")],
)
def test_labels_are_the_api_servers_unless_only_the_kubelet_answers(
    api_fresh: bool, kubelet_fresh: bool, labels: str
) -> None:
    (merged,) = merge_pods(
        "n",
        (pod("a", labels=(("of", "api"),)),),
        (pod("a", labels=(("of", "kubelet"),)),),
        api_fresh=api_fresh,
        kubelet_fresh=kubelet_fresh,
    )
    assert merged.label("of") == labels


def test_what_one_source_saw_of_the_end_has_happened() -> None:
    api = (pod("a", "aa", phase="Failed"), pod("b", phase="Running", terminating=True))
    kubelet = (pod("a", "bb", phase="Running"), pod("b", phase="Pending"))
    first, second = merge_pods("n", api, kubelet)
    assert (first.phase, [container.id for container in first.containers]) == (
        "Failed",
        ["aa", "bb"],
    )
    assert (second.phase, second.terminating) == ("Pending", True)


@pytest.mark.parametrize(
    ("api_fresh", "kubelet_fresh", "phase"),
    [(True, True, "Pending"), (True, False, "Running"), (False, False, "Pending")],
)
def test_a_kubelet_that_answers_no_more_does_not_hold_a_pods_phase(
    api_fresh: bool, kubelet_fresh: bool, phase: str
) -> None:
    api, kubelet = (pod("a", phase="Running"),), (pod("a", phase="Pending"),)
    (merged,) = merge_pods("n", api, kubelet, api_fresh=api_fresh, kubelet_fresh=kubelet_fresh)
    assert merged.phase == phase


def test_a_pod_of_which_both_say_the_same_stays_the_same_object() -> None:
    api = (pod("a", "aa", phase="Running"), pod("b", "bb", phase="Running"))
    kubelet = (pod("a", "aa", phase="Running"), pod("b", "bb", phase="Running", labels=()))
    merged = merge_pods("n", api, kubelet)
    assert [one is entries for one, entries in zip(merged, api, strict=True)] == [True, True]


pods = st.lists(
    st.builds(
        pod,
        st.sampled_from(["a", "b", "c", HASH]),
        node_name=st.sampled_from(["", "n", "other"]),
        phase=st.sampled_from(["", "Running", "Failed"]),
        annotations=st.sampled_from([(), ((MIRROR, HASH),), ((CONFIG, HASH),)]),
    ),
    max_size=4,
    unique_by=lambda one: one.uid,
).map(tuple)


@given(st.none() | pods, pods, st.booleans(), st.booleans())
def test_uids_are_unique_and_in_order_and_no_pod_of_a_live_api_server_is_lost(
    api: tuple[PodView, ...] | None,
    kubelet: tuple[PodView, ...],
    api_fresh: bool,
    kubelet_fresh: bool,
) -> None:
    merged = merge_pods("n", api, kubelet, api_fresh=api_fresh, kubelet_fresh=kubelet_fresh)
    assert uids(*merged) == sorted(set(uids(*merged)))
    names = {(one.namespace, one.name) for one in merged}
    mine = [one for one in api or () if one.node_name != "other"]
    assert all((one.namespace, one.name) in names for one in mine)


BODY = {
    "metadata": {
        "uid": "u",
        "name": "p",
        "namespace": "d",
        "resourceVersion": "9",
        "deletionTimestamp": "2026-01-02T03:04:05Z",
    },
    "spec": {"nodeName": "n", "hostNetwork": True},
    "status": {"phase": "Running", "qosClass": "BestEffort"},
}


def test_a_pod_has_its_phase_and_node() -> None:
    result = decode_pod(json.dumps(BODY).encode())
    assert result == PodView(
        uid="u",
        name="p",
        namespace="d",
        qos=KubeQos.BEST_EFFORT,
        phase="Running",
        terminating=True,
        host_network=True,
        node_name="n",
        wants=(),
        compute_request=ComputeRequest(),
        resources=(),
        resource_version="9",
    )


VOLUMES = [
    {"name": "data", "persistentVolumeClaim": {"claimName": "data-claim"}},
    {"name": "scratch", "csi": {"driver": "local"}},
    {"name": "own", "ephemeral": {"volumeClaimTemplate": {}}},
    {"name": "config", "configMap": {"name": "c"}},
]


def test_volumes_of_a_driver_are_read_where_an_annotation_limits_their_disks() -> None:
    body = {**BODY, "spec": {"volumes": VOLUMES}}
    assert decode_pod(json.dumps(body).encode()).volumes == ()
    annotations = {"koordinator.sh/blkioQOS": "{}"}
    body["metadata"] = {**BODY["metadata"], "annotations": annotations}  # type: ignore[dict-item]
    assert decode_pod(json.dumps(body).encode()).volumes == (
        PodVolume(name="data", claim="data-claim"),
        PodVolume(name="scratch"),
        PodVolume(name="own", claim="p-own"),
    )
    for wrong in (None, 7, [7], {"a": 1}):
        body["spec"] = {"volumes": wrong}
        assert decode_pod(json.dumps(body).encode()).volumes == ()


@pytest.mark.parametrize(
    ("owners", "expected"),
    [
        ([{"kind": "DaemonSet", "name": "d", "controller": True}], True),
        ([{"kind": "Other"}, {"kind": "DaemonSet", "controller": True}], True),
        ([{"kind": "DaemonSet", "controller": False}], False),
        ([{"kind": "DaemonSet"}], False),
        ([{"kind": "ReplicaSet", "name": "DaemonSet", "controller": True}], False),
        ([{"kind": 7, "name": "DaemonSet"}], False),
        ({"kind": "DaemonSet"}, False),
        (None, False),
    ],
)
def test_a_pod_is_of_a_daemon_set_if_that_is_its_controller(owners: object, expected: bool) -> None:
    metadata = {**BODY["metadata"], "ownerReferences": owners}  # type: ignore[dict-item]
    view = decode_pod(json.dumps({**BODY, "metadata": metadata}).encode())
    assert view.is_of_daemon_set is expected


def test_lists_that_go_wrote_as_null_are_empty() -> None:
    spec = {"containers": None, "initContainers": None, "priority": None}
    status = {"containerStatuses": None, "qosClass": ""}
    body = json.dumps({**BODY, "spec": spec, "status": status}).encode()
    assert decode_pod(body).qos is KubeQos.BEST_EFFORT


def test_parts_that_are_null_say_nothing() -> None:
    result = decode_pod(json.dumps({**BODY, "spec": None, "status": None}).encode())
    assert (result.name, result.node_name, result.phase) == ("p", "", "")
    assert result.qos is KubeQos.BEST_EFFORT


@pytest.mark.parametrize("resources", ['{"limits": 7}', '{"limits": {"cpu": []}}'])
def test_amounts_that_are_none_cost_the_pod_where_its_class_depends_on_them(resources: str) -> None:
    text = json.dumps({**BODY, "spec": {"containers": [{"name": "m", "resources": "?"}]}})
    data = text.replace('"?"', resources)
    assert decode_pod(data.encode()).qos is KubeQos.BEST_EFFORT
    with pytest.raises(ParseError):
        decode_pod(data.replace("BestEffort", "").encode())


def test_half_a_surrogate_pair_in_one_pod_costs_no_other() -> None:
    data = json.dumps({"kind": "PodList", "items": [BODY, {**BODY, "status": {"phase": "?"}}]})
    result, left_out = decode_pod_list(data.replace("?", "\\ud83d").encode())
    assert (len(result), left_out) == (1, 1)  # both have one uid


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (rb'"\ud800"', "\ufffd"),
        (rb'"\udc00\ud800"', "\ufffd\ufffd"),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\\ud800"', "\\ud800"),
        (rb'"\\\ud800"', "\\\ufffd"),
        (b'"\xff"', "\ufffd"),
    ],
)
def test_what_no_text_can_hold_is_replaced_as_go_does(data: bytes, text: str) -> None:
    assert json.loads(repair_json(data)) == text
