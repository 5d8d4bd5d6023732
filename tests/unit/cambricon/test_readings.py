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
    "mlu.0.port_mode.0 3",
    "mlu.0.port_name.0 0:1",
    "mlu.0.port_version.0 2:3:4",
    "mlu.0.port_state.0 1:0",
    "mlu.0.port_capability.0 1:0",
    "mlu.0.link_format.0 1",
    "mlu.0.remote.0 0:291:292:5:6:7:1:4",
    "mlu.0.remote_ip.0 10:0:0:9",
    "mlu.0.remote_mac.0 2:0:0:10:11:255",
    "mlu.0.remote_name.0 eth0",
    "mlu.0.remote.1 1:291:292:5:6:7:0:0",
    "mlu.0.remote_mac.1 2:0:0:10:11:254",
    "mlu.0.remote_name.1 Ethernet1/1",
    "mlu.0.tiny_cores 2",
    "mlu.0.tiny 1:2",
    "mlu.0.chip_cpu 21:2",
    "mlu.0.chip_cpu_cores 22:23",
    f"mlu.0.chip_cpu_modes 1:2:3:4:5:{':'.join('0' * 59)}:6:7:8:9:10",
    "mlu.0.clusters 2",
    "mlu.0.cluster_temp 51:-1",
    "mlu.0.system_memory 8192:4096",
    "mlu.0.bar4 65536:1024:64512",
    "mlu.0.ddr 64:1229:5",
    "mlu.0.clock_lock 1",
    "mlu.0.heartbeats 77",
    "mlu.0.ecc_mode 1:0",
    "mlu.0.page_retirement 1",
    "mlu.0.swaps 3:2",
    "mlu.0.swap_channels 1:4:27",
    "mlu.0.field.52 95",
    "mlu.0.field.53 105",
    "mlu.0.field.65 31",
    "mlu.0.field.66 37.5",
    "mlu.0.field.71 7200000000000",
    "mlu.0.field.73 5000000000",
    "mlu.0.field.75 6000000000",
)
COUNTERS = ("mlu.0.mpm 41:42:43:100:200:300:400", "mlu.0.mpm_link.0 150:250", "mpm_pause_ms 0")


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
        ("xpu_mlu_link_errors_total", "0", "task_replay"): 18,
        ("xpu_mlu_link_ports",): 2,
        ("xpu_mlu_link_mode", "0", "roce"): 1,
        ("xpu_mlu_link_speed_format", "0", "pam4"): 1,
        ("xpu_mlu_link_enabled", "0", "inbound"): 1,
        ("xpu_mlu_link_enabled", "0", "outbound"): 0,
        ("xpu_mlu_link_capability", "0", "p2p"): 1,
        ("xpu_mlu_link_capability", "0", "interlaken"): 0,
        ("xpu_mlu_link_peer_kind", "0", "mlu"): 1,
        ("xpu_mlu_link_peer_kind", "1", "switch"): 1,
        ("xpu_mlu_link_info", "0", "0:1", "2.3.4"): 1,
        (
            *("xpu_mlu_link_peer_info", "0", "02:00:00:0a:0b:ff", "eth0", UUID, "10.0.0.9"),
            *("123", "124", "5", "6", "7"),
        ): 1,
        (
            *("xpu_mlu_link_peer_info", "1", "02:00:00:0a:0b:fe", "Ethernet1/1"),
            *("", "", "", "", "", "", ""),
        ): 1,
        ("xpu_mlu_tiny_core_utilization_ratio", "1"): 0.02,
        ("xpu_mlu_chip_cpu_utilization_ratio",): 0.21,
        ("xpu_mlu_chip_cpu_core_utilization_ratio", "1"): 0.23,
        ("xpu_mlu_chip_cpu_core_mode_ratio", "0", "user"): 0.01,
        ("xpu_mlu_chip_cpu_core_mode_ratio", "1", "irq"): 0.1,
        ("xpu_mlu_cluster_temperature_celsius", "0"): 51,
        ("xpu_mlu_memory_part_bytes", "system_total"): 8 << 20,
        ("xpu_mlu_memory_part_bytes", "system_used"): 4 << 20,
        ("xpu_mlu_memory_part_bytes", "bar4_free"): 64512,
        ("xpu_mlu_memory_bandwidth_bytes_per_second",): 1229.5e9,
        ("xpu_mlu_memory_data_width",): 64,
        ("xpu_mlu_clock_locked",): 1,
        ("xpu_mlu_heartbeats_total",): 77,
        ("xpu_mlu_ecc_enabled", "now"): 1,
        ("xpu_mlu_ecc_enabled", "after_reset"): 0,
        ("xpu_mlu_page_retirement_enabled",): 1,
        ("xpu_mlu_address_swaps_total", "uncorrectable"): 2,
        ("xpu_mlu_repair_channels", "none"): 1,
        ("xpu_mlu_repair_channels", "all"): 27,
        ("xpu_mlu_heat_reaction_celsius", "power_off"): 105,
        ("xpu_mlu_heat_reaction_celsius", "slowdown"): 95,
        ("xpu_mlu_unit_utilization_ratio", "card"): 0.375,
        ("xpu_mlu_unit_utilization_ratio", "tensor"): 0.31,
        ("xpu_device_energy_joules_total",): 7.2e9,
        ("xpu_device_throttle_seconds_total", "thermal"): 5,
        ("xpu_device_throttle_seconds_total", "any"): 6,
        ("xpu_mlu_driver_running",): 1,
        ("xpu_mlu_compute_mode", "default"): 1,
        ("xpu_mlu_partition_mode", "whole"): 1,
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
        ("mlu.0.tiny_cores 11", "xpu_mlu_tiny_core_utilization_ratio"),
        ("mlu.0.tiny 101:-1", "xpu_mlu_tiny_core_utilization_ratio"),
        ("mlu.0.chip_cpu 101:2", "xpu_mlu_chip_cpu_utilization_ratio"),
        ("mlu.0.chip_cpu 21:33", "xpu_mlu_chip_cpu_core_mode_ratio"),
        ("mlu.0.chip_cpu_cores 255:101", "xpu_mlu_chip_cpu_core_utilization_ratio"),
        ("mlu.0.clusters 21", "xpu_mlu_cluster_temperature_celsius"),
        ("mlu.0.cluster_temp 201:-1", "xpu_mlu_cluster_temperature_celsius"),
        ("mlu.0.ddr 64:4294967295:5", "xpu_mlu_memory_bandwidth_bytes_per_second"),
        ("mlu.0.ddr 0:0:0", "xpu_mlu_memory_data_width"),
        ("mlu.0.ddr 0:0:0", "xpu_mlu_memory_bandwidth_bytes_per_second"),
        ("mlu.0.clock_lock 255", "xpu_mlu_clock_locked"),
        ("mlu.0.heartbeats 4294967295", "xpu_mlu_heartbeats_total"),
        ("mlu.0.ecc_mode 2:2", "xpu_mlu_ecc_enabled"),
        ("mlu.0.page_retirement -1", "xpu_mlu_page_retirement_enabled"),
        ("mlu.0.swaps 4294967295:4294967295", "xpu_mlu_address_swaps_total"),
        ("mlu.0.swap_channels -1:-1:-1", "xpu_mlu_repair_channels"),
        ("mlu.0.port_mode.0 9", "xpu_mlu_link_mode"),
        ("mlu.0.link_format.0 2", "xpu_mlu_link_speed_format"),
        ("mlu.0.port_state.0 2:7", "xpu_mlu_link_enabled"),
        ("mlu.0.port_capability.0 -1:2", "xpu_mlu_link_capability"),
        ("mlu.0.compute 3", "xpu_mlu_compute_mode"),
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


@pytest.mark.parametrize(
    ("line", "family"),
    [
        ("mlu.0.field.66 4294967295", "xpu_mlu_unit_utilization_ratio"),
        ("mlu.0.field.66 -1", "xpu_mlu_unit_utilization_ratio"),
        ("mlu.0.field.66 nan", "xpu_mlu_unit_utilization_ratio"),
        ("mlu.0.field.53 -1", "xpu_mlu_heat_reaction_celsius"),
        ("mlu.0.field.53 0", "xpu_mlu_heat_reaction_celsius"),
        ("mlu.0.field.53 4294967296", "xpu_mlu_heat_reaction_celsius"),
        ("mlu.0.field.71 -1", "xpu_device_energy_joules_total"),
        ("mlu.0.field.75 -1", "xpu_device_throttle_seconds_total"),
    ],
)
def test_a_field_that_no_card_can_have_is_left_out(line: str, family: str, tmp_path: Path) -> None:
    assert not [key for key in sampled(tmp_path, line) if key[0] == family]


def test_a_library_that_refuses_newer_fields_reports_the_older_ones(tmp_path: Path) -> None:
    lines = [line for line in EVERYTHING if not line.startswith("mlu.0.field.7")]
    values = sampled(tmp_path, *lines)
    assert values["xpu_mlu_unit_utilization_ratio", "tensor"] == 0.31
    assert ("xpu_device_energy_joules_total",) not in values


def test_a_port_with_an_address_as_text_has_it_too(tmp_path: Path) -> None:
    lines = [line for line in EVERYTHING if not line.startswith("mlu.0.remote_ip")]
    text = ":".join(str(byte) for byte in b"10.0.0.12")
    values = sampled(tmp_path, *lines, f"mlu.0.remote_ip.0 {text}")
    assert [key[5] for key in values if key[:2] == ("xpu_mlu_link_peer_info", "0")] == ["10.0.0.12"]


@pytest.mark.parametrize("remote", ["0:1:2:3:4:5:0:4", "0:1:2:3:4:5:1:9"])
def test_an_address_that_is_not_valid_is_no_label(remote: str, tmp_path: Path) -> None:
    values = sampled(tmp_path, *EVERYTHING, f"mlu.0.remote.0 {remote}")
    assert [key[5] for key in values if key[:2] == ("xpu_mlu_link_peer_info", "0")] == [""]


@pytest.mark.parametrize(
    ("lines", "modes"),
    [
        (("mlu.0.smlu_mode 1",), ["smlu"]),
        (("mlu.0.mim_mode 1",), ["mim"]),
        (("call.cndevGetMimMode.ret 18", "call.cndevGetSMLUMode.ret 18"), []),
    ],
)
def test_the_mode_of_a_card_is_known_or_absent(
    lines: tuple[str, ...], modes: list[str], tmp_path: Path
) -> None:
    values = sampled(tmp_path, *lines)
    assert [key[1] for key in values if key[0] == "xpu_mlu_partition_mode"] == modes


@pytest.mark.parametrize(("driver", "value"), [(4, 1), (6, 0), (5, 0)])
def test_a_driver_runs_or_does_not(driver: int, value: int, tmp_path: Path) -> None:
    assert sampled(tmp_path, f"mlu.0.driver {driver}")["xpu_mlu_driver_running",] == value


def test_a_card_whose_health_cannot_be_read_has_no_state(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1))
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        stub.add("call.cndevGetCardHealthState.ret 7")
        values = readings(child.sample()[0])
    states = {"xpu_mlu_driver_running", "xpu_mlu_compute_mode", "xpu_mlu_partition_mode"}
    assert not states & {key[0] for key in values}


def test_performance_counters_give_means_from_the_second_sample_on(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1), *EVERYTHING, *COUNTERS)
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        first, second = (readings(child.sample()[0]) for _ in range(2))
        child.discover()
        rediscovered = readings(child.sample()[0])
        assert stub.counts()["cndevMpmSampleAlloc"] == 2
    assert not [key for key in first if "_mean_" in key[0]]
    expected = {
        ("xpu_mlu_mean_utilization_ratio", "core"): 0.41,
        ("xpu_mlu_mean_utilization_ratio", "card"): 0.42,
        ("xpu_mlu_mean_utilization_ratio", "tensor"): 0.43,
        ("xpu_mlu_mean_bytes_per_second", "pcie", "sent"): 100 << 20,
        ("xpu_mlu_mean_bytes_per_second", "pcie", "received"): 200 << 20,
        ("xpu_mlu_mean_bytes_per_second", "mlulink", "sent"): 300 << 20,
        ("xpu_mlu_mean_bytes_per_second", "mlulink", "received"): 400 << 20,
        ("xpu_mlu_link_mean_bytes_per_second", "0", "sent"): 150 << 20,
        ("xpu_mlu_link_mean_bytes_per_second", "0", "received"): 250 << 20,
    }
    for values in (second, rediscovered):
        assert {key: value for key, value in values.items() if "_mean_" in key[0]} == expected


def test_samples_of_counters_that_are_too_close_together_give_no_mean(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1), *COUNTERS, "mpm_pause_ms 3600000")
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        samples = [child.sample()[0] for _ in range(2)]
    assert not [key for sample in samples for key in readings(sample) if "_mean_" in key[0]]
    assert not [
        rejection
        for sample in samples
        for rejection in sample.rejections
        if "mean" in rejection.family
    ]


@pytest.mark.parametrize("counters", ["101:-1:1e9:-1:1e30:-5:inf", "-0.1:1e3:101:1e9:1e9:1e9:1e9"])
def test_means_that_no_card_can_have_are_left_out(counters: str, tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1), f"mlu.0.mpm {counters}", "mpm_pause_ms 0")
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        child.sample()
        values = readings(child.sample()[0])
    assert not [key for key in values if "_mean_" in key[0]]


@pytest.mark.parametrize(
    "line",
    [
        "call.cndevMpmQueryDeviceSupport.ret 10",
        "call.cndevMpmSampleAlloc.ret 8",
        "call.cndevMpmSampleGet.ret 18",
        "call.cndevMpmMetricsGet.ret 3",
    ],
)
def test_counters_that_fail_cost_themselves_only(line: str, tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1), *COUNTERS, line)
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        samples = [readings(child.sample()[0]) for _ in range(3)]
        stub.play(*machine(1), *COUNTERS)
        child.discover()
        child.sample()
        recovered = readings(child.sample()[0])
    for values in samples:
        assert values["xpu_device_power_watts",] == 30
        assert not [key for key in values if "_mean_" in key[0]]
    assert recovered["xpu_mlu_mean_utilization_ratio", "card"] == 0.42


def test_each_process_has_the_units_that_it_uses(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1), "mlu.0.proc.77 2048:4096:33:1:2:3:101")
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        (process,) = child.sample()[0].processes or ()
    assert process.virtual_bytes == 4 << 20
    assert process.engine_percents == (("image_codec", 1), ("decoder", 2), ("encoder", 3))


def test_the_last_fault_of_a_card_has_its_number(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1))
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        for xid in (0x10, 0x20):
            stub.happen(f"0 {xid}")
            child.wait_event()
        values = readings(child.sample()[0])
    assert values["xpu_mlu_last_xid", "0x0000000000000020"] == 0x20
    assert [key for key in values if key[0] == "xpu_mlu_last_xid"] == [
        ("xpu_mlu_last_xid", "0x0000000000000020")
    ]
