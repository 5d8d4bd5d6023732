from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.recording.tree import TreeFiles
from agent.snapshot.inventory import DeviceSample, ProcessSample
from agent.snapshot.pod import ContainerView, KubeQos, PodView
from agent.usage.monitor import PodJoiner, parse_process_cgroup, process_owners
from tests.cgroups import container_id

A, B = container_id(10), container_id(11)
HASH = "0123456789abcdef" * 2


def seen(uid: str, *containers: str) -> PodView:
    return PodView(
        uid=uid,
        qos=KubeQos.GUARANTEED,
        cgroup=f"/kubepods/pod{uid}",
        containers=tuple(ContainerView(id=c, cgroup=f"/kubepods/pod{uid}/{c}") for c in containers),
    )


def listed(uid: str, **annotations: str) -> PodView:
    pairs = tuple((f"kubernetes.io/config.{key}", value) for key, value in annotations.items())
    return PodView(
        uid=uid,
        qos=KubeQos.BURSTABLE,
        name=f"pod-{uid}",
        namespace="n",
        annotations=pairs,
        containers=(ContainerView(id=A, name="main", image="i"),),
    )


def test_a_running_and_listed_pod_has_names_and_cgroups() -> None:
    (pod,) = PodJoiner().join([seen("u", A)], [listed("u")])
    assert (pod.name, pod.cgroup, pod.qos) == ("pod-u", "/kubepods/podu", KubeQos.GUARANTEED)
    assert pod.containers == (
        ContainerView(id=A, name="main", image="i", cgroup=f"/kubepods/podu/{A}"),
    )


def test_a_container_that_the_list_lacks_stays() -> None:
    (pod,) = PodJoiner().join([seen("u", B)], [listed("u")])
    assert [(c.name, bool(c.cgroup)) for c in pod.containers] == [("main", False), ("", True)]


def test_pods_of_one_source_only_stay() -> None:
    pods = PodJoiner().join([seen("b")], [listed("a")])
    assert [(pod.uid, pod.name, bool(pod.cgroup)) for pod in pods] == [
        ("a", "pod-a", False),
        ("b", "", True),
    ]


def test_only_a_pod_of_which_one_side_changed_is_another_object() -> None:
    joiner, running, pods = PodJoiner(), [seen("a"), seen("b", A)], [listed("a"), listed("b")]
    first, second = joiner.join(running, pods)
    again, changed = joiner.join(running, [pods[0], listed("b", hash=HASH)])
    assert again is first
    assert changed != second
    assert joiner.join([seen("a", A)], pods[:1])[0].containers[0].cgroup


@pytest.mark.parametrize("key", ["mirror", "hash"])
def test_a_static_pod_is_joined_by_the_hash_that_names_its_cgroup(key: str) -> None:
    (pod,) = PodJoiner().join([seen(HASH, A)], [listed("mirror-uid", **{key: HASH})])
    assert (pod.uid, pod.name) == (HASH, "pod-mirror-uid")


@pytest.mark.parametrize("uid", [HASH, "8f1c4b1e-0000-4000-8000-00000000000a"])
def test_an_annotation_does_not_take_another_pods_place(uid: str) -> None:
    pods = PodJoiner().join([seen(uid), seen("liar")], [listed("liar", hash=uid), listed(uid)])
    assert {pod.uid: pod.name for pod in pods} == {uid: f"pod-{uid}", "liar": "pod-liar"}


def test_an_annotation_does_not_name_a_pod_that_is_not_listed_yet() -> None:
    uid = "8f1c4b1e-0000-4000-8000-00000000000a"
    pods = PodJoiner().join([seen(uid)], [listed("liar", mirror=uid)])
    assert {pod.uid: pod.name for pod in pods} == {uid: "", "liar": "pod-liar"}


@pytest.mark.parametrize("names", [("etcd", "liar"), ("liar", "etcd")])
def test_of_two_pods_that_claim_one_static_pod_none_is_believed(names: tuple[str, ...]) -> None:
    pods = PodJoiner().join([seen(HASH, A)], [listed(name, hash=HASH) for name in names])
    assert [(pod.uid, pod.name) for pod in pods if pod.cgroup] == [(HASH, "")]


def test_processes_of_a_device_have_owners_and_those_that_ended_have_none() -> None:
    host = TreeFiles.from_entries(
        {
            "/proc/1/cgroup": b"5:memory:/kubepods/podu/" + A.encode() + b"\n1:name=systemd:/\n",
            "/proc/2/cgroup": b"0::/user.slice\n",
        }
    )
    sample = DeviceSample(key="d", processes=tuple(ProcessSample(pid=i) for i in (1, 2, 3)))
    assert process_owners(host, [sample]) == {1: ("u", A)}


@given(st.binary(max_size=200))
def test_no_bytes_make_the_owner_raise(data: bytes) -> None:
    parse_process_cgroup(data)
