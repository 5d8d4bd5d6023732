from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.kubelet.pod_list_file import PodListFile, parse_pod_list
from agent.snapshot.pod import ContainerView, KubeQos
from agent.wire_formats.pod import MAX_PODS
from tests.captures import SHARED, needs_shared
from tests.cgroups import container_id

A = container_id(10)
JsonObject = dict[str, object]


def pod(uid: str = "u1", **changes: object) -> JsonObject:
    metadata: JsonObject = {
        "name": "web-0",
        "namespace": "shop",
        "uid": uid,
        "labels": {"koordinator.sh/qosClass": "LS"},
        "annotations": {"a": "b"},
        "creationTimestamp": "2026-01-02T03:04:05Z",
    }
    return {
        "metadata": metadata,
        "spec": {"nodeName": "n", "priority": 9500, "containers": [{"name": "main", "image": "i"}]},
        "status": {
            "qosClass": "Burstable",
            "containerStatuses": [{"name": "main", "containerID": f"containerd://{A}"}],
            "initContainerStatuses": [{"name": "init", "containerID": ""}],
        },
        **changes,
    }


def document(*items: object, kind: str = "PodList") -> bytes:
    return json.dumps({"kind": kind, "apiVersion": "v1", "items": items}).encode()


def test_a_pod_is_read_with_what_is_needed_of_it() -> None:
    (view,), left_out = parse_pod_list(document(pod()))
    assert left_out == 0
    assert (view.uid, view.name, view.namespace, view.priority) == ("u1", "web-0", "shop", 9500)
    assert view.qos is KubeQos.BURSTABLE
    assert view.label("koordinator.sh/qosClass") == "LS"
    assert view.annotations == (("a", "b"),)
    assert view.containers == (ContainerView(id=A, runtime="containerd", name="main", image="i"),)
    assert view.cgroup == ""


@pytest.mark.parametrize("kind", ["PodList", "List"])
def test_yaml_and_json_give_the_same(kind: str) -> None:
    data = document(pod(), pod("u2"), kind=kind)
    as_yaml = yaml.safe_dump(json.loads(data)).encode()
    assert parse_pod_list(as_yaml) == parse_pod_list(data)


def test_an_odd_pod_costs_itself_only() -> None:
    odd: list[object] = [
        None,
        {},
        pod(uid="../../etc"),
        pod(uid=""),
        pod(spec={"priority": "high"}),
        pod(metadata={"uid": "x", "name": "A B"}),
        pod(metadata={"uid": "x", "name": "x", "labels": {"a": 1}}),
        pod(metadata={"uid": "x", "name": "x", "annotations": {"a": "b" * 600_000}}),
    ]
    views, left_out = parse_pod_list(document(*odd, pod()))
    assert [view.uid for view in views] == ["u1"]
    assert left_out == len(odd)


def test_a_pod_without_status_has_the_class_of_its_resources() -> None:
    resources = {"limits": {"cpu": 1, "memory": "1Gi"}}
    spec = {"containers": [{"name": "main", "resources": resources}]}
    (view,), _ = parse_pod_list(document(pod(spec=spec, status={})))
    assert view.qos is KubeQos.GUARANTEED
    assert view.containers == ()


def test_a_scheme_that_no_runtime_has_is_left_out() -> None:
    statuses = [{"name": "main", "containerID": f'A"://{A}'}]
    (view,), _ = parse_pod_list(document(pod(status={"containerStatuses": statuses})))
    assert [(container.id, container.runtime) for container in view.containers] == [(A, "")]


def test_container_ids_that_are_none_are_left_out() -> None:
    statuses = [{"name": "x", "containerID": text} for text in ("", "docker://../x", "a/b", "://")]
    (view,), _ = parse_pod_list(document(pod(status={"containerStatuses": statuses})))
    assert view.containers == ()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="cut"),
        pytest.param(b'{"kind": "PodList"}', id="no items"),
        pytest.param(document(kind="NodeList"), id="another kind"),
        pytest.param(b"[" * 100_000, id="deep YAML"),
        pytest.param(b'{"items":' + b"[" * 100_000, id="deep JSON"),
        pytest.param(b"kind: PodList\nitems: [&a {}, *a]\n", id="YAML alias"),
        pytest.param(b"kind: !!python/object:os.system x\nitems: []\n", id="YAML object"),
        pytest.param(b"\xff\xfe\x00", id="not text"),
        pytest.param(document(*[{}] * (MAX_PODS + 1)), id="too many pods"),
    ],
)
def test_what_is_no_pod_list_is_refused_whole(data: bytes) -> None:
    with pytest.raises(ParseError):
        parse_pod_list(data)


@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise_anything_else(data: bytes) -> None:
    try:
        parse_pod_list(data)
    except ParseError:
        return


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(st.sampled_from(["metadata", "spec", "status"]), json_values)
def test_no_part_of_a_pod_makes_it_raise(part: str, value: object) -> None:
    views, left_out = parse_pod_list(document({**pod(), part: value}))
    assert len(views) + left_out == 1


@needs_shared
def test_the_pods_of_a_real_kubelet_are_all_read() -> None:
    oracle = json.loads((SHARED / "oracle" / "koordlet-cgroup-files.json").read_text())
    views, left_out = parse_pod_list(document(*oracle["pods"]))
    assert left_out == 0
    assert len(views) == len(oracle["pods"])
    assert all(view.containers for view in views)


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_bytes(document(pod()))
    read = PodListFile(str(path))
    first = read.read()
    assert read.read() is first
    path.write_bytes(document(pod(), pod("u2")))
    assert [view.uid for view in read.read()] == ["u1", "u2"]


def test_a_file_that_breaks_or_goes_keeps_the_last_pods_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_bytes(document(pod()))
    read = PodListFile(str(path))
    first = read.read()
    path.write_bytes(b"broken: [")
    assert read.read() == first
    assert "pods.json: bad pod list" in read.error
    os.unlink(path)
    assert read.read() == first
    assert read.error == f"{path}: No such file or directory"
    path.write_bytes(document())
    assert read.read() == ()
    assert read.error == ""


def test_each_trouble_with_the_file_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pods.json"
    read = PodListFile(str(path))
    for content in (None, document(pod()), b"broken: [", document(pod(), {"metadata": {}})):
        if content is not None:
            path.write_bytes(content)
        for _ in range(3):
            read.read()
    reports = [record.getMessage() for record in caplog.records]
    assert reports == ["pod_list_unusable", "malformed_pods"]
    assert (read.malformed_count, read.error) == (1, "")
