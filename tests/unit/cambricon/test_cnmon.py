from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.snapshot.device import HealthState
from agent.snapshot.inventory import Inventory
from plugins.vendors.cambricon.discovery import cnmon
from plugins.vendors.cambricon.discovery.cnmon import address_of, parse_detail, parse_table
from tests.captures import needs_shared
from tests.unit.cambricon import mock
from tests.unit.cambricon.cards import machine, session, stub_of, tree_of

FIRST = "| {Card}     {VF}   {Name}    {Firmware} | {Inited}   {Driver} | {Util}   {ECC} |"
SECOND = (
    "|  {Fan}   {Temp C}C   {Power W} W/ {Power cap W} W |"
    "  {Mem used MiB} MiB/ {Mem total MiB} MiB | {vMem used MiB} MiB/{vMem total MiB} MiB |"
)
FIFTH = """\
| CNMON v5.10.13                                               Driver v5.10.13 |
+-------------------------------+----------------------+-----------------------+
| Card  VF  Name       Firmware |               Bus-Id | Util        Ecc-Error |
| Fan   Temp      Pwr:Usage/Cap |         Memory-Usage | SR-IOV   Compute-Mode |
|===============================+======================+=======================|
| 0     /   MLU370-X8    v1.1.6 |         0000:1A:00.0 | 7%                N/A |
|  0%   32C        106 W/ 250 W |    12 MiB/ 23374 MiB | N/A           Default |
+-------------------------------+----------------------+-----------------------+
| 0     1   MLU370-X8    v1.1.6 |         0000:1A:00.1 | 0%                N/A |
|  0%   39C        106 W/ 250 W |     0 MiB/ 11687 MiB | N/A           Default |
"""
DETAIL = """\
Card 0
    UUID                     : MLU-00000000-0000-4000-8000-00000000000a
    PCIe Info
        Device               : 0
        Function             : 0
        Bus num              : 1a
        Domain ID            : 0
    NUMA node id             : 1
    Physical Memory Usage
        Total                : 23374 MiB
        Used                 : 12 MiB
    Health
        Device               : Good
"""


def _printed(capture: dict[str, Any]) -> str:
    """Return the capture's facts in the format of version 4 of the tool."""
    lines = [
        f"| CNMON {capture['cnmon']} |",
        "| Card  VF  Name  Firmware | Inited  Driver | Util |",
    ]
    for row in capture["rows"]:
        one = dict(zip(capture["columns"], row, strict=True))
        lines += [
            FIRST.format(**one),
            SECOND.format(**one),
        ]
    return "\n".join(lines)


@needs_shared
def test_the_captured_table_is_read_as_it_was_printed() -> None:
    capture = json.loads((mock.FOLDER / "cnmon-mlu370x4-3cards.json").read_text())
    rows = parse_table(_printed(capture))
    assert [(c.index, c.model, c.driver) for c in rows] == [
        (i, "MLU370-X4", "4.20.11") for i in range(3)
    ]
    assert {c.memory_bytes for c in rows} == {23308 << 20}


def test_the_newer_table_has_the_bus_and_lists_virtual_functions_which_are_left_out() -> None:
    (row,) = parse_table(FIFTH)
    assert (row.bus_id, row.driver) == ("0000:1a:00.0", "5.10.13")
    assert row.memory_bytes == 23374 << 20


def test_details_of_a_card_are_read() -> None:
    detail = parse_detail(DETAIL)
    assert detail.uuid == "MLU-00000000-0000-4000-8000-00000000000a"
    assert detail.address == ("0", "1a", "0", "0")
    assert (detail.memory_bytes, detail.good) == (23374 << 20, True)


@pytest.mark.parametrize(
    ("parts", "address"),
    [
        (("0", "1a", "0", "0"), "0000:1a:00.0"),
        (("0", "26", "0", "0"), "0000:1a:00.0"),
        (("0", "77", "0", "0"), None),
    ],
)
def test_an_address_is_one_that_sysfs_knows(
    parts: tuple[str, str, str, str], address: str | None
) -> None:
    assert address_of(parts, frozenset({"0000:1a:00.0"})) == address


@given(st.text(alphabet=st.sampled_from("|: 0123456789/vWCMiBGod%\nUI-"), max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    parse_detail(text)
    with pytest.raises(ParseError):
        parse_table(text)


def _tool(tree: Path, script: str) -> None:
    path = tree / "usr/bin/cnmon"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _answers(tree: Path, detail: str = DETAIL) -> None:
    (tree / "table").write_text(FIFTH)
    (tree / "detail").write_text(detail)
    _tool(tree, f'test "$1" = info && exec cat {tree}/detail; exec cat {tree}/table')


def _without_library(tmp_path: Path, tree: Path, **settings: object) -> Inventory:
    stub = stub_of(tmp_path, *machine(2))
    missing = {"library_path": str(tmp_path / "libcndev.so"), "driver_root": str(tree)}
    with session(stub, tree, **{**missing, **settings}) as child:
        return child.discover()


def test_without_the_library_the_tool_is_used(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, 2)
    _answers(tree)
    inventory = _without_library(tmp_path, tree)
    listed, unknown = inventory.devices
    assert (listed.bus_id, listed.minor, listed.model) == ("0000:1a:00.0", 0, "MLU370-X8")
    assert (listed.uuid, listed.memory_bytes) == (
        "MLU-00000000-0000-4000-8000-00000000000a",
        23374 << 20,
    )
    assert listed.health.state is HealthState.HEALTHY
    assert (unknown.bus_id, unknown.health.reason) == ("0000:1b:00.0", "LibraryMissing")
    assert [p.reason for p in inventory.problems] == ["LibraryMissing", "ToolOnly"]
    assert inventory.driver_version == "5.10.13"


@pytest.mark.parametrize(
    ("detail", "reason"),
    [(DETAIL.replace("Good", "Bad"), "DeviceInProblem"), ("", "DriverError")],
)
def test_a_card_that_the_tool_does_not_call_good_is_not(
    detail: str, reason: str, tmp_path: Path
) -> None:
    tree = tree_of(tmp_path, 1)
    _answers(tree, detail)
    assert _without_library(tmp_path, tree).devices[0].health.reason == reason


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "cat /dev/null"])
def test_a_tool_of_no_use_changes_nothing(script: str, tmp_path: Path) -> None:
    tree = tree_of(tmp_path, 1)
    _tool(tree, script)
    inventory = _without_library(tmp_path, tree)
    assert [p.reason for p in inventory.problems] == ["LibraryMissing"]
    assert [d.health.reason for d in inventory.devices] == ["LibraryMissing"]


def test_a_tool_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tree_of(tmp_path, 1)
    _tool(tree, "exec sleep 60")
    monkeypatch.setattr(cnmon, "DEADLINE_S", 0.1)
    assert cnmon.run_cnmon(str(tree)) == ()


def test_a_tool_that_others_may_write_is_not_run(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, 1)
    _answers(tree)
    (tree / "usr/bin/cnmon").chmod(0o777)
    assert cnmon.run_cnmon(str(tree)) == ()


def test_on_a_recorded_host_the_tool_is_not_run(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, 1)
    _tool(tree, f"touch {tmp_path}/ran")
    _without_library(tmp_path, tree, replay=True)
    assert not (tmp_path / "ran").exists()
