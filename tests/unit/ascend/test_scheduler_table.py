"""The partition table of a super node, as the real scheduler reads partition tables."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.captures import SHARED, needs_shared
from tests.process.agent import ROOT, run_agent
from tests.unit.ascend.scheduler_table import INSUFFICIENT, UNSUPPORTED, NotPlaced, Table, place

PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"
POLICY = "node.koordinator.sh/gpu-partition-policy"
DECISIONS = SHARED / "oracle/deviceshare-decisions.json.xz"
WHOLE = ("nvidia.com/gpu", "koordinator.sh/gpu")
NOBODY: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def table() -> Table:
    """The partition table of the recorded super node."""
    host = ROOT / "fixtures" / "hosts" / "atlas-a3x16"
    result = run_agent("render", "device", "--host", str(host), "--node-name", "atlas-01")
    rows: Table = json.loads(yaml.safe_load(result.stdout)["metadata"]["annotations"][PARTITIONS])
    return rows


@pytest.mark.parametrize("count", range(2, 17, 2))
def test_a_job_of_every_even_number_of_dies_is_placed_on_whole_cards(
    table: Table, count: int
) -> None:
    assert place(table, count, NOBODY, NOBODY) == list(range(count))
    for failed_die in range(0, 16, 2):  # one card fails: all jobs but the largest still run
        if count < 16:
            minors = place(table, count, NOBODY, frozenset({failed_die}))
            assert {minor ^ 1 for minor in minors} == set(minors)
            assert failed_die not in minors


@pytest.mark.parametrize("count", [1, 3, 15])
def test_a_job_that_would_split_a_card_is_refused(table: Table, count: int) -> None:
    with pytest.raises(NotPlaced, match=UNSUPPORTED[8:]):
        place(table, count, NOBODY, NOBODY)


def test_blocks_stay_whole_while_jobs_come(table: Table) -> None:
    """A card in use breaks one aligned block; the next job takes one that is whole already."""
    used = frozenset({0, 1})
    assert place(table, 4, used, NOBODY) == [4, 5, 6, 7]
    used |= {4, 5, 6, 7}
    assert place(table, 8, used, NOBODY) == list(range(8, 16))
    used |= frozenset(range(8, 16))
    assert place(table, 2, used, NOBODY) == [2, 3]
    with pytest.raises(NotPlaced, match=INSUFFICIENT):
        place(table, 4, used, NOBODY)


def test_all_rows_of_a_size_have_one_score(table: Table) -> None:
    """Readers disagree on whether the lowest or the highest wins: with one none goes wrong."""
    scores = {size: {row["allocationScore"] for row in rows} for size, rows in table.items()}
    assert {len(score_set) for score_set in scores.values()} == {1}


@needs_shared
def test_the_reader_places_as_the_real_scheduler_did() -> None:
    outcomes: Counter[str] = Counter()
    for name, table, unhealthy, used, pod, result in _decisions():
        count = _whole_cards(pod)
        if count is None:
            continue
        try:
            minors: object = place(table, count, used, unhealthy)
        except NotPlaced as refused:
            minors = str(refused)
            assert not result["bound"], (name, pod["metadata"]["name"])
            assert str(minors) in result["message"], (name, pod["metadata"]["name"])
            outcomes["refused"] += 1
        else:
            allocated = [entry["minor"] for entry in result["device_allocated"]["gpu"]]
            assert minors == allocated, (name, pod["metadata"]["name"])
            outcomes["placed"] += 1
    assert outcomes["placed"] >= 13
    assert outcomes["refused"] >= 4


Decision = tuple[str, Table, frozenset[int], frozenset[int], Mapping[str, Any], Mapping[str, Any]]


def _decisions() -> Iterator[Decision]:
    """Yield each decision on a node whose table is honoured, with what was used before it."""
    nodes = json.loads(lzma.decompress(DECISIONS.read_bytes()))
    for name, node in nodes.items():
        meta = node["device"]["metadata"]
        if meta["labels"].get(POLICY) != "Honor" or PARTITIONS not in meta.get("annotations", {}):
            continue
        table = json.loads(meta["annotations"][PARTITIONS])
        devices = [
            device for device in node["device"]["spec"]["devices"] if device["type"] == "gpu"
        ]
        unhealthy = frozenset(device["minor"] for device in devices if not device["health"])
        pod_minors: dict[str, list[int]] = {}
        for step in node["steps"]:
            if step["op"] == "delete":
                pod_minors.pop(step["pod"], None)
                continue
            used = frozenset(minor for minors in pod_minors.values() for minor in minors)
            yield name, table, unhealthy, used, step["pod"], step["result"]
            allocations = (step["result"].get("device_allocated") or {}).get("gpu", ())
            pod_minors[step["pod"]["metadata"]["name"]] = [entry["minor"] for entry in allocations]


def _whole_cards(pod: Mapping[str, Any]) -> int | None:
    """Return the number of whole cards if a pod requests nothing else of devices."""
    if any("device" in key or "partition" in key for key in pod["metadata"].get("annotations", {})):
        return None
    amounts: dict[str, str] = {}
    for container in pod["spec"]["containers"]:
        for section in ("requests", "limits"):
            for key, value in (container["resources"].get(section) or {}).items():
                if key not in ("cpu", "memory"):
                    amounts[key] = str(value)
    if len(amounts) != 1 or not set(amounts) <= set(WHOLE):
        return None
    ((key, text),) = amounts.items()
    amount = int(text)
    if key == WHOLE[0]:
        return amount
    return amount // 100 if amount >= 100 and amount % 100 == 0 else None
