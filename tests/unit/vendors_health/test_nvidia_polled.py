from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.snapshot.device import Health, HealthState
from plugins.vendors.nvidia.health.card_facts import HealthFacts, failures, judge_facts, warnings

FINE = HealthFacts(faults={})
HEALTHY, SUSPECT, FAILED = HealthState.HEALTHY, HealthState.SUSPECT, HealthState.FAILED


def verdict(**facts: Any) -> tuple[HealthState, str]:
    health = judge_facts(msgspec.structs.replace(FINE, **facts))
    return health.state, health.reason


def test_a_card_without_values_is_healthy() -> None:
    assert judge_facts(FINE) == Health()


@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        (15, FAILED, "GpuLost"),
        (16, FAILED, "ResetRequired"),
        (11, FAILED, "IRQIssue"),
        (8, FAILED, "InsufficientPower"),
        (18, FAILED, "DriverMismatch"),
        (14, HEALTHY, "DeviceHealthy"),
        (4, SUSPECT, "NoPermission"),
        (27, HEALTHY, "DeviceHealthy"),
        (20, HEALTHY, "DeviceHealthy"),
    ],
)
def test_a_return_code_speaks_for_the_card(code: int, state: HealthState, reason: str) -> None:
    assert verdict(faults={code: "nvmlDeviceGetName"}) == (state, reason)


@pytest.mark.parametrize(
    ("action", "state", "reason"),
    [
        (0, HEALTHY, "DeviceHealthy"),
        (1, FAILED, "GPUResetRequired"),
        (2, FAILED, "NodeRebootRequired"),
        (3, FAILED, "DrainP2P"),
        (4, FAILED, "DrainAndReset"),
        (5, HEALTHY, "DeviceHealthy"),
        (6, FAILED, "BusResetRequired"),
        (7, FAILED, "NodeRebootRequired"),
        (99, HEALTHY, "DeviceHealthy"),
    ],
)
def test_the_drivers_recovery_action_decides(action: int, state: HealthState, reason: str) -> None:
    assert verdict(recovery_action=action) == (state, reason)


@pytest.mark.parametrize(
    ("rows", "state", "reason"),
    [
        pytest.param((0, 2, 0, 0), HEALTHY, "DeviceHealthy", id="remapped"),
        pytest.param((0, 2, 1, 0), HEALTHY, "DeviceHealthy", id="V44-pending"),
        pytest.param((0, 2, 0, 1), FAILED, "RowRemapFailure", id="V44-failure"),
    ],
)
def test_row_remapping_fails_the_card_only_when_it_failed(
    rows: tuple[int, ...], state: HealthState, reason: str
) -> None:
    assert verdict(remapped_rows=rows) == (state, reason)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param({"remapped_rows": (0, 2, 1, 0)}, "RowRemapPending", id="V44-pending"),
        ({"retired_pending": True, "retired_pages": 3}, "PageRetirementPending"),
        ({"retired_pages": 60}, "RetiredPagesLimit"),
        ({"retired_pages": 59}, None),
        ({"width": 8, "max_width": 16}, "PCIeWidthReduced"),
        ({"width": 16, "max_width": 16}, None),
        ({"width": None, "max_width": 16}, None),
        ({"faults": {14: "nvmlDeviceGetName"}}, "CorruptedInfoROM"),
        ({"recovery_action": 5}, "RecoverIMEXDomain"),
        ({"repair_pending": True}, "RepairPending"),
        ({"has_orphaned_memory": True}, "OrphanMemory"),
    ],
)
def test_warnings_leave_the_card_healthy(facts: dict[str, Any], reason: str | None) -> None:
    health_facts = msgspec.structs.replace(FINE, **facts)
    assert judge_facts(health_facts) == Health()
    assert next((name for name, _ in warnings(health_facts)), None) == reason


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"sram_exceeded": True}, "SRAMThreshold"),
        ({"unrepairable": True}, "UnrepairableMemory"),
        ({"sram_exceeded": False, "unrepairable": False}, "DeviceHealthy"),
    ],
)
def test_memory_beyond_repair_takes_the_card_out(facts: dict[str, Any], reason: str) -> None:
    assert verdict(**facts)[1] == reason


def test_an_imex_domain_to_recover_fails_cards_of_a_clique_only() -> None:
    facts = msgspec.structs.replace(FINE, recovery_action=5)
    assert [f.reason for f in failures(facts, clique=True)] == ["RecoverIMEXDomain"]
    assert list(failures(facts)) == []


def test_answers_that_are_no_text_make_the_card_suspect() -> None:
    assert verdict(is_garbled=True) == (SUSPECT, "GarbledAnswer")


@pytest.mark.parametrize(("cycles", "state"), [(2, HEALTHY), (3, FAILED)])
def test_unknown_errors_count_when_they_stay(cycles: int, state: HealthState) -> None:
    assert verdict(faults={999: "nvmlDeviceGetName"}, unknown_cycles=cycles)[0] is state


def test_the_gravest_finding_is_reported() -> None:
    assert verdict(remapped_rows=(0, 0, 1, 0), recovery_action=2, is_garbled=True) == (
        FAILED,
        "NodeRebootRequired",
    )


def test_an_excluded_card_is_out_of_service() -> None:
    assert verdict(is_excluded=True) == (FAILED, "Excluded")
