"""A list is decoded pod by pod, and says what it says when it is decoded whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.wire_formats.pod import PodListDecoder, _slices, decode_pod_list

BETWEEN = '},{"metadata":{'
hostile = st.sampled_from(["", "a", BETWEEN, '"items":[', "]}", '\\"', "\\", "\u2028", "é"])
texts = st.lists(hostile, max_size=4).map("".join)
uids = st.sampled_from(["a", "b", "c", "no uid"])


def pod(uid: str, note: str = "", **more: Any) -> dict[str, Any]:
    meta = {"name": f"p-{uid[:1]}", "uid": uid, "namespace": "d", "annotations": {"n": note}}
    return {"metadata": meta, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}, **more}


def listed(pods: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods, **more}


def as_go_writes_it(result: dict[str, Any]) -> bytes:
    return json.dumps(result, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def test_no_call_decodes_more_than_one_pod() -> None:
    data = as_go_writes_it(listed([pod("a"), pod("b"), pod("c")]))
    result = _slices(data)
    assert result is not None
    kind, slices = result
    assert kind == "PodList"
    assert [json.loads(bytes(one))["metadata"]["uid"] for one in slices] == ["a", "b", "c"]


@given(st.lists(st.builds(pod, uids, texts), max_size=4))
def test_slices_say_what_the_whole_says(pods: list[dict[str, Any]]) -> None:
    whole = json.dumps(listed(pods), indent=1).encode()
    assert _slices(whole) is None
    assert decode_pod_list(as_go_writes_it(listed(pods))) == decode_pod_list(whole)


@given(st.lists(st.lists(st.builds(pod, uids, texts), max_size=4), max_size=4))
def test_a_list_that_is_read_again_says_what_a_new_one_says(
    lists: list[list[dict[str, Any]]],
) -> None:
    decoder = PodListDecoder()
    for pods in lists:
        data = as_go_writes_it(listed(pods))
        assert decoder.decode(data) == decode_pod_list(data)


def test_pods_that_did_not_change_stay_the_same_objects() -> None:
    decoder = PodListDecoder()
    (first, other), _ = decoder.decode(as_go_writes_it(listed([pod("a"), pod("b")])))
    (again, changed), _ = decoder.decode(as_go_writes_it(listed([pod("a"), pod("b", "new")])))
    assert again is first
    assert (other.annotations, changed.annotations) == ((("n", ""),), (("n", "new"),))


@pytest.mark.parametrize(
    "more",
    [
        {"extra": [{"a": {}}, {"metadata": {"uid": "b"}}]},
        {"spec": {"containers": [{"name": "c"}, {"metadata": {"uid": "b"}, "name": "d"}]}},
        {"metadata": {"uid": 1}},
        {"status": 5},
    ],
)
def test_a_malformed_pod_affects_no_other(more: dict[str, Any]) -> None:
    data = as_go_writes_it(listed([pod("a", **more), pod("z")]))
    whole = json.dumps(json.loads(data), indent=1).encode()
    assert decode_pod_list(data) == decode_pod_list(whole)
    assert "z" in [one.uid for one in decode_pod_list(data)[0]]


@pytest.mark.parametrize("more", [{"kind": "NodeList"}, {"items": [pod("a")] * 4097}])
def test_what_is_no_list_of_pods_is_refused_in_slices_too(more: dict[str, Any]) -> None:
    with pytest.raises(ParseError):
        decode_pod_list(as_go_writes_it({**listed([pod("a")]), **more}))


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_list_that_was_cut_off_is_refused(cut: int) -> None:
    data = as_go_writes_it(listed([pod("a"), pod("b")]))
    with pytest.raises(ParseError):
        decode_pod_list(data.rstrip()[:-cut])
