"""A merge that remembers tells the same as one that begins anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.kubelet import pod_merge as merging
from agent.kubelet.pod_merge import PodMerger, merge_pods
from agent.snapshot.pod import ContainerView, KubeQos, PodView

HASH = "0123456789abcdef0123456789abcdef"
UIDS = ("a", "b", "c", HASH)

pods = st.builds(
    PodView,
    uid=st.sampled_from(UIDS),
    qos=st.just(KubeQos.BURSTABLE),
    name=st.sampled_from(("p", "q")),
    namespace=st.just("d"),
    phase=st.sampled_from(("", "Pending", "Running", "Failed")),
    terminating=st.booleans(),
    node_name=st.sampled_from(("", "n", "n", "n", "other")),
    annotations=st.sampled_from(((), (), (("kubernetes.io/config.mirror", HASH),))),
    containers=st.sampled_from(((), (ContainerView(id="1"),), (ContainerView(id="2"),))),
)


def unique(pod_views: list[PodView]) -> tuple[PodView, ...]:
    """Return one pod a uid, as a view has them."""
    return tuple({pod.uid: pod for pod in pod_views}.values())


lists = st.lists(pods, max_size=5).map(unique)
# what follows another list is often that list with one pod changed
changes = st.tuples(st.integers(0, 4), pods)


def changed(now: tuple[PodView, ...], change: tuple[int, PodView]) -> tuple[PodView, ...]:
    """Return the list with one pod in the place of another's."""
    place, pod = change
    if place >= len(now):
        return now
    return unique([*now[:place], pod, *now[place + 1 :]])


@given(
    lists,
    st.lists(
        st.tuples(
            st.one_of(st.none(), lists, changes, changes, changes),
            st.one_of(st.none(), lists),
            st.booleans(),
            st.booleans(),
        ),
        max_size=8,
    ),
)
def test_it_returns_the_same_as_a_merge_from_nothing(
    first: tuple[PodView, ...],
    steps: list[tuple[object, tuple[PodView, ...] | None, bool, bool]],
) -> None:
    records, api, kubelet = PodMerger("n"), first, first
    for change, listed, api_fresh, kubelet_fresh in steps:
        if isinstance(change, tuple) and change and isinstance(change[0], int):
            api = changed(api, (change[0], change[1]))
        elif isinstance(change, tuple):
            api = change
        kubelet = kubelet if listed is None else listed
        reports = None if change is None and not api else api
        fresh = {"api_fresh": api_fresh, "kubelet_fresh": kubelet_fresh}
        result = records.merge(reports, kubelet, **fresh)
        deleted = frozenset(records.deleted)
        assert result == merge_pods("n", reports, kubelet, deleted=deleted, **fresh)


def test_an_api_server_without_an_answer_differs_from_one_without_pods() -> None:
    listed = (PodView(uid="a", qos=KubeQos.BURSTABLE, name="a", node_name="n"),)
    pod_merger = PodMerger("n")
    assert pod_merger.merge((), listed, kubelet_fresh=False) == ()
    assert pod_merger.merge(None, listed, kubelet_fresh=False) == listed


def test_unchanged_pods_stay_the_same_objects() -> None:
    one = tuple(PodView(uid=uid, qos=KubeQos.BURSTABLE, name=uid, node_name="n") for uid in "abc")
    listed = tuple(
        PodView(uid=uid, qos=KubeQos.BURSTABLE, name=uid, phase="Running", node_name="n")
        for uid in "abc"
    )
    pod_merger = PodMerger("n")
    before = pod_merger.merge(one, listed)
    other = PodView(uid="b", qos=KubeQos.BURSTABLE, name="b", priority=5, node_name="n")
    after = pod_merger.merge((one[0], other, one[2]), listed)
    assert [a is b for a, b in zip(before, after, strict=True)] == [True, False, True]
    assert (after[1].priority, after[1].phase) == (5, "Running")


def test_a_pod_that_the_api_server_deleted_is_gone_while_the_kubelets_list_has_it_still() -> None:
    one, other, new = (
        PodView(uid=uid, qos=KubeQos.BURSTABLE, name=uid, phase="Running", node_name="n")
        for uid in "abc"
    )
    pod_merger = PodMerger("n")
    pod_merger.merge((one, other), (one, other))
    # the kubelet's watch is ahead of ours with a new pod: nobody deleted that one
    assert pod_merger.merge((other,), (one, other, new)) == (other, new)
    assert pod_merger.deleted == ("a",)
    assert pod_merger.merge((other,), (one, other, new), api_fresh=False) == (other, new)
    assert pod_merger.merge(None, (one, other)) == (other,)


def test_a_static_pod_outlives_its_mirror() -> None:
    mark = (("kubernetes.io/config.hash", HASH),)
    static = PodView(uid=HASH, qos=KubeQos.BURSTABLE, name="s", annotations=mark, node_name="n")
    mirror = PodView(uid="m", qos=KubeQos.BURSTABLE, name="s", annotations=mark, node_name="n")
    pod_merger = PodMerger("n")
    assert [pod.uid for pod in pod_merger.merge((mirror,), (static,))] == [HASH]
    assert [pod.uid for pod in pod_merger.merge((), (static,))] == [HASH]


def test_deleted_pods_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MAX_DELETED", 2)
    pod_merger = PodMerger("n")
    for uid in "abcd":
        pod_merger.merge((PodView(uid=uid, qos=KubeQos.BURSTABLE, name=uid),), ())
    assert pod_merger.deleted == ("b", "c")


def of_manifest(uid: str, **changes: object) -> PodView:
    """A pod as the kubelet lists it, whose uid a manifest on the node may have set."""
    pod = PodView(uid=uid, qos=KubeQos.BURSTABLE, name="s", namespace="d", node_name="n")
    return replace(pod, **changes)


OWN_UID = "7712555c-ce62-454a-9e18-9ff0217b8941"
OF_FILE = (("kubernetes.io/config.hash", OWN_UID), ("kubernetes.io/config.source", "file"))
MIRROR = (("kubernetes.io/config.mirror", OWN_UID),)


def test_a_static_pod_whose_manifest_has_a_uid_is_one_pod_with_its_mirror() -> None:
    static = of_manifest(OWN_UID, annotations=OF_FILE, phase="Running")
    mirror = of_manifest("m", annotations=(*MIRROR, ("key", "new")))
    (pod,) = PodMerger("n").merge((mirror,), (static,))
    assert (pod.uid, pod.phase, pod.annotation("key")) == (OWN_UID, "Running", "new")


@pytest.mark.parametrize(
    ("listed", "changes"),
    [
        ((), {}),  # the kubelet does not list it: anybody may name a uid
        ((of_manifest(OWN_UID),), {}),  # a pod of the API server, which the other one names
        ((of_manifest(OWN_UID, annotations=OF_FILE),), {"name": "other"}),
        ((of_manifest(OWN_UID, annotations=OF_FILE),), {"namespace": "other"}),
    ],
)
def test_a_pod_gets_no_uid_of_another_pod_by_naming_it(
    listed: tuple[PodView, ...], changes: dict[str, object]
) -> None:
    impostor = of_manifest("m", annotations=MIRROR, **changes)
    names = {pod.uid: pod.name for pod in PodMerger("n").merge((impostor,), listed)}
    assert names["m"] == impostor.name
    assert names.get(OWN_UID, "s") == "s"
