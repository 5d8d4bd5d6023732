"""DCMI's structures on 64-bit machines, and functions that read their members."""

from __future__ import annotations

import ctypes

from plugins.shared import c_structures

U32 = 0xFFFFFFFF  # in unsigned members: no value, or let the driver choose

_TABLE: dict[str, str] = {
    "chip_info": "100 4: chip_type@0:c32 chip_name@32:c32 chip_ver@64:c32 aicore_cnt@96:u32",
    "chip_info_v2": "132 4: chip_type@0:c32 chip_name@32:c32 chip_ver@64:c32 aicore_cnt@96:u32"
    " npu_name@100:c32",
    "pcie_info_all": "64 4: vendor@0:u32 subvendor@4:u32 device@8:u32 subdevice@12:u32"
    " domain@16:i32 bus@20:u32 dev@24:u32 func@28:u32 reserved@32:u8*32",
    "die_id": "20 4: soc_die@0:u32*5",
    "board_info": "16 4: board_id@0:u32 pcb_id@4:u32 bom_id@8:u32 slot_id@12:u32",
    "elabel": "1280 1: product_name@0:c256 model@256:c256 manufacturer@512:c256 date@768:c256"
    " serial@1024:c256",
    "hbm_info": "32 8: memory_size@0:u64 freq@8:u32 memory_usage@16:u64 temp@24:i32"
    " bandwidth_util@28:u32",
    "memory_info_v3": "112 8: memory_size@0:u64 memory_available@8:u64 freq@16:u32"
    " hugepagesize@24:u64 hugepages_total@32:u64 hugepages_free@40:u64 util@48:u32"
    " reserved@52:u8*60",
    "memory_info": "16 8: memory_size@0:u64 freq@8:u32 util@12:u32",
    "multi_utilization": "48 4: aic@0:u32 aiv@4:u32 aicore@8:u32 npu@12:u32 reserved@16:u32*8",
    "ecc_info": "36 4: enable@0:i32 single@4:u32 double@8:u32 total_single@12:u32"
    " total_double@16:u32 single_isolated@20:u32 double_isolated@24:u32 next_single@28:u32"
    " next_double@32:u32",
    "proc_mem_info": "16 8: pid@0:i32 bytes@8:u64",
    "ip_addr": "20 4: addr@0:u8*16 type@16:i32",
    "event_filter": "48 8: flags@0:u64 event_id@8:u32 severity@12:u8 node_type@13:u8"
    " reserved@14:u8*32",
    "dms_fault_event": "352 8: event_id@0:u32 deviceid@4:u16 node_type@6:u8 node_id@7:u8"
    " sub_node_type@8:u8 sub_node_id@9:u8 severity@10:u8 assertion@11:u8 event_serial@12:i32"
    " notify_serial@16:i32 raised@24:u64 event_name@32:c256 additional@288:c32"
    " reserved@320:u8*32",
    "dcmi_event": "360 8: type@0:i32 fault@8:dms_fault_event",
    "spod_info": "48 4: sdid@0:u32 scale_type@4:u32 super_pod_id@8:u32 server_id@12:u32"
    " chassis_id@16:u32 super_pod_type@20:u32 reserved@24:u32*6",
    "base_resource": "64 8: token@0:u64 token_max@8:u64 task_timeout@16:u64 vfg_id@24:u32"
    " vip_mode@28:u8 reserved@29:u8*31",
    "computing_resource": "96 8: aic@0:f32 aiv@4:f32 dsa@8:u16 rtsq@10:u16 acsq@12:u16 cdqm@14:u16"
    " c_core@16:u16 ffts@18:u16 sdma@20:u16 pcie_dma@22:u16 memory_size@24:u64 event@32:u32"
    " notify@36:u32 stream@40:u32 model@44:u32 topic_schedule_aicpu@48:u16 host_ctrl_cpu@50:u16"
    " host_aicpu@52:u16 device_aicpu@54:u16 topic_ctrl_slot@56:u16 vdev_aicore_util@60:u32"
    " vdev_mem_total@64:u64 vdev_mem_free@72:u64 reserved@80:u8*12",
    "media_resource": "56 4: jpegd@0:f32 jpege@4:f32 vpc@8:f32 vdec@12:f32 pngd@16:f32 venc@20:f32"
    " reserved@24:u8*32",
    "create_vdev_res": "104 4: vdev_id@0:u32 vfg_id@4:u32 template@8:c32 reserved@40:u8*64",
    "create_vdev_out": "52 4: vdev_id@0:u32 pcie_bus@4:u32 pcie_device@8:u32 pcie_func@12:u32"
    " vfg_id@16:u32 reserved@20:u8*32",
    "vdev_query_info": "256 8: name@0:c16 status@16:u32 container_used@20:u32 vfid@24:u32"
    " vfg_id@28:u32 container_id@32:u64 base@40:base_resource computing@104:computing_resource"
    " media@200:media_resource",
    "vdev_query": "264 8: vdev_id@0:u32 info@8:vdev_query_info",
    "soc_total_resource": "360 8: vdev_num@0:u32 vdev_id@4:u32*32 vfg_num@132:u32"
    " vfg_bitmap@136:u32 base@144:base_resource computing@208:computing_resource"
    " media@304:media_resource",
    "soc_free_resource": "224 8: vfg_num@0:u32 vfg_bitmap@4:u32 base@8:base_resource"
    " computing@72:computing_resource media@168:media_resource",
    "hccs_statistic": "512 4: tx@0:u32*16 rx@64:u32*16 crc_err@128:u32*16 retry@192:u32*16"
    " reserved@256:u32*64",
    "hccs_statistic_u64": "1024 8: tx@0:u64*16 rx@128:u64*16 crc_err@256:u64*16 retry@384:u64*16"
    " reserved@512:u64*64",
    "hccs_bandwidth": "280 8: profiling_time@0:i32 total_tx@8:f64 total_rx@16:f64 tx@24:f64*16"
    " rx@152:f64*16",
    "pcie_bandwidth": "88 4: profiling_time@0:i32 tx_p@4:u32*3 tx_np@16:u32*3 tx_cpl@28:u32*3"
    " tx_latency@40:u32*3 rx_p@52:u32*3 rx_np@64:u32*3 rx_cpl@76:u32*3",
    "network_packets": "464 8: mac_tx_pause@0:u64 mac_rx_pause@8:u64 mac_tx_pfc@16:u64"
    " mac_tx_pfc_by_priority@24:u64*8 mac_rx_pfc@88:u64 mac_rx_pfc_by_priority@96:u64*8"
    " mac_tx_packets@160:u64 mac_tx_bytes@168:u64 mac_tx_bad_packets@176:u64"
    " mac_tx_bad_bytes@184:u64 mac_rx_packets@192:u64 mac_rx_bytes@200:u64"
    " mac_rx_bad_packets@208:u64 mac_rx_bad_bytes@216:u64 mac_rx_fcs_errors@224:u64"
    " roce_rx_rc@232:u64 roce_rx_packets@240:u64 roce_rx_errors@248:u64 roce_tx_rc@256:u64"
    " roce_tx_packets@264:u64 roce_tx_errors@272:u64 roce_completions@280:u64"
    " roce_rx_cnp@288:u64 roce_tx_cnp@296:u64 roce_unexpected_acks@304:u64"
    " roce_out_of_order@312:u64 roce_verification_errors@320:u64 roce_qp_errors@328:u64"
    " roce_retries@336:u64 roce_ecn@344:u64 nic_tx_packets@352:u64 nic_tx_bytes@360:u64"
    " nic_rx_packets@368:u64 nic_rx_bytes@376:u64 seconds@384:i64 microseconds@392:i64"
    " reserved@400:u8*64",
    "rdma_bandwidth": "8 4: tx@0:u32 rx@4:u32",
    "sio_crc": "12 2: tx_err@0:u16 rx_err@2:u16 reserved@4:u8*8",
}

STRUCTURES = c_structures.StructureTable(_TABLE)
NAMES = tuple(_TABLE)


def structure(name: str) -> type[ctypes.Structure]:
    """Return the structure of that name; raises `VendorFault` if its layout differs here.

    With another layout than that of the table, one member would be read as another.
    """
    return STRUCTURES[name]


def text_member(record: ctypes.Structure, member: str) -> str:
    """Return a text up to its first NUL, stripped, without characters that are not ASCII."""
    return c_structures.decode_c_text(getattr(record, member))


def number_member(record: ctypes.Structure, member: str) -> int:
    """Return an integer member."""
    return int(getattr(record, member))


def numbers_member(record: ctypes.Structure, member: str) -> tuple[int, ...]:
    """Return a member that is an array of integers."""
    return tuple(int(value) for value in getattr(record, member))


def structure_member(record: ctypes.Structure, member: str) -> ctypes.Structure:
    """Return a member that is a structure."""
    value = getattr(record, member)
    assert isinstance(value, ctypes.Structure)  # noqa: S101 - the table says so
    return value
