"""Readings of a card through the stub library: power, cores, codecs, PCIe, links, memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.snapshot.inventory import DeviceSample
from plugins.vendors.cambricon.metrics import FAMILIES
from tests.stubs.cndev.library import LIBRARY
from tests.unit.cambricon.cards import machine, session, stub_of, tree_of

UUID = "00000000-0000-4000-8000-00000000000f"
EVERYTHING = (
    "mlu.0.core_count 4",
    "mlu.0.cores 10:0:100:55",
    "mlu.0.clocks 1000:1600:1300",
    "mlu.0.vpus 2",
    "mlu.0.vpu 7:8",
    "mlu.0.encoders 1",
    "mlu.0.encoder 9",
    "mlu.0.decoders 1",
    "mlu.0.decoder 11",
    "mlu.0.jpus 2",
    "mlu.0.jpu 0:50",
    "mlu.0.pcie 2000:100:9000000:8000000",
    "mlu.0.replays 3",
    "mlu.0.power_default 150",
    "mlu.0.power_range 60:165",
    f"mlu.0.port.0 3:{UUID}:1:1",
    f"mlu.0.port.1 0:{UUID}:2:0",
    "mlu.0.link_counters.0 1:2:3:4:5:6:7:8:9:10:11:0:0:0:21:22:0:0",
    "mlu.0.link_errors.0 12:13:14:15:16",
    "mlu.0.link_events.0 17:18:19",
    "mlu.0.link_speed.0 25",
    "mlu.0.rows_v2 2:1",
    "mlu.0.repair 0:1:0",
    "mlu.0.retired.0 6",
    "mlu.0.retired.1 7",
    "mlu.0.voltage 750:-1:1200",
    "mlu.0.current 40000:1500:0",
    "mlu.0.overheat 1:4",
    "mlu.0.throttle 0:0:1:0:0:1",
    "mlu.0.memory_errors 1:2:3:4:5:14:15:11:12:13:1",
    "mlu.0.ecc 6:0:0:0",
    "mlu.0.ecc_more 7:8:9:10",
    "mlu.0.parity_errors 16",
    "mlu.0.die_link 17:18",
    "mlu.0.mem_reserved 512",
    "mlu.0.optical.0 1:45.5:3.25:2",
    "mlu.0.optical.0.sent 0:10",
    "mlu.0.optical.0.received -10:-40",
    "mlu.0.optical.1 0:0:0:0",
)


def readings(sample: DeviceSample) -> dict[tuple[str, ...], float]:
    return {(reading.family, *reading.labels): reading.value for reading in sample.readings}


def sampled(folder: Path, *lines: str) -> dict[tuple[str, ...], float]:
    stub = stub_of(folder, *machine(1), *lines)
    with session(stub, tree_of(folder, 1)) as child:
        child.discover()
        return readings(child.sample()[0])


def test_a_card_reports_every_figure_in_base_units(tmp_path: Path) -> None:
    values = sampled(tmp_path, *EVERYTHING)
    expected: dict[tuple[str, ...], float] = {
        ("xpu_device_power_limit_watts",): 150,
        ("xpu_mlu_core_utilization_ratio", "3"): 0.55,
        ("xpu_mlu_core_utilization_ratio", "1"): 0,
        ("xpu_device_clock_hertz", "core"): 1e9,
        ("xpu_device_clock_hertz", "memory"): 1.6e9,
        ("xpu_device_clock_hertz", "core_default"): 1.3e9,
        ("xpu_mlu_codec_utilization_ratio", "video", "1"): 0.08,
        ("xpu_mlu_codec_utilization_ratio", "encoder", "0"): 0.09,
        ("xpu_mlu_codec_utilization_ratio", "decoder", "0"): 0.11,
        ("xpu_mlu_codec_utilization_ratio", "image", "1"): 0.5,
        ("xpu_mlu_pcie_bytes_per_second", "read"): 100_000,
        ("xpu_mlu_pcie_bytes_total", "write"): 8_000_000,
        ("xpu_device_pcie_replays_total",): 3,
        ("xpu_mlu_power_limit_bounds_watts", "default"): 150,
        ("xpu_mlu_power_limit_bounds_watts", "highest"): 165,
        ("xpu_mlu_link_state", "0", "mac", "ready"): 1,
        ("xpu_mlu_link_state", "0", "cable", "present"): 1,
        ("xpu_mlu_link_state", "1", "mac", "down"): 1,
        ("xpu_mlu_link_state", "1", "serdes", "establishing"): 1,
        ("xpu_mlu_link_speed_bytes_per_second", "0"): 25e9,
        ("xpu_mlu_link_bytes_total", "0", "write"): 3,
        ("xpu_mlu_link_packets_total", "0", "read"): 2,
        ("xpu_mlu_link_errors_total", "0", "crc32"): 9,
        ("xpu_mlu_link_errors_total", "0", "uncorrected_fec"): 13,
        ("xpu_mlu_link_errors_total", "0", "replay_failed"): 19,
        ("xpu_device_remapped_rows_total", "uncorrectable"): 1,
        ("xpu_mlu_memory_repair", "pending"): 1,
        ("xpu_mlu_memory_repair", "failed"): 0,
        ("xpu_mlu_retired_pages", "double_bit"): 7,
        ("xpu_mlu_link_congestion_packets_total", "0", "cnp"): 21,
        ("xpu_mlu_link_congestion_packets_total", "0", "pfc"): 22,
        ("xpu_mlu_voltage_volts", "core"): 0.75,
        ("xpu_mlu_voltage_volts", "memory"): 1.2,
        ("xpu_mlu_current_amperes", "core"): 40,
        ("xpu_mlu_current_amperes", "memory"): 0,
        ("xpu_mlu_heat_reactions_total", "power_off"): 1,
        ("xpu_mlu_heat_reactions_total", "slowdown"): 4,
        ("xpu_mlu_throttled", "clock_limit"): 1,
        ("xpu_mlu_throttled", "design_power"): 0,
        ("xpu_mlu_throttled", "thermal"): 1,
        ("xpu_mlu_memory_errors_total", "sram", "parity"): 3,
        ("xpu_mlu_memory_errors_total", "dram", "single_bit"): 4,
        ("xpu_mlu_lifetime_memory_errors_total", "sram", "single_bit"): 11,
        ("xpu_mlu_lifetime_memory_errors_total", "sram", "parity"): 13,
        ("xpu_mlu_lifetime_memory_errors_total", "dram", "double_bit"): 15,
        ("xpu_mlu_sram_errors_exceeded",): 1,
        ("xpu_mlu_ecc_errors_by_extent_total", "one_bit"): 6,
        ("xpu_mlu_ecc_errors_by_extent_total", "many_bit"): 8,
        ("xpu_mlu_ecc_errors_by_extent_total", "forbidden_address"): 10,
        ("xpu_mlu_parity_errors_total",): 16,
        ("xpu_mlu_die_link_errors_total", "overflow"): 18,
        ("xpu_mlu_memory_part_bytes", "reserved"): 512 << 20,
        ("xpu_mlu_memory_part_bytes", "virtual_free"): (1048576 - 10240) << 20,
        ("xpu_mlu_optical_present", "0"): 1,
        ("xpu_mlu_optical_present", "1"): 0,
        ("xpu_mlu_optical_temperature_celsius", "0"): 45.5,
        ("xpu_mlu_optical_voltage_volts", "0"): 3.25,
        ("xpu_mlu_optical_power_watts", "0", "sent", "0"): 0.001,
        ("xpu_mlu_optical_power_watts", "0", "sent", "1"): 0.01,
        ("xpu_mlu_optical_power_watts", "0", "received", "0"): 0.0001,
        ("xpu_mlu_optical_power_watts", "0", "received", "1"): 1e-7,
    }
    assert {key: values.get(key) for key in expected} == expected


def test_every_reading_belongs_to_a_declared_family(tmp_path: Path) -> None:
    labels = {family.name: len(family.labels) for family in FAMILIES}
    for family, *values in sampled(tmp_path, *EVERYTHING):
        assert labels[family] == len(values)


@pytest.mark.parametrize(
    ("line", "family"),
    [
        ("mlu.0.cap -1", "xpu_device_power_limit_watts"),
        ("mlu.0.cap 0", "xpu_device_power_limit_watts"),
        ("mlu.0.cap 4000000000", "xpu_device_power_limit_watts"),
        ("mlu.0.cores 101:101:-5:255", "xpu_mlu_core_utilization_ratio"),
        ("mlu.0.core_count 81", "xpu_mlu_core_utilization_ratio"),
        ("mlu.0.core_count -1", "xpu_mlu_core_utilization_ratio"),
        ("mlu.0.clocks 0:-1:4000000", "xpu_device_clock_hertz"),
        ("mlu.0.pcie -1:-1:-1:-1", "xpu_mlu_pcie_bytes_per_second"),
        ("mlu.0.pcie 1:1:-1:-1", "xpu_mlu_pcie_bytes_total"),
        ("mlu.0.replays 4294967295", "xpu_device_pcie_replays_total"),
        ("mlu.0.power_range 65535:65535", "xpu_mlu_power_limit_bounds_watts"),
        ("mlu.0.link_speed.0 nan", "xpu_mlu_link_speed_bytes_per_second"),
        ("mlu.0.link_speed.0 -1", "xpu_mlu_link_speed_bytes_per_second"),
        ("mlu.0.rows_v2 4294967295:4294967295", "xpu_device_remapped_rows_total"),
        ("mlu.0.repair 255:255:255", "xpu_mlu_memory_repair"),
        ("mlu.0.retired.0 4294967295", "xpu_mlu_retired_pages"),
        ("mlu.0.voltage -1:-1:-1", "xpu_mlu_voltage_volts"),
        ("mlu.0.current -1:2147483647:-1", "xpu_mlu_current_amperes"),
        ("mlu.0.overheat 4294967295:4294967295", "xpu_mlu_heat_reactions_total"),
        ("mlu.0.throttle 2:-1:2:2:2:9", "xpu_mlu_throttled"),
        ("mlu.0.memory_errors -1:-1:-1:-1:-1:0:0:0:0:0:0", "xpu_mlu_memory_errors_total"),
        ("mlu.0.memory_errors 0:0:0:0:0:-1:-1:-1:-1:-1:0", "xpu_mlu_lifetime_memory_errors_total"),
        ("mlu.0.memory_errors 0:0:0:0:0:0:0:0:0:0:255", "xpu_mlu_sram_errors_exceeded"),
        ("mlu.0.parity_errors -1", "xpu_mlu_parity_errors_total"),
        ("mlu.0.die_link -1:-1", "xpu_mlu_die_link_errors_total"),
        ("mlu.0.optical.0 255:45:3:2", "xpu_mlu_optical_temperature_celsius"),
        ("mlu.0.optical.0 1:-1:3:2", "xpu_mlu_optical_temperature_celsius"),
        ("mlu.0.optical.0 1:45:nan:2", "xpu_mlu_optical_voltage_volts"),
        ("mlu.0.optical.0 1:45:3:9", "xpu_mlu_optical_power_watts"),
        ("mlu.0.optical.0 1:45:3:-1", "xpu_mlu_optical_power_watts"),
    ],
)
def test_a_value_that_no_card_can_have_is_left_out(line: str, family: str, tmp_path: Path) -> None:
    subject = line.split(maxsplit=1)[0]
    others = [other for other in EVERYTHING if other.split()[0] != subject]
    others = [other for other in others if not other.startswith(("mlu.0.power_d", "mlu.0.retired"))]
    values = sampled(tmp_path, *others, line)
    assert not [key for key in values if key[0] == family]


def test_a_port_in_an_unknown_state_has_none(tmp_path: Path) -> None:
    values = sampled(tmp_path, f"mlu.0.port.0 9:{UUID}:9:9")
    assert not [key for key in values if key[0] == "xpu_mlu_link_state"]


def test_older_drivers_report_remapped_rows_by_another_call(tmp_path: Path) -> None:
    values = sampled(tmp_path, "mlu.0.rows 5:4:0:0")
    assert values["xpu_device_remapped_rows_total", "correctable"] == 5


def test_a_domain_that_a_card_does_not_measure_has_no_voltage(tmp_path: Path) -> None:
    values = sampled(tmp_path, "mlu.0.voltage 750:-1:1200")
    assert [key for key in values if key[0] == "xpu_mlu_voltage_volts"] == [
        ("xpu_mlu_voltage_volts", "core"),
        ("xpu_mlu_voltage_volts", "memory"),
    ]


def test_a_dark_lane_has_no_light_and_other_lanes_have(tmp_path: Path) -> None:
    lines = [line for line in EVERYTHING if not line.startswith("mlu.0.optical.0.received")]
    values = sampled(tmp_path, *lines, "mlu.0.optical.0.received -inf:-10")
    assert ("xpu_mlu_optical_power_watts", "0", "received", "0") not in values
    assert values["xpu_mlu_optical_power_watts", "0", "received", "1"] == 0.0001


def test_older_libraries_have_no_counts_that_their_structures_lack(tmp_path: Path) -> None:
    values = sampled(tmp_path, *EVERYTHING, "api 5")
    families = {key[0] for key in values}
    assert "xpu_mlu_memory_errors_total" in families
    assert not families & {
        "xpu_mlu_lifetime_memory_errors_total",
        "xpu_mlu_sram_errors_exceeded",
        "xpu_mlu_link_congestion_packets_total",
    }


def test_a_driver_without_totals_of_pcie_traffic_has_no_total_of_zero(tmp_path: Path) -> None:
    values = sampled(tmp_path, "mlu.0.pcie 2000:100:0:0")
    assert values["xpu_mlu_pcie_bytes_per_second", "read"] == 100_000
    assert ("xpu_mlu_pcie_bytes_total", "read") not in values


def test_a_card_without_the_calls_has_the_other_readings(tmp_path: Path) -> None:
    newer = [s.name for s in LIBRARY.symbols if "MLULink" in s.name or "Utilization" in s.name]
    stub = stub_of(tmp_path, *machine(1), *EVERYTHING, without=tuple(newer))
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        values = readings(child.sample()[0])
    assert values["xpu_device_power_watts",] == 30
    assert not [key for key in values if "mlu_link" in key[0] or "codec" in key[0]]


def test_links_and_memory_are_read_at_their_own_pace(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(2), *EVERYTHING)
    with session(stub, tree_of(tmp_path)) as child:
        child.discover()
        first = child.sample()
        before = stub.counts()
        stub.play(*machine(2), *EVERYTHING, "mlu.0.clocks 900:1600:1300")
        again = readings(child.sample()[0])
        after = stub.counts()
        child.discover()
        child.sample()
        discovered = stub.counts()
    for symbol in (
        "cndevGetMLULinkErrorCounter",
        "cndevGetRetiredPages",
        "cndevGetOpticalInfo",
        "cndevGetVoltageInfo",
    ):
        assert before[symbol] == after[symbol] < discovered[symbol]
    assert again["xpu_device_clock_hertz", "core"] == 0.9e9
    assert again["xpu_mlu_retired_pages", "double_bit"] == 7
    assert len(first) == 2
