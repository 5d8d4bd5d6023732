from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.snapshot.pci import FilePlace, PciFunction
from agent.topology.topology_file import MAX_BYTES, parse_topology_file
from tests.captures import SHARED, needs_shared
from tests.machines import tree_of

HEAD = '<system version="1"><cpu numaid="1"><pci busid="ffff:ff:01.0" class="0x060400">'
LEAF = '<pci busid="0000:10:1c.0" class="0x030200"/>'
TAIL = "</pci></cpu></system>"


def parse(text: str) -> dict[str, FilePlace]:
    return dict(parse_topology_file(text.encode(), "x.xml").places)


def test_a_leaf_has_the_node_and_the_switches_around_it() -> None:
    assert parse(HEAD + LEAF + TAIL) == {"0000:10:1c.0": FilePlace(1, ("ffff:ff:01.0",))}


def test_what_nccl_adds_is_skipped() -> None:
    leaf = '<pci busid="00000000:10:1C.0" class="0x030200"><gpu dev="0" x="y"/></pci>'
    assert parse("<!-- made by hand -->" + HEAD + leaf + TAIL) == parse(HEAD + LEAF + TAIL)


def test_the_first_of_two_equal_bus_ids_counts() -> None:
    inner = f'{LEAF}</pci><pci busid="ffff:ff:02.0" class="0x060400">{LEAF}'
    file = parse_topology_file((HEAD + inner + TAIL).encode(), "x.xml")
    assert file.places["0000:10:1c.0"].switches == ("ffff:ff:01.0",)
    assert file.warnings == ("topology file x.xml: 0000:10:1c.0 is there twice",)


def test_a_node_that_is_no_number_is_unknown() -> None:
    assert parse(HEAD.replace('numaid="1"', 'numaid="x"') + LEAF + TAIL) == {
        "0000:10:1c.0": FilePlace(-1, ("ffff:ff:01.0",))
    }


BOMB = '<!DOCTYPE a [<!ENTITY b "cccccccccc"><!ENTITY d "&b;&b;&b;">]>'


@pytest.mark.parametrize(
    "data",
    [
        pytest.param((BOMB + HEAD + LEAF + TAIL).encode(), id="hostile 19: entity bomb"),
        pytest.param(f"<!doctype x>{HEAD}{TAIL}".encode(), id="hostile 19: DTD in small letters"),
        pytest.param((BOMB + HEAD + TAIL).encode("utf-16"), id="hostile 19: DTD in UTF-16"),
        pytest.param(("<system>" + "<a>" * 10_000).encode(), id="hostile 19: depth 10 000"),
        pytest.param(("<system>" + "<a/>" * 5000 + "</system>").encode(), id="5000 elements"),
        pytest.param(b"<system>" + b" " * MAX_BYTES + b"</system>", id="hostile 19: too big"),
        pytest.param(b"<topology/>", id="hostile 19: wrong root"),
        pytest.param(b'<system a="1" a="2"/>', id="hostile 19: attribute twice"),
        pytest.param(
            (HEAD + '<pci busid="pci0000:00"/>' + TAIL).encode(), id="hostile 19: host bridge"
        ),
        pytest.param(
            (HEAD + '<pci busid="0000:00:00.0" class="0x060000"/>' + TAIL).encode(),
            id="hostile 19: host bridge's function",
        ),
        pytest.param((HEAD + "<pci/>" + TAIL).encode(), id="no bus id"),
        pytest.param(b"", id="empty"),
        pytest.param(HEAD.encode(), id="cut off"),
    ],
)
def test_a_file_that_is_not_as_documented_is_refused_whole(data: bytes) -> None:
    with pytest.raises(ParseError):
        parse_topology_file(data, "x.xml")


@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda t: (HEAD + t).encode("utf-8")))
def test_random_bytes_are_refused_or_parsed(data: bytes) -> None:
    try:
        file = parse_topology_file(data, "x.xml")
    except ParseError:
        return
    assert all(place.node >= -1 for place in file.places.values())


def test_only_present_functions_are_kept_and_the_others_counted() -> None:
    here = tree_of(PciFunction(address="0000:10:1c.0", class_code=0x030200))
    file = parse_topology_file((HEAD + LEAF + LEAF.replace("1c", "1d") + TAIL).encode(), "x.xml")
    assert list(file.restricted_to(here).places) == ["0000:10:1c.0"]
    assert file.restricted_to(here).ignored == 1


def test_hostile_19_a_function_that_is_a_host_bridge_here_refuses_the_file() -> None:
    here = tree_of(PciFunction(address="0000:10:1c.0", class_code=0x060000))
    with pytest.raises(ParseError):
        parse_topology_file((HEAD + LEAF + TAIL).encode(), "x.xml").restricted_to(here)


def test_the_label_names_the_file_and_its_content() -> None:
    label = parse_topology_file((HEAD + LEAF + TAIL).encode(), "x.xml").label
    assert label.startswith("x.xml ")
    assert len(label.split()[1]) == 12


@needs_shared
@pytest.mark.parametrize(
    ("name", "devices", "switches"),
    [("aws-p4d-24xl", 12, 4), ("azure-ndv5-h100", 16, 8), ("azure-ncv4-a100", 4, 0)],
)
def test_the_files_of_clouds_are_read(name: str, devices: int, switches: int) -> None:
    data = (SHARED / "captures" / "nccl-topo" / f"{name}.xml").read_bytes()
    places = parse_topology_file(data, name).places.values()
    assert len(places) == devices
    assert len({place.switches for place in places if place.switches}) == switches
