"""Lists: pages, selectors, versions, and tokens that grow too old."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apiserver import ApiServer
from tests.unit.apiserver.client import DEVICES, PODS, Client, device, pod


def names(body: Any) -> list[str]:
    return [item["metadata"]["name"] for item in body["items"]]


@pytest.fixture(autouse=True)
def _pods(api: ApiServer) -> None:
    for index in range(5):
        api.put(pod(f"p{index}", "node-a" if index else "node-b", app=f"a{index % 2}"))


def test_pages_are_of_one_version(api: ApiServer, client: Client) -> None:
    first = client.get(PODS, limit=2)[1]
    assert names(first) == ["p0", "p1"]
    assert first["metadata"]["remainingItemCount"] == 3
    api.delete("pods", "p2", "default")
    api.put(pod("p9"))
    second = client.get(PODS, limit=2, **{"continue": first["metadata"]["continue"]})[1]
    assert names(second) == ["p2", "p3"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    third = client.get(PODS, limit=2, **{"continue": second["metadata"]["continue"]})[1]
    assert names(third) == ["p4"]
    assert "continue" not in third["metadata"]
    assert names(client.get(PODS)[1]) == ["p0", "p1", "p3", "p4", "p9"]


def test_a_token_that_is_too_old_is_410_with_one_to_go_on_inconsistently(
    api: ApiServer, client: Client
) -> None:
    token = client.get(PODS, limit=2)[1]["metadata"]["continue"]
    api.compact()
    status, body = client.get(PODS, limit=2, **{"continue": token})
    assert (status, body["reason"]) == (410, "Expired")
    api.put(pod("p9"))
    rest = client.get(PODS, **{"continue": body["metadata"]["continue"]})[1]
    assert names(rest) == ["p2", "p3", "p4", "p9"]
    assert client.get(PODS, **{"continue": "nonsense"})[0] == 400


def test_a_list_from_the_cache_is_never_cut(api: ApiServer, client: Client) -> None:
    assert len(names(client.get(PODS, limit=2, resourceVersion=0)[1])) == 5
    api.app.pages_from_cache = True
    assert len(names(client.get(PODS, limit=2, resourceVersion=0)[1])) == 2


def test_a_list_may_be_of_an_exact_version(api: ApiServer, client: Client) -> None:
    version = client.get(PODS)[1]["metadata"]["resourceVersion"]
    api.delete("pods", "p0", "default")
    query = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
    assert names(client.get(PODS, **query)[1]) == ["p0", "p1", "p2", "p3", "p4"]
    api.compact()
    assert client.get(PODS, **query)[0] == 410
    ahead = client.get(PODS, resourceVersion="99999999")[1]
    assert (ahead["code"], ahead["reason"]) == (504, "Timeout")
    assert ahead["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert client.get(PODS, resourceVersion="x")[0] == 400


def test_a_version_is_a_minimum_unless_pages_are_requested(api: ApiServer, client: Client) -> None:
    version = client.get(PODS)[1]["metadata"]["resourceVersion"]
    api.delete("pods", "p0", "default")
    assert len(names(client.get(PODS, resourceVersion=version)[1])) == 4
    assert len(names(client.get(PODS, resourceVersion=version, limit=500)[1])) == 5
    api.compact()
    assert len(names(client.get(PODS, resourceVersion=version)[1])) == 4
    assert client.get(PODS, resourceVersion=version, limit=500)[0] == 410


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"fieldSelector": "spec.nodeName=node-a"}, ["p1", "p2", "p3", "p4"]),
        ({"fieldSelector": "spec.nodeName!=node-a"}, ["p0"]),
        ({"fieldSelector": "metadata.name=p3,spec.nodeName=node-a"}, ["p3"]),
        ({"labelSelector": "app=a1"}, ["p1", "p3"]),
        ({"labelSelector": "app in (a1, x)"}, ["p1", "p3"]),
        ({"labelSelector": "app notin (a1),app"}, ["p0", "p2", "p4"]),
        ({"labelSelector": "!app"}, []),
        ({"labelSelector": "app!=a1", "fieldSelector": "spec.nodeName=node-b"}, ["p0"]),
    ],
)
def test_selectors(client: Client, query: dict[str, str], expected: list[str]) -> None:
    assert names(client.get(PODS, **query)[1]) == expected


def test_a_field_that_cannot_be_selected_by_is_a_bad_request(client: Client) -> None:
    status, body = client.get(DEVICES, fieldSelector="spec.devices=1")
    assert status == 400
    assert "field label not supported" in body["message"]


def test_items_of_built_in_lists_do_not_say_what_they_are(api: ApiServer, client: Client) -> None:
    api.put(device())
    assert "kind" not in client.get(PODS)[1]["items"][0]
    assert client.get(DEVICES)[1]["items"][0]["kind"] == "Device"


def test_a_large_list_is_compressed_for_clients_that_accept_it(
    api: ApiServer, client: Client
) -> None:
    api.put(device(count=3000))
    with client.open("GET", DEVICES) as answer:
        assert answer.headers.get("Content-Encoding") is None
    with client.open("GET", DEVICES, headers={"Accept-Encoding": "gzip"}) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
