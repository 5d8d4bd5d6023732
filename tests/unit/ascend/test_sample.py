from __future__ import annotations

import pytest

from agent.snapshot.inventory import DeviceSample
from plugins.vendors.ascend.metrics import FAMILIES
from tests.stubs.dcmi.machines import b3 as one
from tests.stubs.dcmi.machines import chip
from tests.unit.ascend.conftest import Machine

DECLARED = {family.name: len(family.labels) for family in FAMILIES}


@pytest.fixture
def machine(b3: Machine) -> Machine:
    """Return the machine, whose scenario the test replaces."""
    return b3


def readings(sample: DeviceSample) -> dict[tuple[str, ...], float]:
    return {(reading.family, *reading.labels): reading.value for reading in sample.readings}


def sampled(machine: Machine, *lines: str, **settings: object) -> DeviceSample:
    machine.stub.play("card_list 0", *lines)
    with machine.session(**settings) as child:
        child.discover()
        return child.sample()[0]


def test_an_idle_910machineshows_what_npu_smi_printed(machine: Machine) -> None:
    sample = sampled(machine, *one(0))
    assert (sample.core_percent, sample.memory_total_bytes) == (0.0, 68719476736)
    values = readings(sample)
    assert values["xpu_device_power_watts",] == 101.8
    assert values["xpu_device_temperature_celsius", "chip"] == 43.0
    assert "xpu_npu_ddr_used_bytes" not in {family for family, *_ in values}


@pytest.mark.parametrize(
    ("facts", "family", "value"),
    [
        pytest.param({"power": 1018}, ("xpu_device_power_watts",), 101.8, id="E21 power"),
        pytest.param({"power": None}, ("xpu_device_power_watts",), None, id="E21 not supported"),
        pytest.param({"power": -1}, ("xpu_device_power_watts",), None, id="negative power"),
        pytest.param({"volt": 87}, ("xpu_npu_voltage_volts",), 0.87, id="voltage"),
        pytest.param({"clock": 1800}, ("xpu_device_clock_hertz", "aicore"), 1.8e9, id="clock"),
        pytest.param({"temp": -276}, ("xpu_device_temperature_celsius", "chip"), None, id="cold"),
        pytest.param(
            {"ecc": "7:2"}, ("xpu_device_ecc_errors_total", "uncorrected"), 2.0, id="errors"
        ),
        pytest.param(
            {"util_12": 30}, ("xpu_npu_utilization_ratio", "vector"), 0.3, id="vector units"
        ),
        pytest.param(
            {"hbm_busy": 101},
            ("xpu_npu_utilization_ratio", "memory_bandwidth"),
            None,
            id="more than all of the bandwidth",
        ),
        pytest.param(
            {"hccs_tx": "5,0,9", "hccs_rx": "5,0,9", "hccs_crc": "1,0,2", "hccs_retry": "0,0,3"},
            ("xpu_npu_link_errors_total", "hccs", "2", "retry"),
            3.0,
            id="HCCS",
        ),
        pytest.param(
            {"hccs_tx": "5", "hccs_crc": "4", "hccs_narrow": 1},
            ("xpu_npu_link_errors_total", "hccs", "0", "crc"),
            4.0,
            id="HCCS of older drivers",
        ),
        pytest.param(
            {"sio": "3,4"}, ("xpu_npu_link_errors_total", "sio", "0", "rx_crc"), 4.0, id="SIO"
        ),
    ],
)
def test_a_value_is_in_base_units_or_left_out(
    machine: Machine, facts: dict[str, object], family: tuple[str, ...], value: float | None
) -> None:
    assert readings(sampled(machine, *one(0, **facts))).get(family) == value


@pytest.mark.parametrize(
    ("facts", "used"),
    [
        pytest.param({"hbm_used": 3318}, 3479175168, id="E22 HBM"),
        pytest.param({"hbm_used": 65537}, None, id="more than there is"),
        pytest.param({"hbm": None, "ddr": 100, "ddr_free": 120}, None, id="E22 DDR"),
    ],
)
def test_used_memory_is_bytes_or_not_known(
    machine: Machine, facts: dict[str, object], used: int | None
) -> None:
    assert sampled(machine, *one(0, **facts)).memory_used_bytes == used


@pytest.mark.parametrize(
    ("facts", "busy"),
    [
        pytest.param({"util": 77}, 77.0, id="by type"),
        pytest.param({"util": 101}, None, id="E22 beyond 100"),
        pytest.param({"util": None}, None, id="not told"),
        pytest.param({"multi": "1:2:55:4"}, 55.0, id="by the call for all units"),
        pytest.param({"multi_period": "1:2:66:4"}, 0.0, id="the blocking call is left alone"),
    ],
)
def test_the_busy_share_is_of_the_ai_cores(
    machine: Machine, facts: dict[str, object], busy: float | None
) -> None:
    assert sampled(machine, *one(0, **facts)).core_percent == busy


def test_the_blocking_call_is_used_at_long_intervals(machine: Machine) -> None:
    sample = sampled(machine, *one(0, multi_period="1:2:66:4"), sample_interval_s=10.0)
    assert sample.core_percent == 66.0


def test_a_call_that_does_block_is_not_used_for_the_other_chips(a3: Machine) -> None:
    symbol = "dcmi_get_device_multi_utilization_rate_period"
    lines = [f"chip.{n // 2}.{n % 2}.multi_period 1:2:66:4" for n in range(16)]
    a3.stub.add(*lines, f"call.{symbol}.sleep_ms 500")
    with a3.session(sample_interval_s=10.0) as child:
        child.discover()
        busy = [sample.core_percent for sample in child.sample()]
    assert busy == [66.0, *[0.0] * 15]
    assert a3.stub.counts()[symbol] == 1


def test_the_second_die_of_a_card_reports_neither_power_nor_zero(a3: Machine) -> None:
    with a3.session() as child:
        child.discover()
        samples = child.sample()
    power = [readings(sample).get(("xpu_device_power_watts",)) for sample in samples[:4]]
    assert power == [172.2, None, 172.2, None]


def test_the_power_of_a_310p_card_is_counted_once(machine: Machine) -> None:
    duo = {"name": "310P3", "product": "Atlas 300I Duo", "ddr": 21527, "ddr_free": 20000}
    lines = ["card.0.chips 2"]
    for number in (0, 1):
        facts = {**duo, "logic": number, "phy": number, "pci": f"0:{number + 1}:0:0"}
        lines += chip(0, number, **facts, health=0, mcu_power=453)
    machine.stub.play("card_list 0", *lines)
    with machine.session() as child:
        devices = child.discover().devices
        samples = child.sample()
    assert {d.model for d in devices if d.minor is not None} == {"Ascend-310P3-300I-DUO"}
    power = [readings(sample).get(("xpu_device_power_watts",)) for sample in samples]
    assert power == [45.3, None]
    assert [sample.memory_used_bytes for sample in samples] == [1527 << 20] * 2


def test_processes_are_counted_once_each(machine: Machine) -> None:
    lines = [*one(0), "chip.0.0.proc.4100 1048576", "chip.0.0.proc.77 5"]
    sample = sampled(machine, *lines)
    assert sample.processes is not None
    assert [(p.pid, p.memory_bytes) for p in sample.processes] == [(77, 5), (4100, 1048576)]


def test_a_vnpu_reports_its_usage(machine: Machine) -> None:
    cut = ["vdev.0.0.100 vir05_1c_16g:5:16384", "vdev_use.0.0.100 40:16777216:8388608"]
    values = readings(sampled(machine, *one(0), *cut))
    assert values["xpu_npu_vnpu_utilization_ratio", "100"] == 0.4
    assert values["xpu_npu_vnpu_memory_used_bytes", "100"] == 8192 << 20
    assert values["xpu_npu_vnpu_memory_total_bytes", "100"] == 16384 << 20


def test_a_vnpu_with_more_free_memory_than_it_has_reports_none(machine: Machine) -> None:
    cut = ["vdev.0.0.100 vir05_1c_16g:5:16384", "vdev_use.0.0.100 40:16777216:16777217"]
    values = readings(sampled(machine, *one(0), *cut))
    assert values["xpu_npu_vnpu_utilization_ratio", "100"] == 0.4
    assert not [key for key in values if key[0].startswith("xpu_npu_vnpu_memory")]


def test_between_rounds_the_last_values_are_repeated_without_a_verdict(machine: Machine) -> None:
    with machine.session(sample_interval_s=60.0, fault_codes="") as child:
        child.discover()
        first = child.sample()
        calls = machine.stub.counts()["dcmi_get_device_temperature"]
        again = child.sample()
    assert machine.stub.counts()["dcmi_get_device_temperature"] == calls
    assert [sample.readings for sample in again] == [sample.readings for sample in first]
    assert {sample.health for sample in again} == {None}


def test_readings_are_of_declared_families(a3: Machine) -> None:
    with a3.session() as child:
        child.discover()
        samples = child.sample()
    for sample in samples:
        for reading in sample.readings:
            assert len(reading.labels) == DECLARED[reading.family]
