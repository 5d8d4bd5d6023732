from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.model.cluster.facts import ClusterFacts
from agent.model.grant.checked import GrantsView, PodGrant
from agent.model.grant.granted import MEMORY, RATIO, Grant
from agent.model.grant.host import HostMeans
from agent.model.grant.means import MeansView
from agent.model.part import Part
from agent.model.runtime.seen import RuntimeView, SandboxSeen
from agent.model.runtime.slices import SliceWish
from agent.slicing.wanted import living, wishes
from tests.unit.slicing.scene import MLU, NPU, PART, TEMPLATE, WHOLE, node, pod


def test_a_template_and_a_part_of_a_card_are_wished_for_and_a_whole_card_is_not() -> None:
    found = wishes(node(("b", TEMPLATE), ("a", PART), ("c", WHOLE)))
    assert found == {
        "ascend": (SliceWish(pod="b", device=NPU.key, template="vir05_1c_16g"),),
        "cambricon": (SliceWish(pod="a", device=MLU.key, core_percent=50, memory_bytes=1 << 30),),
    }


def test_a_part_of_a_cards_memory_is_a_part_of_the_card() -> None:
    memory = replace(PART, resources=((MEMORY, 1 << 30), (RATIO, 6)))
    (wish,) = wishes(node(("a", memory)))["cambricon"]
    assert (wish.core_percent, wish.memory_bytes) == (None, 1 << 30)


def test_a_refused_grant_wishes_for_nothing() -> None:
    refused = PodGrant(uid="a", grant=Grant(devices=(PART,)), refusal="DeviceConflict")
    snapshot = replace(node(), grants=Part(GrantsView(pods={"a": refused}), 0.0))
    assert wishes(snapshot) == {}


def test_a_device_that_is_not_here_is_not_wished_for() -> None:
    assert wishes(node(("a", replace(PART, id="MLU-9")))) == {}


@pytest.mark.parametrize("by", ["the pod's class", "the node's default"])
def test_where_the_runtime_cuts_itself_nothing_is_wished_for(by: str) -> None:
    snapshot = node(("a", TEMPLATE))
    if by == "the pod's class":
        box = SandboxSeen(id="s", uid="a", runtime_handler="ascend")
        snapshot = replace(snapshot, runtime=Part(RuntimeView(sandboxes={"s": box}), 0.0))
    else:
        means = MeansView(vendors={"ascend": HostMeans(default_handler="ascend-docker-runtime")})
        snapshot = replace(snapshot, means=Part(means, 0.0))
    assert wishes(snapshot) == {}


def test_pods_live_that_are_listed_and_not_over_or_have_a_sandbox_or_a_cgroup() -> None:
    boxes = {
        "s": SandboxSeen(id="s", uid="boxed"),
        "t": SandboxSeen(id="t", uid="stopped", stopped=True),
    }
    snapshot = replace(
        node(pods=(pod("listed"), pod("over", "Succeeded"))),
        runtime=Part(RuntimeView(sandboxes=boxes), 0.0),
        pods=Part((pod("grouped"),), 0.0),
    )
    assert living(snapshot) == frozenset({"listed", "boxed", "grouped"})


@pytest.mark.parametrize(
    ("cluster", "runtime"),
    [
        (ClusterFacts(clustered=True), RuntimeView(state="synchronized")),
        (ClusterFacts(), RuntimeView(state="registered")),
        (ClusterFacts(), RuntimeView()),
    ],
)
def test_without_a_list_nobody_knows_who_is_gone(
    cluster: ClusterFacts, runtime: RuntimeView
) -> None:
    snapshot = replace(node(), cluster=cluster, runtime=Part(runtime, 0.0))
    assert living(snapshot) is None


def test_without_a_cluster_the_runtime_knows() -> None:
    runtime = RuntimeView(state="synchronized")
    snapshot = replace(node(), cluster=ClusterFacts(), runtime=Part(runtime, 0.0))
    assert living(snapshot) == frozenset()
