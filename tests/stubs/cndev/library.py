"""libcndev, version 6 of its interface: what the agent asks of a Cambricon card.

    count 8                     handles 16384 (of card 0; others follow)      api 6
    driver_version 4:20:11
    mlu.<i>.{uuid,name,sn,board,id,numa}   mlu.<i>.pci domain:bus:device:function, decimal
    mlu.<i>.{mem,mem_used}      MiB      mlu.<i>.{power,cap}  W      mlu.<i>.util  percent
    mlu.<i>.{temp,temp_board,temp_memory}  degrees
    mlu.<i>.{health,device,driver,compute,overall}   mlu.<i>.incident.<n> code:words
    mlu.<i>.ecc one-bit:corrected:uncorrected:total    mlu.<i>.ecc_more 4 numbers of further kinds
    mlu.<i>.memory_errors 11 numbers: sram single, double, parity, dram single, double; the same
      over the card's life, dram first; whether they are too many
    mlu.<i>.parity_errors   mlu.<i>.die_link errors:overflows
    mlu.<i>.voltage core:soc:memory mV    mlu.<i>.current core:soc:memory mA
    mlu.<i>.overheat offs:slowdowns    mlu.<i>.throttle 6 flags
    mlu.<i>.mem_reserved MiB
    mlu.<i>.optical.<p> present:temperature:volts:lanes    mlu.<i>.optical.<p>.{sent,received} dBm
      of each lane, a:b
    mlu.<i>.proc.<pid> physical:virtual:percent[:percent of image codec:decoder:encoder:memory], KiB
    mlu.<i>.port.<p> mac:remote uuid[:serdes:presence]
    mlu.<i>.port_mode.<p>   mlu.<i>.port_name.<p>   mlu.<i>.port_version.<p> a:b:c
    mlu.<i>.port_state.<p> inbound:outbound    mlu.<i>.port_capability.<p> p2p:Interlaken
    mlu.<i>.remote.<p> kind:serial:board serial:slot:port:network:IP valid:IP version
    mlu.<i>.remote_ip.<p>, remote_mac.<p> bytes, a:b:c    mlu.<i>.remote_name.<p>
    mlu.<i>.tiny percent of each, a:b    mlu.<i>.tiny_cores their number
    mlu.<i>.chip_cpu average:cores    mlu.<i>.chip_cpu_cores percent of each, a:b
    mlu.<i>.chip_cpu_modes 64 numbers of each core, a:b
    mlu.<i>.clusters their number    mlu.<i>.cluster_temp degrees of each, a:b
    mlu.<i>.system_memory total:used KiB    mlu.<i>.bar4 total:used:free bytes
    mlu.<i>.ddr width:bandwidth:decimals    mlu.<i>.clock_lock   mlu.<i>.heartbeats
    mlu.<i>.ecc_mode now:after a reset    mlu.<i>.page_retirement
    mlu.<i>.swaps correctable:uncorrectable    mlu.<i>.swap_channels none:some:all
    mlu.<i>.field.<id> a whole number, or one with a point
    mlu.<i>.mpm core:card:tensor percent:PCIe sent:received:MLULink sent:received, MiB/s
    mlu.<i>.mpm_link.<p> sent:received, MiB/s    mpm_pause_ms between two samples, 100
    mlu.<i>.core_count   mlu.<i>.cores percent of each, a:b:c   mlu.<i>.clocks board:ddr:default MHz
    mlu.<i>.{vpus,encoders,decoders,jpus}   mlu.<i>.{vpu,encoder,decoder,jpu} percent of each, a:b
    mlu.<i>.pcie read:write:read in all:written in all, bytes    mlu.<i>.replays
    mlu.<i>.power_default W    mlu.<i>.power_range low:high W
    mlu.<i>.link_counters.<p> 18 numbers   mlu.<i>.link_errors.<p> 5   mlu.<i>.link_events.<p> 3
    mlu.<i>.link_speed.<p> GB/s    mlu.<i>.link_format.<p>
    mlu.<i>.{rows,rows_v2} correctable:uncorrectable:pending:failed
    mlu.<i>.repair retirement pending:repair pending:failed    mlu.<i>.retired.<cause> pages
    mlu.<i>.{smlu_mode,mim_mode} 0 or 1
    mlu.<i>.profile.<id> quota:bytes:slots      mlu.<i>.smlu.<n> profile:quota:bytes[:used:bytes]
    mlu.<i>.mim.<n> profile name:MiB:cores:uuid

Events: `<i> <xid>`. Without a line the library says 10, not supported.
"""

from __future__ import annotations

from tests.stubs.describe import Each, Get, Library, Symbol, records

RECORDS = records("""
CardInfo v 8 4: number@4:u32
UUID v 56 8: uuid@4:c37 ncs@48:u64
CardName v 8 4: id@4:i32
Mode v 8 4: mode@4:i32
Numa v 8 4: node@4:i32
CardSN v 24 8: sn@8:u64 motherboard@16:u64
VersionInfo v 28 4: mcu@4:u32*3 driver@16:u32*3
MemV2 176 8: total@0:i64 used@8:i64 reserved@16:i64 vtotal@24:i64 vused@32:i64 global@40:u64
PcieV2 64 4: subsystem@0:u32 device@4:u32 vendor@8:u16 subvendor@10:u16 domain@12:u32 bus@16:u32
  dev@20:u32 func@24:u32 module@28:u16 slot@30:u16
Health v 16 4: health@4:i32 device@8:i32 driver@12:i32
Incident 540 4: system@0:i32 health@4:i32 msg@8:c512 device_id@520:i32 bdf@524:u32 code@528:i32
HealthV2 34612 4: health@0:i32 device@4:i32 driver@8:i32 overall@12:i32 count@16:u32
  incidents@20:Incident*64
Util v 328 4: average@4:i32 core@8:i32*80
Power 84 4: usage@0:i32 cap@4:i32 machine@8:i32 tdp@12:i32 max@16:i32
Temp v 148 4: board@4:i32 cluster@8:i32*20 die@88:i32*8 chip@120:i32 memory@132:i32
Ecc v 72 8: one@8:u64 multiple_one@16:u64 multiple@24:u64 multiple_multiple@32:u64
  corrected@40:u64 uncorrected@48:u64 total@56:u64 forbidden@64:u64
MemoryErrors v 160 8: sram_single@4:u32 sram_double@8:u32 sram_parity@12:u32 dram_single@16:u32
  dram_double@20:u32 dram_single_total@24:u64 dram_double_total@32:u64 sram_single_total@40:u64
  sram_double_total@48:u64 sram_parity_total@56:u64 is_exceeded@64:u8
Parity v 8 4: count@4:i32
DieLink v 24 8: errors@8:u64 overflows@16:u64
Voltage 40 2: core@0:i16 soc@2:i16 memory@6:i16
Current 76 4: core@0:i32 soc@4:i32 memory@8:i32
Overheat v 16 4: offs@4:u32 slowdowns@8:u32
Throttle v 28 4: tdp@4:i32 power_setting@8:i32 clock_setting@12:i32 frequency_locked@16:i32
  power_brake@20:i32 thermal@24:i32
Proc v 24 8: pid@4:u32 physical@8:u64 virtual@16:u64
ProcUtil v 28 4: pid@4:u32 mlu@8:u32 jpu@12:u32 dec@16:u32 enc@20:u32 mem@24:u32
LinkV2 44 4: mac@0:i32 serdes@4:i32 presence@8:i32 progress@12:i32
Remote v 376 8: mc_sn@8:u64 ba_sn@16:u64 slot@24:u32 port@28:u32 ip@32:u8*16 uuid@48:c37
  ipver@88:u32 ipvalid@92:u32 connect@96:i32 ncs@104:u64 mac@112:u8*6 port_name@118:c256
CoreCount v 8 4: count@4:i32
Clocks v 68 4: board@4:i32 ddr@8:i32 overtemp@12:u8 fast@13:u8 cluster_count@14:u16
  cluster@16:u16*20 board_default@56:i32 board_range@60:i32*2
VideoCodecs v 256 4: vpus@4:i32 vpu@8:i32*20 encoders@88:i32 encoder@92:i32*20 decoders@172:i32
  decoder@176:i32*20
ImageCodecs v 88 4: jpus@4:i32 jpu@8:i32*20
PcieTraffic 104 8: read@0:i64 write@8:i64 read_total@16:i64 write_total@24:i64 time@32:u64
PcieReplays v 8 4: count@4:u32
PowerLimit v 8 4: watts@4:u16 decimal@6:u16
PowerRange v 12 4: low@4:u16 low_decimal@6:u16 high@8:u16 high_decimal@10:u16
LinkCounters v 152 8: read_bytes@8:u64 read_packets@16:u64 write_bytes@24:u64 write_packets@32:u64
  replay@40:u64 fatal@48:u64 ecc_double@56:u64 crc24@64:u64 crc32@72:u64 corrected@80:u64
  uncorrected@88:u64 read_errors@96:u64 write_errors@104:u64 illegal@112:u64 cnp@120:u64 pfc@128:u64
  queues@136:u64 tasks@144:u64
LinkErrors 128 8: corrected_fec@0:u64 uncorrected_fec@8:u64 rx_bad_fcs@16:u64 tx_bad_fcs@24:u64
  illegal_access@32:u64
LinkEvents 128 8: down@0:u64 replay@8:u64 replay_fail@16:u64
LinkSpeed v 12 4: gigabytes@4:f32 format@8:i32
Optical 432 8: present@2:u8 temperature@68:f32 voltage@92:f32 lanes@116:i32 sent@120:f32*8
  received@280:f32*8 spare@368:u64*8
LinkCapability v 12 4: p2p@4:u32 serdes@8:u32
LinkMode v 12 4: mode@4:i32 supported@8:i32
LinkVersion v 16 4: number@4:u32*3
LinkName 16 1: name@0:c16
TinyCores v 48 4: count@4:i32 core@8:i32*10
ChipCpu v 2088 4: average@4:u16 cores@6:u8 core@7:u8*32 mode@39:u8*2048
OsMemory 40 4: total@0:u32 used@4:u32
Bar4 24 8: total@0:u64 used@8:u64 free@16:u64
Ddr v 16 4: width@4:u32 bandwidth@8:u32 decimal@12:u32
ClockLock v 8 4: is_locked@4:u8
Heartbeats v 8 4: count@4:u32
FieldValue 48 8: id@0:i32 code@4:i32 value@8:u64 type@16:i32 latency@24:i64 time@32:i64 scope@40:u32
MpmMetric 40 8: id@0:i32 code@4:i32 value@8:f64 short_name@16:u64 long_name@24:u64 unit@32:u64
MpmRequest 10264 8: layout@0:u32 count@4:u32 first@8:u64 second@16:u64 metrics@24:MpmMetric*256
Rows v 20 4: correctable@4:u32 uncorrectable@8:u32 pending@12:u32 failed@16:u32
RowsV2 v 24 4: correctable@4:u32 uncorrectable@8:u32 histogram@12:u32*3
Repair v 8 4: retire_pending@4:u8 pending@5:u8 failed@6:u8
RetiredPages v 4112 8: cause@4:i32 count@8:u32 addresses@16:u64*512
Mim v 1016 4: parent@4:i32 instance@8:i32 profile@12:i32 uuid@16:c37 bdf@56:u32*4 placement@72:i32
  cores@84:i32 memory@100:i32 profile_name@104:c100 dev_node@204:c100 ipcm_node@304:c100
  name@404:c100
SMlu v 904 8: profile@4:i32 instance@8:i32 uuid@12:c37 bdf@52:u32*4 profile_name@68:c100
  name@168:c100 dev_node@268:c100 quota@368:u32*2 memory@376:u64*2
ProfIds v 520 4: count@4:i32 id@8:i32*128
Prof v 144 8: id@4:i32 name@8:c100 total@108:u32 remain@112:u32 quota@116:u32*2 memory@128:u64*2
Set v 16 8: quota@4:u32 memory@8:u64
Event v 104 8: device@4:i32 data@8:u64 type@16:u64 time@24:u64 cpu@32:u32 mlu@36:u32
""")

_PROC = "mlu.{h}.proc."
_PORT = "mlu.{h}.port.{port}"
_REMOTE = "mlu.{h}.remote.{port}"
_HEALTH = {
    "health": Get("mlu.{h}.health", "1"),
    "device": Get("mlu.{h}.device", "1"),
    "driver": Get("mlu.{h}.driver", "4"),
}


def _parts(path: str, *members: str) -> dict[str, Get]:
    """Return the members that one line holds, in its order."""
    return {member: Get(path, part=part) for part, member in enumerate(members)}


SYMBOLS = (
    Symbol("cndevInit", "int reserved", "    return 0;"),
    Symbol("cndevRelease", "", "    return 0;"),
    Symbol("cndevGetErrorString", "int code", {"return": Get("text", "stub error")}, "text"),
    Symbol("cndevGetDeviceCount", "CardInfo *to", {"number": Get("count", "0")}),
    Symbol(
        "cndevGetDeviceHandleByIndex", "int index, i32 *to", "    return cndev_handle(index, to);"
    ),
    Symbol("cndevGetUUID", "UUID *to, i32 h", {"uuid": Get("mlu.{h}.uuid"), "ncs": Get("", "0")}),
    Symbol("cndevGetCardName", "CardName *to, i32 h", {"id": Get("mlu.{h}.id")}),
    Symbol("cndevGetCardNameStringByDevId", "i32 h", {"return": Get("mlu.{h}.name")}, "text"),
    Symbol(
        "cndevGetCardSN",
        "CardSN *to, i32 h",
        {"sn": Get("mlu.{h}.sn"), "motherboard": Get("mlu.{h}.board", "0")},
    ),
    Symbol(
        "cndevGetVersionInfo",
        "VersionInfo *to, i32 h",
        {"mcu": Get("", "1:1:6"), "driver": Get("driver_version")},
    ),
    Symbol(
        "cndevGetMemoryUsageV2",
        "MemV2 *to, i32 h",
        {
            "total": Get("mlu.{h}.mem"),
            "used": Get("mlu.{h}.mem_used", "0"),
            "reserved": Get("mlu.{h}.mem_reserved", "0"),
            "vtotal": Get("", "1048576"),
            "vused": Get("", "10240"),
        },
    ),
    Symbol(
        "cndevGetPCIeInfoV2",
        "PcieV2 *to, i32 h",
        {
            "vendor": Get("", "0xcabc"),
            **{
                name: Get("mlu.{h}.pci", part=part)
                for part, name in enumerate(("domain", "bus", "dev", "func"))
            },
        },
    ),
    Symbol("cndevGetNUMANodeIdByDevId", "Numa *to, i32 h", {"node": Get("mlu.{h}.numa")}),
    Symbol("cndevGetCardHealthState", "Health *to, i32 h", _HEALTH),
    Symbol(
        "cndevGetCardHealthStateV2", "HealthV2 *to, i32 h", "    return cndev_incidents(&call, to);"
    ),
    Symbol("cndevGetComputeMode", "Mode *to, i32 h", {"mode": Get("mlu.{h}.compute", "0")}),
    Symbol(
        "cndevGetDeviceUtilizationInfo",
        "Util *to, i32 h",
        {"average": Get("mlu.{h}.util"), "core": Get("mlu.{h}.cores", "0")},
    ),
    Symbol(
        "cndevGetDevicePowerInfo",
        "Power *to, i32 h",
        {"usage": Get("mlu.{h}.power"), "cap": Get("mlu.{h}.cap", "0")},
    ),
    Symbol(
        "cndevGetTemperatureInfo",
        "Temp *to, i32 h",
        {
            "chip": Get("mlu.{h}.temp"),
            "board": Get("mlu.{h}.temp_board", "-275"),
            "memory": Get("mlu.{h}.temp_memory", "-275"),
            "cluster": Get("mlu.{h}.cluster_temp", "-275"),
        },
    ),
    Symbol("cndevGetClusterCount", "CoreCount *to, i32 h", {"count": Get("mlu.{h}.clusters")}),
    Symbol(
        "cndevGetTinyCoreUtilization",
        "TinyCores *to, i32 h",
        {"count": Get("mlu.{h}.tiny_cores"), "core": Get("mlu.{h}.tiny", "0")},
    ),
    Symbol(
        "cndevGetDeviceCPUUtilizationV2",
        "ChipCpu *to, i32 h",
        {
            **_parts("mlu.{h}.chip_cpu", "average", "cores"),
            "core": Get("mlu.{h}.chip_cpu_cores", "0"),
            "mode": Get("mlu.{h}.chip_cpu_modes", "0"),
        },
    ),
    Symbol(
        "cndevGetDeviceOsMemoryUsageV2",
        "OsMemory *to, i32 h",
        _parts("mlu.{h}.system_memory", "total", "used"),
    ),
    Symbol(
        "cndevGetBAR4MemoryInfo", "Bar4 *to, i32 h", _parts("mlu.{h}.bar4", "total", "used", "free")
    ),
    Symbol(
        "cndevGetDDRInfo", "Ddr *to, i32 h", _parts("mlu.{h}.ddr", "width", "bandwidth", "decimal")
    ),
    Symbol(
        "cndevGetMLUFrequencyStatus",
        "ClockLock *to, i32 h",
        {"is_locked": Get("mlu.{h}.clock_lock")},
    ),
    Symbol(
        "cndevGetCardHeartbeatCount", "Heartbeats *to, i32 h", {"count": Get("mlu.{h}.heartbeats")}
    ),
    Symbol(
        "cndevGetEccMode",
        "Mode *to, Mode *pending, i32 h",
        "    return cndev_ecc_modes(&call, to, pending);",
    ),
    Symbol(
        "cndevGetRetiredPagesOperation",
        "Mode *to, i32 h",
        {"mode": Get("mlu.{h}.page_retirement")},
    ),
    Symbol(
        "cndevGetAddressSwaps",
        "RowsV2 *to, i32 h",
        {
            **_parts("mlu.{h}.swaps", "correctable", "uncorrectable"),
            "histogram": Get("mlu.{h}.swap_channels", "0"),
        },
    ),
    Symbol(
        "cndevDeviceGetFieldValues",
        "i32 h, int n, FieldValue *to",
        "    return cndev_fields(&call, n, to);",
    ),
    Symbol(
        "cndevMpmQueryDeviceSupport",
        "i32 h, u8 *to",
        "    return cndev_has_counters(&call, to);",
    ),
    Symbol("cndevMpmSampleAlloc", "void **to", "    return cndev_new_sample(to);"),
    Symbol("cndevMpmSampleFree", "void *sample", "    return cndev_free_sample(sample);"),
    Symbol(
        "cndevMpmSampleGet", "void *sample, i32 h", "    return cndev_take_sample(&call, sample);"
    ),
    Symbol("cndevMpmMetricsGet", "MpmRequest *to", "    return cndev_means(to);"),
    Symbol(
        "cndevGetECCInfo",
        "Ecc *to, i32 h",
        {
            **_parts("mlu.{h}.ecc", "one", "corrected", "uncorrected", "total"),
            **{
                name: Get("mlu.{h}.ecc_more", "0:0:0:0", part=part)
                for part, name in enumerate(
                    ("multiple_one", "multiple", "multiple_multiple", "forbidden")
                )
            },
        },
    ),
    Symbol(
        "cndevGetMemEccCounter",
        "MemoryErrors *to, i32 h",
        _parts(
            "mlu.{h}.memory_errors",
            "sram_single",
            "sram_double",
            "sram_parity",
            "dram_single",
            "dram_double",
            "dram_single_total",
            "dram_double_total",
            "sram_single_total",
            "sram_double_total",
            "sram_parity_total",
            "is_exceeded",
        ),
    ),
    Symbol("cndevGetParityError", "Parity *to, i32 h", {"count": Get("mlu.{h}.parity_errors")}),
    Symbol(
        "cndevGetCRCInfo", "DieLink *to, i32 h", _parts("mlu.{h}.die_link", "errors", "overflows")
    ),
    Symbol(
        "cndevGetVoltageInfo",
        "Voltage *to, i32 h",
        _parts("mlu.{h}.voltage", "core", "soc", "memory"),
    ),
    Symbol(
        "cndevGetCurrentInfo",
        "Current *to, i32 h",
        _parts("mlu.{h}.current", "core", "soc", "memory"),
    ),
    Symbol(
        "cndevGetOverTemperatureInfo",
        "Overheat *to, i32 h",
        _parts("mlu.{h}.overheat", "offs", "slowdowns"),
    ),
    Symbol(
        "cndevGetPerformanceThrottleReason",
        "Throttle *to, i32 h",
        _parts(
            "mlu.{h}.throttle",
            "tdp",
            "power_setting",
            "clock_setting",
            "frequency_locked",
            "power_brake",
            "thermal",
        ),
    ),
    Symbol(
        "cndevGetProcessInfo",
        "unsigned *n, Proc *to, i32 h",
        Each(
            _PROC,
            "to",
            "n",
            {"pid": Get("#"), "physical": Get("=", part=0), "virtual": Get("=", "0", part=1)},
        ),
    ),
    Symbol(
        "cndevGetProcessUtilization",
        "unsigned *n, ProcUtil *to, i32 h",
        Each(
            _PROC,
            "to",
            "n",
            {
                "pid": Get("#"),
                **{
                    name: Get("=", "0", part=part)
                    for part, name in enumerate(("mlu", "jpu", "dec", "enc", "mem"), start=2)
                },
            },
        ),
    ),
    Symbol("cndevGetMLULinkPortNumber", "i32 h", "    return cndev_ports(&call);", "number"),
    Symbol(
        "cndevGetMLULinkStatusV2",
        "LinkV2 *to, i32 h, int port",
        {
            "mac": Get(_PORT, part=0),
            "serdes": Get(_PORT, "0", part=2),
            "presence": Get(_PORT, "0", part=3),
        },
    ),
    Symbol("cndevGetCoreCount", "CoreCount *to, i32 h", {"count": Get("mlu.{h}.core_count")}),
    Symbol(
        "cndevGetFrequencyInfo",
        "Clocks *to, i32 h",
        _parts("mlu.{h}.clocks", "board", "ddr", "board_default"),
    ),
    Symbol(
        "cndevGetVideoCodecUtilization",
        "VideoCodecs *to, i32 h",
        {
            "vpus": Get("mlu.{h}.vpus"),
            "vpu": Get("mlu.{h}.vpu", "0"),
            "encoders": Get("mlu.{h}.encoders", "0"),
            "encoder": Get("mlu.{h}.encoder", "0"),
            "decoders": Get("mlu.{h}.decoders", "0"),
            "decoder": Get("mlu.{h}.decoder", "0"),
        },
    ),
    Symbol(
        "cndevGetImageCodecUtilization",
        "ImageCodecs *to, i32 h",
        {"jpus": Get("mlu.{h}.jpus"), "jpu": Get("mlu.{h}.jpu", "0")},
    ),
    Symbol(
        "cndevGetPCIethroughputV2",
        "PcieTraffic *to, i32 h",
        _parts("mlu.{h}.pcie", "read", "write", "read_total", "write_total"),
    ),
    Symbol(
        "cndevGetPcieReplayCounter", "PcieReplays *to, i32 h", {"count": Get("mlu.{h}.replays")}
    ),
    Symbol(
        "cndevGetPowerManagementDefaultLimitation",
        "PowerLimit *to, i32 h",
        {"watts": Get("mlu.{h}.power_default")},
    ),
    Symbol(
        "cndevGetPowerManagementLimitationRange",
        "PowerRange *to, i32 h",
        _parts("mlu.{h}.power_range", "low", "high"),
    ),
    Symbol(
        "cndevGetMLULinkCounter",
        "LinkCounters *to, i32 h, int port",
        _parts(
            "mlu.{h}.link_counters.{port}",
            "read_bytes",
            "read_packets",
            "write_bytes",
            "write_packets",
            "replay",
            "fatal",
            "ecc_double",
            "crc24",
            "crc32",
            "corrected",
            "uncorrected",
            "read_errors",
            "write_errors",
            "illegal",
            "cnp",
            "pfc",
            "queues",
            "tasks",
        ),
    ),
    Symbol(
        "cndevGetMLULinkErrorCounter",
        "LinkErrors *to, i32 h, int port",
        _parts(
            "mlu.{h}.link_errors.{port}",
            "corrected_fec",
            "uncorrected_fec",
            "rx_bad_fcs",
            "tx_bad_fcs",
            "illegal_access",
        ),
    ),
    Symbol(
        "cndevGetMLULinkEventCounter",
        "LinkEvents *to, i32 h, int port",
        _parts("mlu.{h}.link_events.{port}", "down", "replay", "replay_fail"),
    ),
    Symbol(
        "cndevGetMLULinkSpeedInfo",
        "LinkSpeed *to, i32 h, int port",
        {
            "gigabytes": Get("mlu.{h}.link_speed.{port}"),
            "format": Get("mlu.{h}.link_format.{port}", "-1"),
        },
    ),
    Symbol(
        "cndevGetOpticalInfo",
        "Optical *to, i32 h, int port",
        {
            **_parts("mlu.{h}.optical.{port}", "present", "temperature", "voltage", "lanes"),
            "sent": Get("mlu.{h}.optical.{port}.sent", "0"),
            "received": Get("mlu.{h}.optical.{port}.received", "0"),
        },
    ),
    Symbol(
        "cndevGetRemappedRows",
        "Rows *to, i32 h",
        _parts("mlu.{h}.rows", "correctable", "uncorrectable", "pending", "failed"),
    ),
    Symbol(
        "cndevGetRemappedRowsV2",
        "RowsV2 *to, i32 h",
        _parts("mlu.{h}.rows_v2", "correctable", "uncorrectable"),
    ),
    Symbol(
        "cndevGetRepairStatus",
        "Repair *to, i32 h",
        _parts("mlu.{h}.repair", "retire_pending", "pending", "failed"),
    ),
    Symbol(
        "cndevGetRetiredPages",
        "RetiredPages *to, i32 h",
        "    return cndev_retired(&call, to);",
    ),
    Symbol(
        "cndevGetMLULinkRemoteInfo",
        "Remote *to, i32 h, int port",
        {
            "uuid": Get(_PORT, "", part=1),
            **{
                name: Get(_REMOTE, otherwise, part=part)
                for part, (name, otherwise) in enumerate(
                    (
                        ("connect", "-1"),
                        *((name, "0") for name in ("mc_sn", "ba_sn", "slot", "port", "ncs")),
                        ("ipvalid", "0"),
                        ("ipver", "0"),
                    )
                )
            },
            "ip": Get("mlu.{h}.remote_ip.{port}", "0"),
            "mac": Get("mlu.{h}.remote_mac.{port}", "0"),
            "port_name": Get("mlu.{h}.remote_name.{port}", ""),
        },
    ),
    Symbol(
        "cndevGetMLULinkCapability",
        "LinkCapability *to, i32 h, int port",
        _parts("mlu.{h}.port_capability.{port}", "p2p", "serdes"),
    ),
    Symbol(
        "cndevGetMLULinkPortMode",
        "LinkMode *to, i32 h, int port",
        {"mode": Get("mlu.{h}.port_mode.{port}")},
    ),
    Symbol(
        "cndevGetMLULinkPPI",
        "LinkName *to, i32 h, int port",
        {"name": Get("mlu.{h}.port_name.{port}")},
    ),
    Symbol(
        "cndevGetMLULinkState",
        "int *to, int *outbound, i32 h, int port",
        "    return cndev_directions(&call, to, outbound);",
    ),
    Symbol(
        "cndevGetMLULinkVersion",
        "LinkVersion *to, i32 h, int port",
        {"number": Get("mlu.{h}.port_version.{port}")},
    ),
    Symbol("cndevGetMimMode", "Mode *to, i32 h", {"mode": Get("mlu.{h}.mim_mode")}),
    Symbol("cndevGetSMLUMode", "Mode *to, i32 h", {"mode": Get("mlu.{h}.smlu_mode")}),
    Symbol("cndevSetSMLUMode", "Mode *to, i32 h", "    return cndev_set_mode(&call, to);"),
    Symbol(
        "cndevGetAllMluInstanceInfo",
        "int *n, Mim *to, i32 h",
        Each(
            "mlu.{h}.mim.",
            "to",
            "n",
            {
                "instance": Get("#"),
                "profile_name": Get("=", part=0),
                "memory": Get("=", part=1),
                "cores": Get("=", part=2),
                "uuid": Get("=", part=3),
            },
        ),
    ),
    Symbol(
        "cndevGetAllSMluInstanceInfo",
        "int *n, SMlu *to, i32 h",
        "    return cndev_slices(&call, n, to);",
    ),
    Symbol(
        "cndevGetSMluProfileIdInfo",
        "ProfIds *to, i32 h",
        "    return cndev_profile_ids(&call, to);",
    ),
    Symbol(
        "cndevGetSMluProfileInfo", "Prof *to, int id, i32 h", "    return cndev_profile(&call, to);"
    ),
    Symbol(
        "cndevCreateSMluProfileInfo",
        "Set *to, int *id, i32 h",
        "    return cndev_add_profile(&call, to, id);",
    ),
    Symbol("cndevDestroySMluProfileInfo", "int id, i32 h", "    return cndev_drop_profile(&call);"),
    Symbol(
        "cndevCreateSMluInstanceByProfileId",
        "i32 *to, unsigned id, i32 h, const char *name",
        "    return cndev_add_slice(&call, to);",
    ),
    Symbol("cndevDestroySMluInstanceByHandle", "i32 slice", "    return cndev_drop_slice(slice);"),
    Symbol(
        "cndevUpdateSMluInstanceQuotaByHandle",
        "i32 slice, Set *to",
        "    return cndev_set_slice(slice, to);",
    ),
    Symbol("cndevEventHandleCreate", "void **to", "    return cndev_listen(to);"),
    Symbol(
        "cndevRegisterEvents", "void *set, u64 types, i32 h", "    return cndev_register(&call);"
    ),
    Symbol("cndevEventWait", "void *set, Event *to, int ms", "    return cndev_wait(to, ms);"),
    Symbol("cndevResetDevice", "i32 h", "    return 0;"),
)

LIBRARY = Library(
    name="cndev",
    soname="libcndev.so",
    records=RECORDS,
    symbols=SYMBOLS,
    unsupported=10,
    bad_handle=6,
    too_small=9,
    scope=("h",),
    handles={"int32_t": "cndev_index"},
    version_check="cndev_version",
    prototypes="cndev.h",
    sources=("slices.c", "cards.c", "counters.c"),
)
