"""An API server that fails in every way, and an agent that lives through it.

What is asked of the agent each time: a change of the Node, which it learns by its watch, becomes a
change of its NodeResourceTopology, which it writes. So both ways are proven, reading and writing.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.apiserver import ApiServer, Fault
from tests.apiserver.access import AGENT
from tests.process.agent import EIGHT_CARDS, Agent
from tests.process.citizen import NODE, ROLES, citizen

RESERVATION = "node.koordinator.sh/reservation"
TOPOLOGIES = "noderesourcetopologies"
QUICK = {"XPU_AGENT_API__DEADLINE_S": "1", "XPU_AGENT_KUBELET__ENABLED": "false"}


class Life(NamedTuple):
    """A cluster and its agent."""

    api: ApiServer
    agent: Agent
    turns: Iterator[int]

    def change(self) -> str:
        """Reserve other CPUs than before; return which."""
        desired = {"reservedCPUs": str(next(self.turns) % 8)}
        node = self.api.get("Node", NODE)
        assert node is not None
        node["metadata"].setdefault("annotations", {})[RESERVATION] = json.dumps(desired)
        self.api.put(node)
        return json.dumps(desired, separators=(",", ":"))

    def follows(self, desired: str) -> None:
        self.agent.wait_until(lambda: self.published() == desired, f"{desired} is published")

    def published(self) -> Any:
        result = self.api.get("NodeResourceTopology", NODE) or {"metadata": {}}
        return result["metadata"].get("annotations", {}).get(RESERVATION)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    with (
        ApiServer(nodes=(NODE,), roles=ROLES) as api,
        citizen(api, tmp_path, "--host", str(EIGHT_CARDS), **QUICK) as agent,
    ):
        result = Life(api, agent, itertools.count())
        result.follows(result.change())
        yield result
        assert agent.end() == 0


WATCH = "watch"
FAULTS = {
    "slow": (Fault(delay_s=0.3, times=0),),
    "silent when asked to write": (Fault(resource=TOPOLOGIES, verb="patch", hang=True),),
    "a truncated line": (Fault(resource="nodes", verb=WATCH, stream="truncate"),),
    "a line that is no JSON": (Fault(resource="nodes", verb=WATCH, stream="garbage"),),
    "reset in mid-chunk": (Fault(resource="nodes", verb=WATCH, stream="truncate-reset"),),
    "reset": (Fault(verb="watch|patch", reset=True, times=3),),
    "an answer cut in two": (
        Fault(resource=TOPOLOGIES, verb="patch", cut_after_bytes=100, cut_by_reset=True),
    ),
    "a lost answer": (Fault(resource=TOPOLOGIES, verb="patch", lose_answer=True),),
    "every event twice": (Fault(resource="nodes", verb=WATCH, stream="duplicate", times=3),),
    "events in the wrong order": (Fault(resource="nodes", verb=WATCH, stream="reorder"),),
    "409": (Fault(resource=TOPOLOGIES, verb="patch", status=409, reason="Conflict", times=2),),
    "410 for a watch": (Fault(resource="nodes", verb=WATCH, status=410, reason="Expired"),),
    "410 in a stream, and for the list that follows": (
        Fault(resource="nodes", verb=WATCH, stream="gone"),
        Fault(resource="nodes", verb="list", status=410, reason="Expired"),
    ),
    "429": (Fault(verb="watch|patch", status=429, retry_after_s=1, times=4),),
    "503": (Fault(verb="watch|patch", status=503, retry_after_s=1, times=4),),
    "a page of some proxy": (Fault(verb="watch|patch", status=502, html=True, times=3),),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_change_comes_through_in_spite_of(life: Life, name: str) -> None:
    faults = [life.api.faults.add(fault) for fault in FAULTS[name]]
    life.api.close_watches()
    life.change()
    life.follows(life.change())
    assert all(life.api.faults.hits(fault) for fault in faults)
    assert life.agent.get("readyz") == (200, "ok\n")
    assert life.agent.get("livez") == (200, "ok\n")


def test_a_change_comes_through_in_spite_of_a_token_that_was_replaced(life: Life) -> None:
    life.api.rotate_token()
    life.api.close_watches()
    life.follows(life.change())


def test_a_server_of_another_authority_gets_no_request_and_is_named(life: Life) -> None:
    life.api.stop()
    change = life.change()
    life.api.clear_requests()
    life.api.start(wrong_ca=True)
    life.agent.wait_until(lambda: "certificate" in life.agent.check("api-server"), "it is said")
    assert life.agent.check("api-server").startswith("[-]")
    assert life.agent.get("readyz") == (200, "ok\n")
    assert life.api.requests() == []
    life.api.stop()
    life.api.start()
    life.follows(change)
    life.agent.wait_until(lambda: life.agent.check("api-server").startswith("[+]"), "it is well")


@pytest.mark.parametrize("skew_s", [7200.0, -7200.0])
def test_a_clock_that_is_hours_wrong_is_reported_and_has_no_other_effect(
    life: Life, skew_s: float
) -> None:
    life.api.faults.add(Fault(date_skew_s=skew_s, times=0))
    life.follows(life.change())
    assert "its clock is" in life.agent.check("api-server")
    metrics = life.agent.get("metrics")[1].splitlines()
    (reports,) = (line for line in metrics if line.startswith("xpu_agent_api_clock_skew_seconds{"))
    assert abs(float(reports.split()[-1]) - skew_s) < 60
    assert life.api.list("events") == []


def test_an_outage_that_lost_the_past_costs_one_list_of_each_kind(life: Life) -> None:
    life.api.stop()
    change = life.change()
    life.api.compact()
    life.api.clear_requests()
    life.api.start()
    life.follows(change)
    watched = {"nodes", "pods", "nodeslos", "nodemetrics", "devices", "noderesourcetopologies"}
    life.agent.wait_until(
        lambda: watched == {watch.resource for watch in life.api.watches()}, "all is watched again"
    )
    lists = [request.resource for request in life.api.requests(verb="list", user=AGENT)]
    assert sorted(lists) == sorted(set(lists))
