"""Every file that the agent writes and that the machine's kernel has."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.guest.file_table import COST_LINE, DISK, ROWS, Row
from tests.guest.inside.files import MOST_STEPS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_a_file_is_written_read_back_and_undone(facts: dict[str, Any], row: Row) -> None:
    answer = facts["files"]["rows"][row.key]
    assert answer["problems"] == []
    assert answer["shown"] == answer["expected"]
    assert answer["remaining"] == []
    after, before = answer["restored"]
    assert after == before


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_the_kernel_refuses_other_values_as_is_known_and_keeps_the_one_it_has(
    facts: dict[str, Any], row: Row
) -> None:
    answer = facts["files"]["rows"][row.key]
    assert answer["refusals"] == row.refuses
    assert answer["unchanged"]


def test_files_of_other_kernels_do_not_exist(facts: dict[str, Any]) -> None:
    assert facts["files"]["present"] == []


def test_a_weight_is_refused_before_the_cost_control_of_its_disk_was_ever_set(
    facts: dict[str, Any],
) -> None:
    name = errno.errorcode[errno.EOPNOTSUPP]
    assert facts["files"]["weight_without_cost_control"] == name


def test_killed_at_any_write_to_any_file_a_restore_gives_the_originals(
    facts: dict[str, Any],
) -> None:
    killed = facts["files"]["killed"]
    assert len(killed) == 4
    for one in killed.values():
        assert one["wrong"] == []
        assert one["rows"] < one["steps"] < MOST_STEPS


def test_the_strategy_of_block_io_limits_whole_disks_and_undoes_it(facts: dict[str, Any]) -> None:
    block_io = facts["files"]["block_io"]
    limit = [f"{DISK} rbps=1048576 wbps=max riops=max wiops=512"]
    assert block_io["limits"]["lines"]["io.max"] == limit
    assert block_io["limits"]["lines"]["io.weight"] == []
    assert "the weight has no effect" in block_io["limits"]["message"]
    assert block_io["weighted"]["lines"]["io.max"] == limit
    assert block_io["weighted"]["lines"]["io.weight"] == [f"{DISK} 40"]
    assert block_io["weighted"]["lines"]["io.cost.qos"][0].startswith(f"{DISK} {COST_LINE}")
    assert block_io["none"]["lines"]["io.max"] == []
    assert block_io["none"]["lines"]["io.weight"] == []
    assert block_io["none"]["lines"]["io.cost.qos"][0].startswith(f"{DISK} enable=0 ctrl=auto")
    assert block_io["none"]["entries"] == 0
