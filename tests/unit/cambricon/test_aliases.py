"""Names of Cambricon's mlu-exporter for a card behind the stub library."""

from __future__ import annotations

from pathlib import Path

from plugins.vendors.cambricon.aliases import MLU_EXPORTER
from plugins.vendors.cambricon.vendor import CambriconVendor
from tests.factory import snapshot
from tests.prometheus.alias_page import USER, AliasPage
from tests.unit.cambricon.cards import machine, session, stub_of, tree_of
from tests.unit.cambricon.test_readings import EVERYTHING

BUSY = (
    "mlu.0.temp_board 40",
    "mlu.0.util 40",
    "mlu.0.mem_used 5827",
    "mlu.0.proc.4100 5120:0",
)
EXPECTED: list[tuple[str, dict[str, str], float | None]] = [
    ("mlu_health", {}, 1),
    ("mlu_version", {"driver": "v4.20.11", "mcu": "v1.1.6"}, 1),
    ("mlu_utilization", {}, 40),
    ("mlu_core_utilization", {"core": "3"}, 55),
    ("mlu_chip_temperature", {}, 32),
    ("mlu_temperature", {}, 40),
    ("mlu_power_usage", {}, 30),
    ("mlu_power_current_limit", {}, 150),
    ("mlu_power_max_limit", {}, 165),
    ("mlu_power_min_limit", {}, 60),
    ("mlu_frequency", {}, 1000),
    ("mlu_ddr_frequency", {}, 1600),
    ("mlu_default_frequency", {}, 1300),
    ("mlu_memory_total", {}, 23308 << 20),
    ("mlu_memory_used", {}, 5827 << 20),
    ("mlu_memory_utilization", {}, 25),
    ("mlu_process_physical_memory_used", {"pid": "4100"}, 5 << 20),
    ("mlu_image_codec_utilization", {"jpu_core": "1"}, 50),
    ("mlu_video_codec_utilization", {"vpu_core": "0"}, 7),
    ("mlu_video_decoder_utilization", {"decoder_core": "0"}, 11),
    ("mlu_pcie_read_throughput", {}, 2000),
    ("mlu_pcie_write_throughput", {}, 100),
    ("mlu_pcie_replay_count", {}, 3),
    ("mlu_remapped_correct_rows", {}, 2),
    ("mlu_remapped_uncorrect_rows", {}, 1),
    ("mlu_repair_failure", {}, 0),
    ("mlu_repair_pending", {}, 1),
    ("mlu_single_bit_retired_page_count", {}, 6),
    ("mlu_double_bit_retired_page_count", {}, 7),
    ("mlu_mlulink_status", {"link": "0"}, 3),
    ("mlu_mlulink_status", {"link": "1"}, 0),
    ("mlu_mlulink_serdes_status", {"link": "1"}, 2),
    ("mlu_mlulink_cable_status", {"link": "0"}, 1),
    ("mlu_mlulink_speed", {"link": "0"}, 25),
    ("mlu_mlulink_cntr_cnp_package_total", {"link": "0"}, 21),
    ("mlu_core_voltage", {}, 750),
    ("mlu_soc_voltage", {}, None),
    ("mlu_soc_current", {}, 1500),
    ("mlu_over_temp_under_clock_total", {}, 4),
    ("mlu_thermal_slow_down", {}, 1),
    ("mlu_sram_ecc_dbe_count", {}, 2),
    ("mlu_aggr_dram_ecc_sbe_count", {}, 14),
    ("mlu_aggr_sram_ecc_parity_count", {}, 13),
    ("mlu_aggr_sram_ecc_threshold_exceed", {}, 1),
    ("mlu_ecc_multiple_one_error_total", {}, 7),
    ("mlu_parity_error", {}, 16),
    ("mlu_d2d_crc_error_total", {}, 17),
    ("mlu_memory_reserved", {}, 512 << 20),
    ("mlu_virtual_memory_used", {}, 10240 << 20),
    ("mlu_optical_status", {"link": "1"}, 0),
    ("mlu_optical_temperature", {"link": "0"}, 45.5),
    ("mlu_optical_voltage", {"link": "0"}, 3.25),
    ("mlu_fan_speed", {}, None),
]


def page_of(folder: Path, *lines: str, is_used: bool = False) -> AliasPage:
    stub = stub_of(folder, *machine(1), *lines)
    with session(stub, tree_of(folder, 1)) as child:
        inventory, samples = child.discover(), child.sample()
    return AliasPage(CambriconVendor.description, MLU_EXPORTER, inventory, samples, is_used=is_used)


def test_a_series_of_a_card_has_the_labels_of_mlu_exporter(tmp_path: Path) -> None:
    (labels,) = page_of(tmp_path).labels("mlu_chip_temperature")
    assert labels == {
        "driver": "v4.20.11",
        "mcu": "v1.1.6",
        "mlu": "0",
        "model": "MLU370-X4",
        "node": snapshot().node.name,
        "sn": labels["sn"],
        "type": "mlu370",
        "uuid": "00000000-0000-4000-8000-000000000000",
    }


def test_each_figure_has_the_name_and_the_unit_of_mlu_exporter(tmp_path: Path) -> None:
    page = page_of(tmp_path, *EVERYTHING, *BUSY)
    found = [(name, labels, page.value(name, **labels)) for name, labels, _ in EXPECTED]
    assert found == EXPECTED


def test_a_container_that_has_a_card_is_named(tmp_path: Path) -> None:
    (labels,) = page_of(tmp_path, is_used=True).labels("mlu_container")
    assert (labels["namespace"], labels["pod"]) == (USER.namespace, USER.name)
    assert labels["container"] == USER.containers[0].name


def test_the_cards_of_a_node_are_counted_by_one_series(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert page.value("mlu_machine_mlu_nums") == 1
    (labels,) = page.labels("mlu_machine_mlu_nums")
    assert sorted(labels) == ["driver", "model", "node", "type"]
