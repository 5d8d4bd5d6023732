"""libdcmi: what the agent asks of an Ascend chip, by its card and its number in the card.

    card_list 0,1,4     card.<c>.chips 2     version 24.1.rc1     die_policy 0
    chip.<c>.<d>.{type,logic,phy,cores,board_id,mainboard}, board_id and mainboard hexadecimal
    chip.<c>.<d>.{name,chip_type,product,serial}
    chip.<c>.<d>.die a:b:c:d:e     chip.<c>.<d>.pci domain:bus:device:function   both hexadecimal
    chip.<c>.<d>.device PCI device id, hexadecimal
    chip.<c>.<d>.{hbm,hbm_used,hbm_temp,hbm_busy,ddr,ddr_free}   MB, degrees, percent
    chip.<c>.<d>.{aic,aicpu}   of the whole chip, as the management of vNPUs counts them
    chip.<c>.<d>.{health,net,boot}   chip.<c>.<d>.codes 80E01801,0
    chip.<c>.<d>.{power,mcu_power} 0.1 W   {temp} degrees   {volt} 0.01 V   {clock} MHz
    chip.<c>.<d>.util percent (AI core), util_<type> others, multi aic:aiv:aicore:npu, multi_period
    chip.<c>.<d>.ecc single:double[:both since the reset:isolated pages for each:enabled]
    chip.<c>.<d>.proc.<pid> bytes     chip.<c>.<d>.ip a.b.c.d
    chip.<c>.<d>.spod sdid:pod:server   chip.<c>.<d>.hccs_{tx,rx,crc,retry} one a port   .sio tx,rx
    chip.<c>.<d>.packets counters of the RoCE port, n,n,n   .rdma tx:rx MB/s
    chip.<c>.<d>.pcie_{tx,rx}_{p,np,cpl} min:max:average MB/ms
    chip.<c>.<d>.hccs_total tx:rx GB/s   .hccs_rate_{tx,rx} one a port, a:b
    chip.<c>.<d>.hccs_narrow 1   only the counters of 32 bits
    topo.<c1>.<d1>.<c2>.<d2> 0 to 7
    vdev.<c>.<d>.<id> template:cores:MB   vdev_use.<c>.<d>.<id> percent:total:free (KB)
    template.<name> cores:MB     what making one gives, if the name does not say it

Events: `<c> <d> <code, hexadecimal> <severity> <assertion>`. Without a line: -8255.
"""

from __future__ import annotations

from tests.stubs.describe import Get, Library, Symbol, records

RECORDS = records("""
chip_info 100 4: chip_type@0:c32 chip_name@32:c32 chip_ver@64:c32 aicore_cnt@96:u32
chip_info_v2 132 4: chip_type@0:c32 chip_name@32:c32 chip_ver@64:c32 aicore_cnt@96:u32
  npu_name@100:c32
pcie_info_all 64 4: vendor@0:u32 subvendor@4:u32 device@8:u32 subdevice@12:u32 domain@16:i32
  bus@20:u32 dev@24:u32 func@28:u32 reserved@32:u8*32
die_id 20 4: soc_die@0:u32*5
board_info 16 4: board_id@0:u32 pcb_id@4:u32 bom_id@8:u32 slot_id@12:u32
elabel 1280 1: product_name@0:c256 model@256:c256 manufacturer@512:c256 date@768:c256
  serial@1024:c256
hbm_info 32 8: memory_size@0:u64 freq@8:u32 memory_usage@16:u64 temp@24:i32 bandwidth_util@28:u32
memory_info_v3 112 8: memory_size@0:u64 memory_available@8:u64 freq@16:u32 hugepagesize@24:u64
  hugepages_total@32:u64 hugepages_free@40:u64 util@48:u32 reserved@52:u8*60
memory_info 16 8: memory_size@0:u64 freq@8:u32 util@12:u32
multi_utilization 48 4: aic@0:u32 aiv@4:u32 aicore@8:u32 npu@12:u32 reserved@16:u32*8
ecc_info 36 4: enable@0:i32 single@4:u32 double_bit@8:u32 total_single@12:u32 total_double@16:u32
  single_isolated@20:u32 double_isolated@24:u32 next_single@28:u32 next_double@32:u32
proc_mem_info 16 8: pid@0:i32 bytes@8:u64
ip_addr 20 4: addr@0:u8*16 type@16:i32
event_filter 48 8: flags@0:u64 event_id@8:u32 severity@12:u8 node_type@13:u8 reserved@14:u8*32
dms_fault_event 352 8: event_id@0:u32 deviceid@4:u16 node_type@6:u8 node_id@7:u8
  sub_node_type@8:u8 sub_node_id@9:u8 severity@10:u8 assertion@11:u8 event_serial@12:i32
  notify_serial@16:i32 raised@24:u64 event_name@32:c256 additional@288:c32 reserved@320:u8*32
dcmi_event 360 8: type@0:i32 fault@8:dms_fault_event
spod_info 48 4: sdid@0:u32 scale_type@4:u32 super_pod_id@8:u32 server_id@12:u32 chassis_id@16:u32
  super_pod_type@20:u32 reserved@24:u32*6
base_resource 64 8: token@0:u64 token_max@8:u64 task_timeout@16:u64 vfg_id@24:u32 vip_mode@28:u8
  reserved@29:u8*31
computing_resource 96 8: aic@0:f32 aiv@4:f32 dsa@8:u16 rtsq@10:u16 acsq@12:u16 cdqm@14:u16
  c_core@16:u16 ffts@18:u16 sdma@20:u16 pcie_dma@22:u16 memory_size@24:u64 event@32:u32
  notify@36:u32 stream@40:u32 model@44:u32 topic_schedule_aicpu@48:u16 host_ctrl_cpu@50:u16
  host_aicpu@52:u16 device_aicpu@54:u16 topic_ctrl_slot@56:u16 vdev_aicore_util@60:u32
  vdev_mem_total@64:u64 vdev_mem_free@72:u64 reserved@80:u8*12
media_resource 56 4: jpegd@0:f32 jpege@4:f32 vpc@8:f32 vdec@12:f32 pngd@16:f32 venc@20:f32
  reserved@24:u8*32
create_vdev_res 104 4: vdev_id@0:u32 vfg_id@4:u32 template@8:c32 reserved@40:u8*64
create_vdev_out 52 4: vdev_id@0:u32 pcie_bus@4:u32 pcie_device@8:u32 pcie_func@12:u32 vfg_id@16:u32
  reserved@20:u8*32
vdev_query_info 256 8: name@0:c16 status@16:u32 container_used@20:u32 vfid@24:u32 vfg_id@28:u32
  container_id@32:u64 base@40:base_resource computing@104:computing_resource
  media@200:media_resource
vdev_query 264 8: vdev_id@0:u32 info@8:vdev_query_info
soc_total_resource 360 8: vdev_num@0:u32 vdev_id@4:u32*32 vfg_num@132:u32 vfg_bitmap@136:u32
  base@144:base_resource computing@208:computing_resource media@304:media_resource
soc_free_resource 224 8: vfg_num@0:u32 vfg_bitmap@4:u32 base@8:base_resource
  computing@72:computing_resource media@168:media_resource
hccs_statistic 512 4: tx@0:u32*16 rx@64:u32*16 crc_err@128:u32*16 retry@192:u32*16
  reserved@256:u32*64
hccs_statistic_u64 1024 8: tx@0:u64*16 rx@128:u64*16 crc_err@256:u64*16 retry@384:u64*16
  reserved@512:u64*64
hccs_bandwidth 280 8: profiling_time@0:i32 total_tx@8:f64 total_rx@16:f64 tx@24:f64*16 rx@152:f64*16
pcie_bandwidth 88 4: profiling_time@0:i32 tx_p@4:u32*3 tx_np@16:u32*3 tx_cpl@28:u32*3
  tx_latency@40:u32*3 rx_p@52:u32*3 rx_np@64:u32*3 rx_cpl@76:u32*3
network_packets 464 8: mac_tx_pause@0:u64 mac_rx_pause@8:u64 mac_tx_pfc@16:u64
  mac_tx_pfc_by_priority@24:u64*8 mac_rx_pfc@88:u64 mac_rx_pfc_by_priority@96:u64*8
  mac_tx_packets@160:u64 mac_tx_bytes@168:u64 mac_tx_bad_packets@176:u64
  mac_tx_bad_bytes@184:u64 mac_rx_packets@192:u64 mac_rx_bytes@200:u64
  mac_rx_bad_packets@208:u64 mac_rx_bad_bytes@216:u64 mac_rx_fcs_errors@224:u64
  roce_rx_rc@232:u64 roce_rx_packets@240:u64 roce_rx_errors@248:u64 roce_tx_rc@256:u64
  roce_tx_packets@264:u64 roce_tx_errors@272:u64 roce_completions@280:u64 roce_rx_cnp@288:u64
  roce_tx_cnp@296:u64 roce_unexpected_acks@304:u64 roce_out_of_order@312:u64
  roce_verification_errors@320:u64 roce_qp_errors@328:u64 roce_retries@336:u64 roce_ecn@344:u64
  nic_tx_packets@352:u64 nic_tx_bytes@360:u64 nic_rx_packets@368:u64 nic_rx_bytes@376:u64
  seconds@384:i64 microseconds@392:i64 reserved@400:u8*64
rdma_bandwidth 8 4: tx@0:u32 rx@4:u32
sio_crc 12 2: tx_err@0:u16 rx_err@2:u16 reserved@4:u8*8
""")

# the counters of the RoCE port in the order of the scenario's line
NETWORK_COUNTERS = tuple(
    member.name
    for record in RECORDS
    if record.name == "network_packets"
    for member in record.members
    if member.type == "u64" and not member.count
)
PCIE_RATES = ("tx_p", "tx_np", "tx_cpl", "rx_p", "rx_np", "rx_cpl")
NEXT = 100_000  # a driver of the generation whose other functions nobody has described
_CHIP = "chip.{c}.{d}."
_CHIP_INFO = {
    "chip_type": Get(_CHIP + "chip_type", "Ascend"),
    "chip_name": Get(_CHIP + "name"),
    "chip_ver": Get("", "V1"),
    "aicore_cnt": Get(_CHIP + "cores", "0"),
}
_HEX_PLACE = {
    name: Get(_CHIP + "pci", part=part, base=16)
    for part, name in enumerate(("domain", "bus", "dev", "func"))
}


def _number(
    symbol: str, path: str, *, before: str = "", base: int = 0, kind: str = "int"
) -> Symbol:
    """Return a function that writes one number of a chip."""
    arguments = f"int c, int d, {before}{kind} *to"
    return Symbol(symbol, arguments, {"to": Get(_CHIP + path, base=base)})


def _unheard(symbol: str, arguments: str) -> Symbol:
    """Return a function that the agent has no use for."""
    return Symbol(symbol, arguments, "    return -8255;")


SYMBOLS = (
    Symbol("dcmi_init", "", "    return 0;"),
    Symbol("dcmiv2_init", "", "    return 0;", since=NEXT),
    Symbol("dcmi_get_dcmi_version", "char *text, int len", {"text": Get("version")}),
    Symbol(
        "dcmi_get_card_list",
        "int *num, int *list, int len",
        "    return dcmi_cards(num, list, len);",
    ),
    Symbol("dcmi_get_device_num_in_card", "int c, int *to", {"to": Get("card.{c}.chips", "1")}),
    _unheard("dcmi_get_device_id_in_card", "int c, int *max, int *mcu, int *cpu"),
    Symbol("dcmi_get_device_type", "int c, int d, int *to", {"to": Get(_CHIP + "type", "0")}),
    Symbol("dcmi_get_device_logic_id", "int *to, int c, int d", {"to": Get(_CHIP + "logic")}),
    Symbol(
        "dcmi_get_device_phyid_from_logicid",
        "unsigned logic, unsigned *to",
        "    return dcmi_phy_of(logic, to);",
    ),
    _unheard("dcmi_get_device_logicid_from_phyid", "unsigned phy, unsigned *to"),
    _unheard("dcmi_get_card_id_device_id_from_logicid", "int *card, int *chip, unsigned logic"),
    _unheard("dcmi_get_card_id_device_id_from_phyid", "int *card, int *chip, unsigned phy"),
    Symbol(
        "dcmi_get_device_chip_info_v2",
        "int c, int d, chip_info_v2 *to",
        {**_CHIP_INFO, "npu_name": Get("", "")},
    ),
    Symbol("dcmi_get_device_chip_info", "int c, int d, chip_info *to", _CHIP_INFO),
    Symbol(
        "dcmi_get_device_pcie_info_v2",
        "int c, int d, pcie_info_all *to",
        {
            **_HEX_PLACE,
            "vendor": Get("", "0x19e5"),
            "device": Get(_CHIP + "device", "0", base=16),
        },
    ),
    Symbol(
        "dcmi_get_device_board_info",
        "int c, int d, board_info *to",
        {"board_id": Get(_CHIP + "board_id", base=16)},
    ),
    _number("dcmi_get_mainboard_id", "mainboard", base=16, kind="unsigned"),
    Symbol(
        "dcmi_get_product_type",
        "int c, int d, char *text, int len",
        {"text": Get(_CHIP + "product")},
    ),
    Symbol("dcmi_get_card_elabel_v2", "int c, elabel *to", {"serial": Get("chip.{c}.0.serial")}),
    Symbol(
        "dcmi_get_device_die_v2",
        "int c, int d, int type, die_id *to",
        {"soc_die": Get(_CHIP + "die", base=16)},
    ),
    _number("dcmi_get_device_health", "health", kind="unsigned"),
    Symbol(
        "dcmi_get_device_errorcode_v2",
        "int c, int d, int *num, unsigned *list, unsigned len",
        "    return dcmi_codes(&call, num, list, len);",
    ),
    Symbol(
        "dcmi_subscribe_fault_event",
        "int c, int d, event_filter filter, void *callback",
        "    return dcmi_listen(callback);",
    ),
    _number("dcmi_get_device_network_health", "net"),
    _number("dcmi_get_device_boot_status", "boot"),
    Symbol(
        "dcmi_get_device_hbm_info",
        "int c, int d, hbm_info *to",
        {
            "memory_size": Get(_CHIP + "hbm"),
            "memory_usage": Get(_CHIP + "hbm_used", "0"),
            "temp": Get(_CHIP + "hbm_temp", "40"),
            "bandwidth_util": Get(_CHIP + "hbm_busy", "0"),
        },
    ),
    Symbol(
        "dcmi_get_device_memory_info_v3",
        "int c, int d, memory_info_v3 *to",
        {"memory_size": Get(_CHIP + "ddr"), "memory_available": Get(_CHIP + "ddr_free", "0")},
    ),
    Symbol(
        "dcmi_get_memory_info", "int c, int d, memory_info *to", {"memory_size": Get(_CHIP + "ddr")}
    ),
    Symbol(
        "dcmi_get_device_utilization_rate",
        "int c, int d, int type, unsigned *to",
        "    return dcmi_rate(&call, to);",
    ),
    Symbol(
        "dcmi_get_device_multi_utilization_rate",
        "int c, int d, multi_utilization *to",
        {
            name: Get(_CHIP + "multi", part=part)
            for part, name in enumerate(("aic", "aiv", "aicore", "npu"))
        },
    ),
    Symbol(
        "dcmi_get_device_multi_utilization_rate_period",
        "int c, int d, multi_utilization *to, int seconds",
        {
            name: Get(_CHIP + "multi_period", part=part)
            for part, name in enumerate(("aic", "aiv", "aicore", "npu"))
        },
    ),
    _number("dcmi_get_device_power_info", "power"),
    Symbol("dcmi_mcu_get_power_info", "int c, int *to", {"to": Get("chip.{c}.0.mcu_power")}),
    _number("dcmi_get_device_temperature", "temp"),
    _number("dcmi_get_device_voltage", "volt", kind="unsigned"),
    _number("dcmi_get_device_frequency", "clock", before="int type, ", kind="unsigned"),
    Symbol(
        "dcmi_get_device_ecc_info",
        "int c, int d, int kind, ecc_info *to",
        {
            "total_single": Get(_CHIP + "ecc", part=0),
            "total_double": Get(_CHIP + "ecc", part=1),
            "single": Get(_CHIP + "ecc", "0", part=2),
            "double_bit": Get(_CHIP + "ecc", "0", part=3),
            "single_isolated": Get(_CHIP + "ecc", "0", part=4),
            "double_isolated": Get(_CHIP + "ecc", "0", part=5),
            "enable": Get(_CHIP + "ecc", "1", part=6),
        },
    ),
    Symbol(
        "dcmi_get_device_resource_info",
        "int c, int d, proc_mem_info *to, int *num",
        "    return dcmi_processes(&call, to, num);",
    ),
    Symbol(
        "dcmi_get_device_ip",
        "int c, int d, int port_type, int port, ip_addr *ip, ip_addr *mask",
        "    return dcmi_address(&call, ip, mask);",
    ),
    _unheard("dcmi_get_affinity_cpu_info_by_device_id", "int c, int d, char *text, int *len"),
    Symbol(
        "dcmi_get_device_info",
        "int c, int d, int main, unsigned sub, void *to, unsigned *size",
        "    return dcmi_info(&call, main, (int)sub, to, size);",
    ),
    Symbol(
        "dcmi_get_netdev_pkt_stats_info",
        "int c, int d, int port, network_packets *to",
        {
            name: Get(_CHIP + "packets", part=part, separator=",")
            for part, name in enumerate(NETWORK_COUNTERS)
        },
    ),
    Symbol(
        "dcmi_get_rdma_bandwidth_info",
        "int c, int d, int port, unsigned ms, rdma_bandwidth *to",
        {name: Get(_CHIP + "rdma", part=part) for part, name in enumerate(("tx", "rx"))},
    ),
    Symbol(
        "dcmi_get_hccs_link_bandwidth_info",
        "int c, int d, hccs_bandwidth *to",
        {
            "total_tx": Get(_CHIP + "hccs_total", part=0),
            "total_rx": Get(_CHIP + "hccs_total", part=1),
            "tx": Get(_CHIP + "hccs_rate_tx"),
            "rx": Get(_CHIP + "hccs_rate_rx"),
        },
    ),
    Symbol(
        "dcmi_get_pcie_link_bandwidth_info",
        "int c, int d, pcie_bandwidth *to",
        {name: Get(f"{_CHIP}pcie_{name}") for name in PCIE_RATES},
    ),
    Symbol("dcmi_get_multi_die_policy", "unsigned *to", {"to": Get("die_policy")}),
    Symbol(
        "dcmi_get_topo_info_by_device_id",
        "int c, int d, int e, int f, int *to",
        {"to": Get("topo.{c}.{d}.{e}.{f}")},
    ),
    Symbol(
        "dcmi_create_vdevice",
        "int c, int d, create_vdev_res *wanted, create_vdev_out *made",
        "    return dcmi_create(&call, wanted, made);",
    ),
    Symbol(
        "dcmi_set_destroy_vdevice",
        "int c, int d, unsigned vdev",
        "    return dcmi_destroy(&call);",
    ),
    _unheard("dcmi_set_device_reset", "int c, int d, int channel"),
    _unheard("dcmi_get_device_outband_channel_state", "int c, int d, int *to"),
    _unheard("dcmi_pre_reset_soc", "int c, int d"),
    _unheard("dcmi_rescan_soc", "int c, int d"),
    _unheard("dcmi_get_netdev_brother_device", "int c, int d, int *to"),
)

LIBRARY = Library(
    name="dcmi",
    soname="libdcmi.so",
    records=RECORDS,
    symbols=SYMBOLS,
    unsupported=-8255,
    too_small=-8001,
    scope=("c", "d"),
    prototypes="dcmi.h",
    sources=("chips.c", "vdevs.c"),
)
