"""Watches: from a version, through selectors, with bookmarks, until 410."""

from __future__ import annotations

from tests.apiserver import ApiServer
from tests.unit.apiserver.client import DEVICES, NODE_METRICS, PODS, Client, device, metric, pod


def version_of(client: Client, path: str) -> str:
    version: str = client.get(path)[1]["metadata"]["resourceVersion"]
    return version


def test_a_watch_reports_changes_since_a_version(api: ApiServer, client: Client) -> None:
    version = version_of(client, DEVICES)
    api.put(device())
    api.put(device(count=2))
    last = api.get("devices", "node-a") or {}
    api.delete("devices", "node-a")
    watch = client.watch(DEVICES, resourceVersion=version)
    assert watch.types(2) == [("ADDED", "node-a"), ("MODIFIED", "node-a")]
    event = watch.next() or {}
    assert event["type"] == "DELETED"
    assert event["object"]["spec"] == last["spec"]
    deleted_at = int(event["object"]["metadata"]["resourceVersion"])
    assert deleted_at > int(last["metadata"]["resourceVersion"])
    watch.close()


def test_a_watch_without_a_version_begins_with_what_is_there(
    api: ApiServer, client: Client
) -> None:
    api.put(device())
    watch = client.watch(DEVICES)
    assert watch.types(1) == [("ADDED", "node-a")]
    api.put(device("node-b"))
    assert watch.types(1) == [("ADDED", "node-b")]
    watch.close()


def test_what_enters_and_leaves_a_selector_is_added_and_deleted(
    api: ApiServer, client: Client
) -> None:
    watch = client.watch(
        PODS, resourceVersion=version_of(client, PODS), fieldSelector="spec.nodeName=node-a"
    )
    api.put(pod("p", "node-b"))
    api.put(pod("p", "node-a"))
    api.put(pod("p", "node-a", a="b"))
    api.put(pod("p", "node-b", a="b"))
    assert watch.types(2) == [("ADDED", "p"), ("MODIFIED", "p")]
    event = watch.next() or {}
    assert event["type"] == "DELETED"
    assert event["object"]["spec"]["nodeName"] == "node-a"
    now = (api.get("pods", "p", "default") or {})["metadata"]["resourceVersion"]
    assert event["object"]["metadata"]["resourceVersion"] == now
    watch.close()


def test_bookmarks_carry_nothing_but_the_version() -> None:
    with ApiServer(bookmark_interval_s=0.05) as api:
        client = Client(api)
        query = {"resourceVersion": version_of(client, DEVICES)}
        watch = client.watch(DEVICES, allowWatchBookmarks="true", **query)
        api.put(metric())
        while True:
            event = watch.next() or {}
            assert event["type"] == "BOOKMARK"
            metadata = event["object"].pop("metadata")
            if metadata["resourceVersion"] != query["resourceVersion"]:
                break
        assert metadata == {
            "resourceVersion": version_of(client, NODE_METRICS),
            "creationTimestamp": None,
        }
        assert event["object"] == {
            "kind": "Device",
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        }
        watch.close()


def test_a_streamed_list_ends_with_a_bookmark_that_says_so(api: ApiServer, client: Client) -> None:
    api.put(device())
    watch = client.watch(
        DEVICES,
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
    )
    assert watch.types(1) == [("ADDED", "node-a")]
    event = watch.next() or {}
    assert event["type"] == "BOOKMARK"
    assert event["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    watch.close()
    assert client.watch(DEVICES, sendInitialEvents="true").status == 400


def test_a_version_that_is_too_old_is_an_error_in_the_stream(
    api: ApiServer, client: Client
) -> None:
    version = version_of(client, DEVICES)
    api.compact()
    watch = client.watch(DEVICES, resourceVersion=version)
    assert watch.status == 200
    event = watch.next() or {}
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert watch.next() is None


def test_a_version_that_is_not_reached_yet_is_waited_for_in_silence() -> None:
    with ApiServer(bookmark_interval_s=0.02) as api:
        client = Client(api)
        ahead = int(version_of(client, DEVICES)) + 2
        watch = client.watch(DEVICES, resourceVersion=ahead, allowWatchBookmarks="true")
        assert watch.status == 200
        api.put(device())
        api.put(device(count=2))
        api.put(device(count=3))
        event = watch.next() or {}
        while event["type"] == "BOOKMARK":
            assert int(event["object"]["metadata"]["resourceVersion"]) >= ahead
            event = watch.next() or {}
        assert len(event["object"]["spec"]["devices"]) == 3
        watch.close()


def test_an_open_watch_that_is_up_to_date_outlives_a_compaction(
    api: ApiServer, client: Client
) -> None:
    watch = client.watch(DEVICES, resourceVersion=version_of(client, DEVICES))
    api.wait_until(api.watches)
    api.compact()
    api.put(device())
    assert watch.types(1) == [("ADDED", "node-a")]
    watch.close()


def test_a_watch_ends_in_order(api: ApiServer, client: Client) -> None:
    watch = client.watch(DEVICES, timeoutSeconds=1, allowWatchBookmarks="true")
    assert watch.next() is None  # without a bookmark: this server's etcd reports no progress
    watch = client.watch(DEVICES)
    api.wait_until(api.watches)
    api.close_watches()
    assert watch.next() is None
    watch = client.watch(DEVICES)
    api.wait_until(api.watches)
    api.remove_crd("devices")
    assert watch.next() is None
    api.wait_until(lambda: not api.watches())


def test_a_watch_whose_client_left_is_forgotten(api: ApiServer, client: Client) -> None:
    watch = client.watch(DEVICES)
    api.wait_until(api.watches)
    watch.close()
    api.wait_until(lambda: not api.watches())


def test_a_watch_of_one_namespace_reports_no_other(api: ApiServer, client: Client) -> None:
    watch = client.watch("/api/v1/namespaces/default/pods")
    other = pod("q")
    other["metadata"]["namespace"] = "elsewhere"
    api.put(other)
    api.put(pod("p"))
    assert watch.types(1) == [("ADDED", "p")]
    watch.close()
