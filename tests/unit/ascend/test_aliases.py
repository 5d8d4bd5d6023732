"""Names of mindcluster's npu-exporter for a chip behind the stub library."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from plugins.vendors.ascend.aliases import NPU_EXPORTER
from plugins.vendors.ascend.vendor import AscendVendor
from tests.patience import PATIENCE_S
from tests.prometheus.alias_page import USER, AliasPage
from tests.stubs.dcmi.library import NETWORK_COUNTERS
from tests.stubs.dcmi.machines import b3 as one
from tests.unit.ascend.conftest import Machine
from tests.unit.ascend.test_hccn_tool import SCRIPT, tool
from tests.unit.ascend.test_readings import TRAFFIC

CHIP: dict[str, object] = {
    **TRAFFIC,
    "serial": "1023A0",
    "codes": "8C2FA009,80CB8009",
    "hbm_used": 4096,
    "clock": 1800,
    "hccs_tx": "0,5,9",
    "hccs_rx": "0,6,9",
    "hccs_crc": "0,1,2",
    "ecc": "5:6:1:2:3:4:1",
}
VNPU = ["vdev.0.0.100 vir05_1c_16g:5:16384", "vdev_use.0.0.100 40:16777216:8388608"]

EXPECTED: list[tuple[str, dict[str, str], float | None]] = [
    ("machine_npu_nums", {}, 1),
    ("npu_chip_info_aicore_current_freq", {}, 1800),
    ("npu_chip_info_power", {}, 101.8),
    ("npu_chip_info_temperature", {}, 43),
    ("npu_chip_info_health_status", {}, 0),  # by its error codes
    ("npu_chip_info_error_code", {}, 0x80CB8009),
    ("npu_chip_info_error_code_1", {}, 0x8C2FA009),
    ("npu_chip_info_error_code_2", {}, None),
    ("npu_chip_info_serial_number", {"serial_number": "1023A0"}, 1),
    ("npu_chip_info_process_info_num", {}, 2),
    ("npu_chip_info_process_info", {"process_id": "4100"}, 3),
    ("npu_chip_info_hbm_total_memory", {}, 65536),
    ("npu_chip_info_hbm_used_memory", {}, 4096),
    ("npu_chip_info_hbm_ecc_total_double_bit_error_cnt", {}, 6),
    ("npu_chip_info_hbm_ecc_double_bit_isolated_pages_cnt", {}, 4),
    ("npu_chip_info_hbm_ecc_enable_flag", {}, 1),
    ("container_npu_total_memory", {}, 65536),
    ("container_npu_used_memory", {}, 4096),
    ("vnpu_pod_aicore_utilization", {"v_dev_id": "100", "is_virtual": "true"}, 40),
    ("vnpu_pod_used_memory", {"v_dev_id": "100"}, 8388608),
    ("vnpu_pod_total_memory", {"v_dev_id": "100"}, 16777216),
    ("npu_chip_info_hccs_statistic_info_tx_cnt_1", {}, 5),
    ("npu_chip_info_hccs_statistic_info_rx_cnt_1", {}, 6),
    ("npu_chip_info_hccs_statistic_info_crc_err_cnt_2", {}, 2),
    ("npu_chip_info_hccs_bandwidth_info_total_tx", {}, 3.5),
    ("npu_chip_info_hccs_bandwidth_info_rx_2", {}, 4),
    ("npu_chip_info_pcie_tx_p_bw", {"pcie_bw_type": "avgPcieBw"}, 2),
    ("npu_chip_info_pcie_rx_p_bw", {"pcie_bw_type": "maxPcieBw"}, 6),
    ("npu_chip_info_bandwidth_tx", {}, 12),
    ("npu_chip_info_bandwidth_rx", {}, 34),
    (
        "npu_chip_mac_tx_pause_num",
        {},
        NETWORK_COUNTERS.index("mac_tx_pause") + 1,
    ),
    ("npu_chip_roce_out_of_order_num", {}, NETWORK_COUNTERS.index("roce_out_of_order") + 1),
    ("npu_chip_link_speed", {}, None),
]


@pytest.fixture
def page(b3: Machine) -> AliasPage:
    """Return the page of a chip that a pod uses, with two processes and a vNPU."""
    processes = ["chip.0.0.proc.4100 3145728", "chip.0.0.proc.77 1048576"]
    b3.stub.play("card_list 0", *one(0, **CHIP), *processes, *VNPU)
    until_s = time.monotonic() + PATIENCE_S
    with b3.session() as child:
        inventory = child.discover()
        while time.monotonic() < until_s:
            samples = child.sample()
            page = AliasPage(
                AscendVendor.description, NPU_EXPORTER, inventory, samples, is_used=True
            )
            if page.series.get("npu_chip_roce_out_of_order_num"):  # read on another thread
                return page
            time.sleep(0.02)
    raise TimeoutError


def ports(first: int) -> str:
    """Return a number for each of the eight HCCS ports."""
    return ",".join(str(first + port) for port in range(8))


EVERYTHING: dict[str, object] = {
    **CHIP,
    "codes": ",".join(f"8C2FA0{number:02}" for number in range(10)),
    "multi": "10:20:30:40",
    "sio": "1,2",
    "ip": "10.0.0.5",
    "net": 0,
    "hccs_tx": ports(10),
    "hccs_rx": ports(20),
    "hccs_crc": ports(30),
    "hccs_rate_tx": ports(1).replace(",", ":"),
    "hccs_rate_rx": ports(2).replace(",", ":"),
}


OF_DDR = {"npu_chip_info_total_memory", "npu_chip_info_used_memory"}  # a 910B has none


def test_every_name_that_is_not_absent_has_data(b3: Machine, tmp_path: Path) -> None:
    root = tmp_path / "driver"
    tool(root, SCRIPT.replace("NA\n", "0.5 mW\n"))
    b3.stub.play("card_list 0", *one(0, **EVERYTHING), "chip.0.0.proc.4100 3145728", *VNPU)
    until_s = time.monotonic() + PATIENCE_S
    missing = {""}
    with b3.session(driver_root=str(root)) as child:
        inventory = child.discover()
        while time.monotonic() < until_s and missing != OF_DDR:  # other threads read some of it
            samples = child.sample()
            page = AliasPage(
                AscendVendor.description, NPU_EXPORTER, inventory, samples, is_used=True
            )
            missing = page.names_without_data()
            time.sleep(0.02)
    assert missing == OF_DDR


def test_a_chip_with_ddr_memory_has_its_figures(b3: Machine) -> None:
    without_hbm = dict.fromkeys(("hbm", "hbm_used", "hbm_temp", "hbm_busy"))
    ddr = {"name": "310P3", "device": "d500", "ddr": 21527, "ddr_free": 20000}
    b3.stub.play("card_list 0", *one(0, **without_hbm, **ddr))
    with b3.session() as child:
        inventory, samples = child.discover(), child.sample()
    page = AliasPage(AscendVendor.description, NPU_EXPORTER, inventory, samples)
    assert page.value("npu_chip_info_total_memory") == 21527
    assert page.value("npu_chip_info_used_memory") == 1527
    assert samples[0].memory_used_bytes == 1527 << 20
    assert page.value("npu_chip_info_hbm_total_memory") is None


def test_a_series_of_a_chip_has_the_labels_of_npu_exporter(page: AliasPage) -> None:
    (labels,) = page.labels("npu_chip_info_temperature")
    assert labels == {
        "id": "0",
        "model_name": "910B3-Ascend-V1",
        "vdie_id": labels["vdie_id"],
        "pcie_bus_info": labels["pcie_bus_info"],
        "namespace": USER.namespace,
        "pod_name": USER.name,
        "container_name": USER.containers[0].name,
    }
    assert labels["pcie_bus_info"] == labels["pcie_bus_info"].upper()
    (named,) = page.labels("npu_chip_info_name")
    assert named["name"] == "910B3-Ascend-V1"
    assert "model_name" not in named


def test_a_vnpu_has_the_pod_that_uses_it(page: AliasPage) -> None:
    (labels,) = page.labels("vnpu_pod_aicore_utilization")
    assert labels == {
        "id": "0",
        "model_name": "910B3-Ascend-V1",
        "v_dev_id": "100",
        "is_virtual": "true",
        "namespace": USER.namespace,
        "pod_name": USER.name,
        "container_name": USER.containers[0].name,
    }


def test_each_figure_has_the_name_and_the_unit_of_npu_exporter(page: AliasPage) -> None:
    result = [(name, labels, page.value(name, **labels)) for name, labels, _ in EXPECTED]
    assert result == EXPECTED


def test_a_chip_that_no_pod_uses_has_no_series_of_containers(b3: Machine) -> None:
    b3.stub.play("card_list 0", *one(0))
    with b3.session() as child:
        inventory, samples = child.discover(), child.sample()
    page = AliasPage(AscendVendor.description, NPU_EXPORTER, inventory, samples)
    assert page.value("npu_chip_info_utilization") == 0
    assert "container_npu_utilization" not in page.series
