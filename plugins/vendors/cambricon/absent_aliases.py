"""Names of Cambricon's mlu-exporter that the agent has no value for, by the reason."""

from __future__ import annotations

from collections.abc import Iterator

from agent.snapshot.vendor import AliasMatch, MetricAlias

_NOT_READ = "The agent does not read it from CNDev."
_BY_REASON = {
    _NOT_READ: """
        activity address_swaps_correct_count address_swaps_max address_swaps_none
        address_swaps_partial address_swaps_uncorrect_count arm_os_memory_total arm_os_memory_used
        bar4_memory_total bar4_memory_used bar4_memory_free chip_cpu_utilization chip_cpu_hi
        chip_cpu_nice chip_cpu_si chip_cpu_sys chip_cpu_user cluster_temperature compute_mode
        ddr_band_width ddr_data_width driver_state ecc_current_mode ecc_error_total ecc_pending_mode
        frequency_status heartbeat_count mlulink_connect_type mlulink_inbound_state
        mlulink_interlaken_serdes_capability mlulink_outbound_state mlulink_p2p_transfer_capability
        mlulink_port_mode mlulink_port_number mlulink_remote_info mlulink_speed_format
        mlulink_version over_temp_power_off_threshold over_temp_under_clock_threshold
        process_ipu_utilization process_jpu_utilization process_memory_utilization
        process_vpu_decode_utilization process_vpu_encode_utilization process_virtual_memory_used
        retired_pages_operation_status tensor_util tiny_core_utilization virtual_mode
    """,
    "CNDev 6 keeps its place but has no fan speed.": """
        fan_speed
    """,
    "xpu_mlu_optical_power_watts has it in watts; this name has dBm, which no factor makes.": """
        optical_rx_power optical_tx_power
    """,
    "It needs CNDev's performance counters (MPM), which the agent does not read.": """
        mpm_ipu_utilization mpm_mlu_utilization mpm_tensor_utilization mpm_pcie_tx_bandwidth
        mpm_pcie_rx_bandwidth mpm_mlulink_total_tx_bandwidth mpm_mlulink_total_rx_bandwidth
        mpm_mlulink_tx_bandwidth mpm_mlulink_rx_bandwidth
    """,
    "It is about the case of the node and not about a card.": """
        chassis_ib_info chassis_info chassis_nvme_info chassis_psu_info
    """,
    "It is about the host and not about a card: node_exporter's names have it.": """
        host_boot_time host_cpu_idle host_cpu_total host_memory_free host_memory_total
    """,
    "It describes the device, and is no figure.": """
        mim_instance_info mim_profile_info mim_profile_total_capacity numa_node_id
        pcie_current_speed pcie_current_width pcie_max_speed pcie_max_width pcie_info
        rdma_device_info smlu_instance_info smlu_profile_info smlu_profile_total_capacity
    """,
    "Newer versions of mlu-exporter have it with the figures of the card, by the label vf.": """
        virtual_function_memory_utilization virtual_function_power_usage
    """,
    "It is the last fault alone: mlu_xid_error_count has them all.": """
        xid_error last_xid_error
    """,
    "Count the series of mlu_container.": """
        allocated
    """,
    "It is about the mode env-share of Cambricon's device plug-in.": """
        env_share_exhausted
    """,
}


def absent_aliases(prefix: str) -> Iterator[MetricAlias]:
    """Yield the absent families, whose names all start with the prefix."""
    for reason, names in _BY_REASON.items():
        for name in names.split():
            yield MetricAlias(
                name=f"{prefix}{name}", type="gauge", match=AliasMatch.ABSENT, note=reason
            )
