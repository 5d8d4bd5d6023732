"""The functions of libdcmi that are used, and which of them it must have."""

from __future__ import annotations

CHIP_INFO = ("dcmi_get_device_chip_info_v2", "dcmi_get_device_chip_info")  # either will do

MANDATORY: tuple[str, ...] = (
    "dcmi_init",
    "dcmi_get_card_list",
    "dcmi_get_device_num_in_card",
    "dcmi_get_device_logic_id",
    "dcmi_get_device_phyid_from_logicid",
    "dcmi_get_device_health",
)

OPTIONAL: tuple[str, ...] = (
    *CHIP_INFO,
    "dcmi_get_dcmi_version",
    "dcmi_get_device_type",
    "dcmi_get_device_pcie_info_v2",
    "dcmi_get_device_board_info",
    "dcmi_get_mainboard_id",
    "dcmi_get_product_type",
    "dcmi_get_card_elabel_v2",
    "dcmi_get_device_die_v2",
    "dcmi_get_device_errorcode_v2",
    "dcmi_subscribe_fault_event",
    "dcmi_get_device_network_health",
    "dcmi_get_device_boot_status",
    "dcmi_get_device_hbm_info",
    "dcmi_get_device_memory_info_v3",
    "dcmi_get_memory_info",
    "dcmi_get_device_utilization_rate",
    "dcmi_get_device_multi_utilization_rate",
    "dcmi_get_device_multi_utilization_rate_period",
    "dcmi_get_device_power_info",
    "dcmi_mcu_get_power_info",
    "dcmi_get_device_temperature",
    "dcmi_get_device_voltage",
    "dcmi_get_device_frequency",
    "dcmi_get_device_ecc_info",
    "dcmi_get_device_resource_info",
    "dcmi_get_device_ip",
    "dcmi_get_device_info",
    "dcmi_get_topo_info_by_device_id",
    "dcmi_get_multi_die_policy",
    "dcmi_create_vdevice",
    "dcmi_set_destroy_vdevice",
)

SECOND_INIT = "dcmiv2_init"  # of the 950 generation, whose other functions are not published
