from __future__ import annotations

from pathlib import Path

import pytest

from agent.snapshot.device import DeviceLink
from plugins.vendors.nvidia.discovery.nvlink import (
    CardLinks,
    LinkEnd,
    NvlinkFabric,
    link_matrix,
    node_clique,
    relation_name,
)
from tests.fault.nvml_stub import Stub, gpu, on_tree
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
GPUS = tuple(gpu(i, bus) for i, bus in enumerate(BUSES))
A, B, C = "0000:23:00.0", "0000:24:00.0", "0000:53:00.0"
GPU, SWITCH, UNKNOWN = 0, 2, 255
UUID = bytes.fromhex("00112233445566778899aabbccddeeff")
READY = NvlinkFabric(state=3)


def direct(remote: str, count: int, first: int = 0) -> tuple[LinkEnd, ...]:
    return tuple(
        LinkEnd(number=first + n, is_active=True, kind=GPU, remote=remote) for n in range(count)
    )


def switched(count: int, kind: int = SWITCH, fabric: NvlinkFabric | None = None) -> CardLinks:
    ends = tuple(LinkEnd(number=n, is_active=True, kind=kind) for n in range(count))
    return CardLinks(ends=ends, fabric=fabric)


def test_cards_joined_directly_are_counted() -> None:
    cards = {A: CardLinks(ends=direct(B, 4)), B: CardLinks(ends=direct(A, 4)), C: CardLinks()}
    assert link_matrix(cards) == ((DeviceLink(a=A, b=B, type="NVLink", count=4),), ())


def test_two_sides_that_disagree_are_taken_by_the_smaller_count_v26() -> None:
    links, problems = link_matrix(
        {A: CardLinks(ends=direct(B, 4)), B: CardLinks(ends=direct(A, 3))}
    )
    assert [(link.count, link.type) for link in links] == [(3, "NVLink")]
    assert [p.reason for p in problems] == ["NVLinkAsymmetric"]


def test_cards_behind_switches_have_the_links_of_the_poorer() -> None:
    links, problems = link_matrix({A: switched(18), B: switched(12), C: switched(18)})
    assert [(link.a, link.b, link.count) for link in links] == [(A, B, 12), (A, C, 18), (B, C, 12)]
    assert {link.type for link in links} == {"NVSwitch"}
    assert problems == ()


@pytest.mark.parametrize(
    ("fabric", "count", "reasons"),
    [
        pytest.param(None, 0, [], id="no-fabric-known"),
        pytest.param(READY, 18, [], id="completed"),
        pytest.param(NvlinkFabric(state=2), 0, ["FabricNotReady"] * 2, id="in-progress"),
        pytest.param(NvlinkFabric(state=3, status=999), 0, ["FabricError"] * 2, id="failed"),
    ],
)
def test_unknown_remotes_count_as_switches_behind_a_completed_fabric(
    fabric: NvlinkFabric | None, count: int, reasons: list[str]
) -> None:
    links, problems = link_matrix(
        {A: switched(18, UNKNOWN, fabric), B: switched(18, UNKNOWN, fabric)}
    )
    assert sum(link.count for link in links) == count
    assert [p.reason for p in problems] == reasons


def test_a_fabric_of_one_node_has_links_and_no_clique_v27() -> None:
    cards = {key: switched(18, SWITCH, READY) for key in (A, B)}
    assert [link.count for link in link_matrix(cards)[0]] == [18]
    assert node_clique(cards) is None


def test_a_clique_is_named_by_uuid_and_number_v28() -> None:
    fabric = NvlinkFabric(state=3, cluster=UUID, clique=7)
    cards = {key: switched(18, SWITCH, fabric) for key in (A, B)}
    assert node_clique(cards) == "00112233-4455-6677-8899-aabbccddeeff.7"


def test_cards_of_two_cliques_share_neither_links_nor_a_name_v29() -> None:
    one, two = (NvlinkFabric(state=3, cluster=UUID, clique=n) for n in (1, 2))
    cards = {A: switched(18, SWITCH, one), B: switched(18, SWITCH, two)}
    links, problems = link_matrix(cards)
    assert (links, node_clique(cards)) == ((), None)
    assert [p.reason for p in problems] == ["CliqueMismatch"]


@pytest.mark.parametrize(
    ("links", "ancestor", "relation"),
    [
        pytest.param(0, 30, "PHB", id="V30"),
        pytest.param(12, None, "NV12", id="V30-nvlink"),
        pytest.param(0, None, None, id="unknown"),
    ],
)
def test_a_pair_is_named_as_in_a_topology_table(
    links: int, ancestor: int | None, relation: str | None | None
) -> None:
    assert relation_name(links, ancestor) == relation


def test_a_link_down_among_active_ones_is_reported_with_its_number() -> None:
    ends = (*direct(B, 2), LinkEnd(number=5, is_active=False))
    _, problems = link_matrix({A: CardLinks(ends=ends), B: CardLinks(ends=direct(A, 2))})
    assert [(p.reason, p.message) for p in problems] == [
        ("NVLinkDown", f"{A}: links 5 are inactive")
    ]


def test_a_card_whose_links_are_all_down_is_not_reported_link_by_link() -> None:
    assert link_matrix({A: CardLinks(ends=(LinkEnd(number=0, is_active=False),))}) == ((), ())


def test_links_to_a_card_that_is_lost_are_left_out() -> None:
    assert link_matrix({A: CardLinks(ends=direct(B, 4))}) == ((), ())


def test_the_fabric_is_read_in_a_version_that_the_driver_supports(
    tmp_path: Path, tree: Path
) -> None:
    lines = [f"fabric {i} state=3 uuid=00112233445566778899aabbccddeeff clique=7" for i in range(8)]
    for level in (535, 570):
        stub = Stub(tmp_path, level)
        stub.play(SYSTEM, *GPUS, *lines)
        with on_tree(stub, tree) as child:
            facts = dict(child.discover().facts)
        assert facts["clique"] == "00112233-4455-6677-8899-aabbccddeeff.7"


def test_links_through_switches_become_a_matrix(stub: Stub, tree: Path) -> None:
    lines = [f"link {i} {n} state=1 type=2" for i in range(8) for n in range(18)]
    fields = [f"field {i} 91 u32 18" for i in range(8)]
    stub.play(SYSTEM, *GPUS, *lines, *fields, "link 6 4 state=0")
    with on_tree(stub, tree) as child:
        inventory = child.discover()
    assert len(inventory.links) == 28
    assert {(k.type, k.count) for k in inventory.links if BUSES[6] not in (k.a, k.b)} == {
        ("NVSwitch", 18)
    }
    assert {k.count for k in inventory.links if BUSES[6] in (k.a, k.b)} == {17}
    assert [p.reason for p in inventory.problems] == ["NVLinkDown"]
    assert f"{BUSES[1]}=NV18" in dict(inventory.devices[0].facts)["peers"].split()


def test_a_link_that_a_card_lacks_hides_no_other(stub: Stub, tree: Path) -> None:
    ends = [f"link {i} 1 state=1 type=0 remote={BUSES[1 - i]}" for i in range(2)]
    stub.play(SYSTEM, *GPUS, *ends, *(f"field {i} 91 u32 2" for i in range(8)))
    with on_tree(stub, tree) as child:
        (link,) = child.discover().links
    assert (link.a, link.b, link.type, link.count) == (*BUSES[:2], "NVLink", 1)
