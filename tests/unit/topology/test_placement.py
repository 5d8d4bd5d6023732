from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.snapshot.cpu import NumaNode, NumaNodeKind, NumaTopology
from agent.snapshot.pci import FilePlace, NumaOverride, PciFunction, PciTree, TopologyFile
from agent.topology.placement import PlacementRules, override_problems
from tests.machines import nodes, numa_node_of, tree_of

DEVICE = "0000:18:00.0"
PORT = "0000:17:00.0"
TWO = nodes(2)


def device(**facts: object) -> PciFunction:
    """A device below one root port, of unknown memory node unless told."""
    base = {"address": DEVICE, "root": "pci0000:17", "bridges": (PORT,), "numa_node": -1}
    return PciFunction(**{**base, **facts})  # type: ignore[arg-type]  # a test's own fields


def test_vector_40_the_firmware_is_believed() -> None:
    assert numa_node_of(tree_of(device(numa_node=1)), TWO, DEVICE) == (1, "firmware")


def test_vector_44_a_virtual_function_is_where_its_physical_one_is() -> None:
    virtual = device(address="0000:18:00.3", physfn=DEVICE)
    tree = tree_of(device(numa_node=1), virtual)
    assert numa_node_of(tree, TWO, "0000:18:00.3") == (1, "pf")


def test_the_nearest_bridge_that_knows_answers() -> None:
    far = PciFunction(address="0000:16:00.0", root="pci0000:17", numa_node=0)
    near = PciFunction(address=PORT, root="pci0000:17", bridges=(far.address,), numa_node=1)
    tree = tree_of(far, near, device(bridges=(far.address, PORT)))
    assert numa_node_of(tree, TWO, DEVICE) == (1, "parent")


@pytest.mark.parametrize(
    ("cpus", "answer"),
    [
        ({2, 3}, (1, "local_cpus")),
        ({2, 900}, (1, "local_cpus")),
        ({0, 1, 2, 3}, (-1, "unknown")),
        (set(), (-1, "unknown")),
        ({900}, (-1, "unknown")),
    ],
)
def test_local_cpus_answer_when_they_are_of_one_node(
    cpus: set[int], answer: tuple[int, str]
) -> None:
    tree = tree_of(device(local_cpus=frozenset(cpus)))
    assert numa_node_of(tree, TWO, DEVICE) == answer


@pytest.mark.parametrize(
    ("others", "answer"),
    [((1, 1), (1, "siblings")), ((0, 1), (-1, "unknown")), ((-1, 1), (1, "siblings"))],
)
def test_siblings_answer_when_they_agree(others: tuple[int, int], answer: tuple[int, str]) -> None:
    siblings = [
        device(address=f"0000:19:0{i}.0", bridges=(f"0000:17:0{i + 1}.0",), numa_node=node)
        for i, node in enumerate(others)
    ]
    assert numa_node_of(tree_of(device(), *siblings), TWO, DEVICE) == answer


def test_siblings_on_the_nearest_bridge_count_before_those_below_the_root() -> None:
    near = device(address="0000:18:01.0", numa_node=0)
    far = device(address="0000:19:00.0", bridges=("0000:17:01.0",), numa_node=1)
    assert numa_node_of(tree_of(device(), near, far), TWO, DEVICE) == (0, "siblings")


def test_a_function_that_fell_off_the_bus_is_no_witness() -> None:
    removed = device(address="0000:18:01.0", numa_node=0, gone=True)
    assert numa_node_of(tree_of(device(), removed), TWO, DEVICE) == (-1, "unknown")


def test_the_topology_file_fills_the_gap_only() -> None:
    file = TopologyFile(label="x", places={DEVICE: FilePlace(1)})
    rules = PlacementRules(file=file)
    assert numa_node_of(tree_of(device()), TWO, DEVICE, rules) == (1, "topology_file")
    assert numa_node_of(tree_of(device(numa_node=0)), TWO, DEVICE, rules) == (0, "firmware")


def test_the_only_node_with_cpus_is_every_devices_node() -> None:
    assert numa_node_of(tree_of(device()), nodes(1), DEVICE) == (0, "single")


def test_a_node_without_cpus_stands_for_the_one_near_it() -> None:
    cxl = NumaNode(id=2, cpus=frozenset(), memory_bytes=1, kind=NumaNodeKind.MEMORY, near=1)
    numa = NumaTopology(nodes=(*TWO.nodes, cxl))
    assert numa_node_of(tree_of(device(numa_node=2)), numa, DEVICE) == (1, "firmware")


@pytest.mark.parametrize("node", [7, -2])
def test_hostile_8_a_number_that_names_no_node_is_unknown(node: int) -> None:
    assert numa_node_of(tree_of(device(numa_node=node)), TWO, DEVICE) == (-1, "unknown")


@pytest.mark.parametrize(
    "match", [DEVICE, "18:00.0", "0000:17-1f", "pci0000:17", "00000000:18:00.0"]
)
def test_an_override_wins_over_the_firmware(match: str) -> None:
    rules = PlacementRules(overrides=(NumaOverride(match, 0),))
    assert numa_node_of(tree_of(device(numa_node=1)), TWO, DEVICE, rules) == (0, "override")


@pytest.mark.parametrize("match", ["0000:19-1f", "0001:17-1f", "pci0000:18", "0000:18:00.1"])
def test_an_override_is_about_its_match_only(match: str) -> None:
    rules = PlacementRules(overrides=(NumaOverride(match, 0),))
    assert numa_node_of(tree_of(device(numa_node=1)), TWO, DEVICE, rules) == (1, "firmware")


def test_the_first_override_that_matches_counts() -> None:
    rules = PlacementRules(overrides=(NumaOverride(DEVICE, 1), NumaOverride("pci0000:17", 0)))
    assert numa_node_of(tree_of(device()), TWO, DEVICE, rules) == (1, "override")


@pytest.mark.parametrize("match", ["", "gpu0", "pci17", "0000:1-2", "0000:18:00.0\n"])
def test_an_override_of_no_known_form_is_refused(match: str) -> None:
    with pytest.raises(ParseError):
        NumaOverride(match, 0)


def test_hostile_20_overrides_without_effect_are_named() -> None:
    rules = PlacementRules(overrides=(NumaOverride("0000:99:00.0", 0), NumaOverride(DEVICE, 9)))
    assert override_problems(rules, tree_of(device()), TWO) == (
        "numa override 0000:99:00.0: matches no function",
        "numa override 0000:18:00.0: no memory node 9",
    )


def test_an_override_that_names_no_node_leaves_the_firmware_its_say() -> None:
    rules = PlacementRules(overrides=(NumaOverride(DEVICE, 9),))
    assert numa_node_of(tree_of(device(numa_node=1)), TWO, DEVICE, rules) == (1, "firmware")


def test_a_function_that_is_not_there_has_the_only_node_or_none() -> None:
    assert numa_node_of(PciTree(), nodes(1), DEVICE) == (0, "single")
    assert numa_node_of(PciTree(), TWO, DEVICE) == (-1, "unknown")


@given(st.text(max_size=30), st.integers())
def test_any_override_is_refused_or_can_be_applied(match: str, node: int) -> None:
    try:
        override = NumaOverride(match, node)
    except ParseError:
        return
    assert override.matches(device()) in (True, False)
