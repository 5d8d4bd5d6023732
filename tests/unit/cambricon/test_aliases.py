"""Names of Cambricon's mlu-exporter for a card behind the stub library."""

from __future__ import annotations

from pathlib import Path

from agent.snapshot.device import Placement
from agent.snapshot.pci import PciLink
from plugins.vendors.cambricon.aliases import MLU_EXPORTER
from plugins.vendors.cambricon.vendor import CambriconVendor
from tests.factory import snapshot
from tests.prometheus.alias_page import USER, AliasPage
from tests.unit.cambricon.cards import machine, session, stub_of, tree_of
from tests.unit.cambricon.test_readings import COUNTERS, EVERYTHING, UUID

BUSY = (
    "mlu.0.temp_board 40",
    "mlu.0.temp_memory 50",
    "mlu.0.compute 1",
    "mlu.0.ecc 6:2:3:5",
    "mlu.0.util 40",
    "mlu.0.mem_used 5827",
    "mlu.0.proc.4100 5120:6144:11:12:13:14:15",
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
    ("mlu_memory_temperature", {}, 50),
    ("mlu_process_virtual_memory_used", {"pid": "4100"}, 6 << 20),
    ("mlu_process_ipu_utilization", {"pid": "4100"}, 11),
    ("mlu_process_jpu_utilization", {"pid": "4100"}, 12),
    ("mlu_process_vpu_decode_utilization", {"pid": "4100"}, 13),
    ("mlu_process_vpu_encode_utilization", {"pid": "4100"}, 14),
    ("mlu_process_memory_utilization", {"pid": "4100"}, 15),
    ("mlu_activity", {}, 37.5),
    ("mlu_tensor_util", {}, 31),
    ("mlu_mpm_ipu_utilization", {}, 41),
    ("mlu_mpm_mlu_utilization", {}, 42),
    ("mlu_mpm_tensor_utilization", {}, 43),
    ("mlu_mpm_pcie_tx_bandwidth", {}, 100),
    ("mlu_mpm_pcie_rx_bandwidth", {}, 200),
    ("mlu_mpm_mlulink_total_tx_bandwidth", {}, 300),
    ("mlu_mpm_mlulink_total_rx_bandwidth", {}, 400),
    ("mlu_mpm_mlulink_tx_bandwidth", {"link": "0", "ppi": "0:1"}, 150),
    ("mlu_mpm_mlulink_rx_bandwidth", {"link": "0", "ppi": "0:1"}, 250),
    ("mlu_tiny_core_utilization", {"tiny_core": "1"}, 2),
    ("mlu_chip_cpu_utilization", {"cpu_core": "1"}, 23),
    ("mlu_chip_cpu_user", {"cpu_core": "1"}, 6),
    ("mlu_chip_cpu_nice", {"cpu_core": "1"}, 7),
    ("mlu_chip_cpu_sys", {"cpu_core": "1"}, 8),
    ("mlu_chip_cpu_si", {"cpu_core": "1"}, 9),
    ("mlu_chip_cpu_hi", {"cpu_core": "1"}, 10),
    ("mlu_cluster_temperature", {"device_cluster": "0"}, 51),
    ("mlu_over_temp_power_off_threshold", {}, 105),
    ("mlu_over_temp_under_clock_threshold", {}, 95),
    ("mlu_frequency_status", {}, 1),
    ("mlu_heartbeat_count", {}, 77),
    ("mlu_driver_state", {}, 1),
    ("mlu_compute_mode", {}, 1),
    ("mlu_virtual_mode", {}, 0),
    ("mlu_allocated", {}, 0),
    ("mlu_ecc_error_total", {}, 5),
    ("mlu_ecc_current_mode", {}, 1),
    ("mlu_ecc_pending_mode", {}, 0),
    ("mlu_arm_os_memory_total", {}, 8 << 20),
    ("mlu_arm_os_memory_used", {}, 4 << 20),
    ("mlu_bar4_memory_total", {}, 65536),
    ("mlu_bar4_memory_used", {}, 1024),
    ("mlu_bar4_memory_free", {}, 64512),
    ("mlu_ddr_band_width", {}, 1229.5),
    ("mlu_ddr_data_width", {}, 64),
    ("mlu_address_swaps_correct_count", {}, 3),
    ("mlu_address_swaps_uncorrect_count", {}, 2),
    ("mlu_address_swaps_none", {}, 1),
    ("mlu_address_swaps_partial", {}, 4),
    ("mlu_address_swaps_max", {}, 27),
    ("mlu_retired_pages_operation_status", {}, 1),
    ("mlu_mlulink_port_number", {}, 2),
    ("mlu_mlulink_port_mode", {"link": "0", "ppi": "0:1"}, 3),
    ("mlu_mlulink_speed_format", {"link": "0"}, 1),
    ("mlu_mlulink_connect_type", {"link": "0"}, 0),
    ("mlu_mlulink_connect_type", {"link": "1"}, 1),
    ("mlu_mlulink_inbound_state", {"link": "0"}, 1),
    ("mlu_mlulink_outbound_state", {"link": "0"}, 0),
    ("mlu_mlulink_p2p_transfer_capability", {"link": "0"}, 1),
    ("mlu_mlulink_interlaken_serdes_capability", {"link": "0"}, 0),
    ("mlu_mlulink_version", {"link": "0", "ppi": "0:1", "link_version": "v2.3.4"}, 1),
    (
        "mlu_mlulink_remote_info",
        {
            "link": "0",
            "remote_uuid": UUID,
            "remote_ip": "10.0.0.9",
            "remote_mac": "02:00:00:0a:0b:ff",
            "remote_port_name": "eth0",
            "remote_mc_sn": "123",
            "remote_ba_sn": "124",
            "remote_slot_id": "5",
            "remote_port_id": "6",
            "remote_ncs_uuid64": "7",
        },
        1,
    ),
    ("mlu_mlulink_err_corrected_total", {"link": "0"}, 12),
    ("mlu_mlulink_err_uncorrected_total", {"link": "0"}, 13),
    ("mlu_mlulink_err_replay_total", {"link": "0"}, 18),
    ("mlu_mlulink_status", {"link": "0", "ppi": "0:1"}, 3),
    ("mlu_optical_tx_power", {"link": "0", "lane": "1"}, 10),
    ("mlu_optical_rx_power", {"link": "0", "lane": "1"}, -40),
    ("mlu_chassis_info", {}, None),
]


def page_of(folder: Path, *lines: str, is_used: bool = False) -> AliasPage:
    stub = stub_of(folder, *machine(1), *lines)
    with session(stub, tree_of(folder, 1)) as child:
        inventory = child.discover()
        child.sample()  # counters give means from the second sample on
        samples = child.sample()
    return AliasPage(CambriconVendor.description, MLU_EXPORTER, inventory, samples, is_used=is_used)


PLACE = Placement(numa_node=1, link=PciLink(speed=80, width=16, max_speed=160, max_width=16))
PART = (
    "mlu.0.smlu_mode 1",
    "mlu.0.profile.3 25:4294967296:4",
    "mlu.0.smlu.5 3:25:4294967296:10:1073741824",
)


def test_every_name_that_is_not_absent_has_data(tmp_path: Path) -> None:
    lines = (*EVERYTHING, *COUNTERS, *BUSY, *PART, "mlu.0.voltage 750:800:1200")
    stub = stub_of(tmp_path, *machine(1), *lines)
    with session(stub, tree_of(tmp_path, 1)) as child:
        inventory = child.discover()
        stub.happen("0 32")
        child.wait_event()
        child.sample()
        samples = child.sample()
    page = AliasPage(
        CambriconVendor.description, MLU_EXPORTER, inventory, samples, is_used=True, place=PLACE
    )
    assert page.names_without_data() == set()


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
    page = page_of(tmp_path, *EVERYTHING, *COUNTERS, *BUSY)
    result = [(name, labels, page.value(name, **labels)) for name, labels, _ in EXPECTED]
    assert result == EXPECTED


def test_a_container_that_has_a_card_is_named(tmp_path: Path) -> None:
    (labels,) = page_of(tmp_path, is_used=True).labels("mlu_container")
    assert (labels["namespace"], labels["pod"]) == (USER.namespace, USER.name)
    assert labels["container"] == USER.containers[0].name


def test_the_cards_of_a_node_are_counted_by_one_series(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert page.value("mlu_machine_mlu_nums") == 1
    (labels,) = page.labels("mlu_machine_mlu_nums")
    assert sorted(labels) == ["driver", "model", "node", "type"]


def test_cards_that_pods_use_are_counted(tmp_path: Path) -> None:
    assert page_of(tmp_path, is_used=True).value("mlu_allocated") == 1


def test_a_port_without_a_name_has_no_label_of_it(tmp_path: Path) -> None:
    page = page_of(tmp_path, *EVERYTHING, *COUNTERS)
    assert [label.get("ppi") for label in page.labels("mlu_mlulink_status")] == ["0:1", None]


def test_the_whole_of_a_card_and_its_parts_are_series_of_one_name(tmp_path: Path) -> None:
    page = page_of(tmp_path, *EVERYTHING)
    assert [label.get("cpu_core") for label in page.labels("mlu_chip_cpu_utilization")] == [
        *(None, "0", "1")
    ]


def test_a_part_of_a_card_has_its_limits_and_its_own_share_of_memory(tmp_path: Path) -> None:
    page = page_of(tmp_path, *PART)
    assert page.value("mlu_memory_utilization", vf="5") == 25
    assert page.value("mlu_virtual_function_memory_utilization", vf="5") == 25
    assert page.value("mlu_utilization", vf="5") == 10
    assert page.value("mlu_virtual_mode") == 2
    (labels,) = page.labels("mlu_smlu_instance_info")
    desired = {"smlu_instance_id": "5", "smlu_ipu_total": "25", "smlu_mem_total": "4294967296"}
    assert desired.items() <= labels.items()
