from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clock import ManualClock
from agent.errors import ParseError
from agent.snapshot.device import HealthState
from plugins.shared.tool import ToolTimedOut
from plugins.vendors.ascend.discovery.npu_smi import NpuSmi, parse_info, parse_topo
from tests.captures import SHARED, needs_shared
from tests.unit.ascend.conftest import Machine

INFO = SHARED / "captures/ascend/npu-smi-info-910b3x8.txt"
TOPO = SHARED / "captures/ascend/npu-smi-topo-910b3x8.txt"

# two dies of an A3 card and one 310P card, in the form of the tool
A3 = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 3     Ascend910           | Alarm         | 172.2       36                0    / 0             |
| 0     6                   | 0000:9D:00.0  | 7           0    / 0          3117 / 65536         |
+------------------------------------------------------------------------------------------------+
| 3     Ascend910           | OK            | -           36                0    / 0             |
| 1     7                   | 0000:9F:00.0  | 0           0    / 0          70000/ 65536         |
+===========================+===============+====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
| 3       0                 | 4242          | python                   | 3000                    |
"""
P310 = """\
| NPU     Name            | Health          | Power(W)     Temp(C)         Hugepages-Usage(page) |
| Chip    Device          | Bus-Id          | AICore(%)    Memory-Usage(MB)                      |
| 8       310P3           | OK              | NA           47              0     / 0             |
| 0       0               | 0000:01:00.0    | 0            1527 / 21527                          |
"""


@needs_shared
def test_the_table_of_a_real_machine_is_read() -> None:
    rows = parse_info(INFO.read_text())
    assert [row.card for row in rows] == list(range(8))
    assert {row.name for row in rows} == {"910B3"}
    assert [row.bus_id for row in rows][:3] == ["0000:c1:00.0", "0000:c2:00.0", "0000:81:00.0"]
    assert {row.phy for row in rows} == {None}
    first = rows[0]
    assert (first.power_watts, first.temperature_celsius, first.core_percent) == (101.8, 43.0, 0.0)
    assert first.hbm_mb == (3318, 65536)
    assert first.ddr_mb is None


@needs_shared
def test_the_matrix_of_a_real_machine_is_a_full_mesh() -> None:
    link_types = parse_topo(TOPO.read_text())
    assert set(link_types) == set(combinations(range(8), 2))
    assert set(link_types.values()) == {"HCCS"}


def test_dies_have_numbers_of_their_own_and_a_dash_is_not_zero() -> None:
    first, second = parse_info(A3)
    assert (first.card, first.chip, first.phy, first.health) == (3, 0, 6, "Alarm")
    assert (second.chip, second.phy, second.power_watts) == (1, 7, None)
    assert second.hbm_mb is None  # more memory in use than the total


def test_a_310p_reports_its_ddr_memory() -> None:
    (row,) = parse_info(P310)
    assert (row.card, row.phy, row.name) == (8, 0, "310P3")
    assert row.ddr_mb == (1527, 21527)
    assert row.hbm_mb is None
    assert row.power_watts is None


@pytest.mark.parametrize("old", [" 6   ", "172.2", "65536"])
def test_a_number_of_thousands_of_digits_is_none(old: str) -> None:
    first, *_ = parse_info(A3.replace(old, " " + "9" * 5000, 1))
    assert (first.phy, first.power_watts, first.hbm_mb).count(None) == 1


@pytest.mark.parametrize("text", ["", "Command or option is not found", "NPU0 X\nNPU0 X"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_info(text)
    with pytest.raises(ParseError):
        parse_topo(text)


@given(st.text(max_size=300), st.integers(0, len(A3)))
def test_damaged_tables_raise_nothing_else(text: str, at: int) -> None:
    for damaged in (A3[:at] + text + A3[at:], A3[:at], text):
        with contextlib.suppress(ParseError):
            parse_info(damaged)
        with contextlib.suppress(ParseError):
            parse_topo(damaged)


def command(folder: Path, script: str) -> dict[str, object]:
    """Put a command where the driver's would be; return the settings that find it."""
    return {
        "driver_root": command_root(folder, script),
        "library_path": str(folder / "none.so"),
    }


def command_root(folder: Path, script: str) -> str:
    """Put a command where the driver's would be; return the driver's root."""
    file = folder / "root/usr/local/bin/npu-smi"
    file.parent.mkdir(parents=True)
    file.parent.chmod(0o755)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(folder / "root")


def test_without_the_library_the_command_is_used(a3: Machine) -> None:
    table = a3.folder / "table"
    table.write_text(A3.replace("0000:9D", "0000:61").replace("0000:9F", "0000:63"))
    settings = command(a3.folder, f'[ "$2" ] && exit 1; cat {table}')
    with a3.session(**settings) as child:
        inventory = child.discover()
        samples = child.sample()
    by_minor = {d.minor: d for d in inventory.devices if d.minor is not None}
    assert [p.reason for p in inventory.problems] == ["LibraryMissing"]
    assert [(m, d.uuid, d.model) for m, d in by_minor.items()] == [
        (6, "npu-3-6", "Ascend-910C"),
        (7, "npu-3-7", "Ascend-910C"),
    ]
    assert by_minor[6].health.state is HealthState.FAILED
    assert by_minor[7].health.is_in_service
    assert dict(inventory.facts)["source"] == "npu-smi"
    assert [sample.core_percent for sample in samples] == [7.0, 0.0]


@needs_shared
def test_the_command_reports_the_same_groups_as_the_library(b3: Machine) -> None:
    settings = command(b3.folder, f'if [ "$2" ]; then cat {TOPO}; else cat {INFO}; fi')
    with b3.session(**settings) as child:
        inventory = child.discover()
    assert [d.minor for d in inventory.devices] == list(range(8))
    assert [len(group.keys) for group in inventory.groups] == [8]
    assert inventory.group_policy == "Prefer"
    assert {dict(d.resources)["koordinator.sh/gpu-memory"] for d in inventory.devices} == {"64Gi"}
    assert {dict(d.resources)["huawei.com/npu-core"] for d in inventory.devices} == {"20"}


@pytest.mark.parametrize("script", ["exit 203", "echo nonsense"])
def test_a_command_that_fails_leaves_what_sysfs_shows(b3: Machine, script: str) -> None:
    with b3.session(**command(b3.folder, script)) as child:
        inventory = child.discover()
    assert len(inventory.devices) == 8
    assert inventory.problems[0].reason == "LibraryMissing"
    assert "npu-smi" in inventory.problems[0].message


def test_a_command_that_others_may_change_is_not_run(tmp_path: Path) -> None:
    root = command_root(tmp_path, "exit 0")
    assert NpuSmi(root).path() is not None
    (tmp_path / "root/usr/local/bin/npu-smi").chmod(0o777)
    assert NpuSmi(root).path() is None
    assert NpuSmi(root).query() is None


def test_a_command_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugins.vendors.ascend.discovery.npu_smi.DEADLINE_S", 0.05)
    root = command_root(tmp_path, "exec sleep 60")
    with pytest.raises(ToolTimedOut, match=r"npu-smi: no answer within 0\.1 s"):
        NpuSmi(root).query()


def test_chips_of_one_card_without_numbers_are_left_to_sysfs(tmp_path: Path) -> None:
    root = command_root(tmp_path, "exit 0")
    answer = NpuSmi(root, lambda *_: A3.replace("Chip  Phy-ID", "Chip        ")).query()
    assert answer is not None
    assert answer.chips == ()


def test_the_command_is_run_seldom(tmp_path: Path) -> None:
    root = command_root(tmp_path, "exit 0")
    clock, runs = ManualClock(), []

    def run(path: str, arguments: Sequence[str], timeout_s: float) -> str:
        assert 0 < timeout_s < 10
        runs.append((path, tuple(arguments)))
        return A3

    npu_smi = NpuSmi(root, run, clock)
    for seconds in (0.0, 29.0, 2.0):
        clock.advance(seconds)
        assert npu_smi.query() is not None
    assert [arguments for _, arguments in runs].count(("info",)) == 2
