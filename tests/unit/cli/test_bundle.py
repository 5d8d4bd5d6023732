"""What leaves a node in a bundle: names that were replaced, and nothing that nobody asked for."""

from __future__ import annotations

import json
from ipaddress import IPv6Address

import pytest

from agent.cli.bundle import drop_unread_keys, identifying_names
from agent.recording.pseudonyms import RecordingContents, pseudonymise_all
from agent.recording.tree import TreeEntry, TreeFiles

SECRET = "hunter2"
SNAPSHOT = {
    "node": {"name": "worker-17.example.com", "source": "this machine"},
    "parts": {"pods": {"value": [{"name": "train-7", "namespace": "team-blue", "uid": "u"}]}},
    "containers": {
        "runtime": {
            "value": {
                "sandboxes": {
                    "id": {
                        "namespace": "team-blue",
                        "name": "train-7",
                        "labels": [["app", SECRET], ["koordinator.sh/qosClass", "LSR"]],
                        "annotations": [
                            ["kubectl.kubernetes.io/last-applied-configuration", SECRET],
                            ["scheduling.koordinator.sh/device-allocated", "{}"],
                        ],
                    }
                }
            }
        },
        "proof": {"value": {"containers": {"c": {"namespace": "other-team", "pod": "job-1"}}}},
    },
    "devices": [{"labels": [["fabric", "a"]]}],
}


def test_names_are_those_of_nodes_pods_and_namespaces() -> None:
    names = {"worker-17.example.com", "train-7", "team-blue", "other-team", "job-1"}
    assert set(identifying_names(SNAPSHOT)) == names


def test_of_pods_only_the_keys_that_the_agent_reads_are_shown() -> None:
    shown = drop_unread_keys(SNAPSHOT)
    text = json.dumps(shown)
    assert SECRET not in text
    assert "device-allocated" in text
    assert "LSR" in text
    assert '[["fabric", "a"]]' in text  # of a device, not of a pod


def test_texts_have_the_same_other_names_as_the_recording() -> None:
    entries: dict[str, TreeEntry] = {
        "/proc/sys/kernel/hostname": b"worker-17\n",
        "/sys/class/net/eth0/address": b"0c:42:a1:47:2a:4e\n",
    }
    texts = {
        "snapshot.json": json.dumps(SNAPSHOT).encode(),
        "device.yaml": b"id: GPU-5f2e8a10-1234-4abc-9def-0123456789ab\nserial: '1320921012345'\n",
        "checks.json": json.dumps({"facts": [["serial", "1320921012345"]]}).encode(),
        "events.json": b"dial https://10.20.30.40:6443 from 127.0.0.1, driver 570.124.06 "
        b"vbios 96.00.89.00.01 on worker-17 by 0c:42:a1:47:2a:4e of team-blue/train-7",
    }
    names = frozenset(identifying_names(SNAPSHOT))
    originals = RecordingContents(
        tree=TreeFiles.from_entries(entries), tapes={}, texts=texts, names=names
    )
    other = pseudonymise_all(originals, b"salt")
    reports = b"\n".join(other.texts.values())
    for word in (
        *("worker-17", "train-7", "team-blue", "other-team", "job-1"),
        *("5f2e8a10", "1320921012345", "10.20.30.40", "0c:42:a1"),
    ):
        assert word.encode() not in reports, word
    for records in (b"127.0.0.1", b"570.124.06", b"96.00.89.00.01"):
        assert records in other.texts["events.json"]
    host = other.tree.read("/proc/sys/kernel/hostname").strip()
    assert host in other.texts["events.json"]
    address = other.tree.read("/sys/class/net/eth0/address").strip()
    assert address in other.texts["events.json"]
    json.loads(other.texts["snapshot.json"])


def test_a_name_that_is_also_the_name_of_a_field_breaks_no_json() -> None:
    texts = {"a.json": b'{"source": "gpus", "devices": {"gpus": 1}, "namespace": "devices"}'}
    names = frozenset({"devices", "gpus", "source"})
    other = pseudonymise_all(
        RecordingContents(tree=TreeFiles.from_entries({}), tapes={}, texts=texts, names=names),
        b"salt",
    )
    assert json.loads(other.texts["a.json"]).keys() == {"source", "devices", "namespace"}


def replaced(text: str) -> str:
    """Return a text of a bundle after its names were replaced."""
    originals = RecordingContents(
        tree=TreeFiles.from_entries({}), tapes={}, texts={"a": text.encode()}
    )
    return pseudonymise_all(originals, b"salt").texts["a"].decode()


@pytest.mark.parametrize(
    ("before", "address", "after"),
    [
        ("dial tcp [", "2001:db8:12:34::5678", "]:6443: refused"),
        ('{"ip": "', "fd12:3456:789a:1::1", '"}'),
        ("10 events of ", "2a02:26f0:1:2:3:4:5:6", "."),
        ("", "2a02:26f0::9", ": no route"),
        ("from ", "fe80::a00:27ff:fe12:3456", "%eth0"),
        ("in ", "fd12:3456:789a:1::", "/64"),
    ],
)
def test_short_forms_of_ipv6_addresses_are_replaced(before: str, address: str, after: str) -> None:
    text = replaced(f"{before}{address}{after}")
    assert text.startswith(before)
    assert text.endswith(after)
    other = text[len(before) : -len(after)]
    assert other != address
    assert IPv6Address(other).is_link_local == IPv6Address(address).is_link_local
    assert replaced(f"{address} {address}") == f"{other} {other}"


@pytest.mark.parametrize(
    "text",
    [
        *("::1", "::", "12:30:45", "0000:3b:00.0", "c 195:255", "GPU-1::3", "std::string x::y"),
        *("2001:db8::1::2", "1:2:3", "a:b:c:d", "00:00:00:00:00:00"),
    ],
)
def test_what_is_no_ipv6_address_of_a_network_stays(text: str) -> None:
    assert replaced(text) == text
