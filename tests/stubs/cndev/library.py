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

from tests.stubs.cndev.records import RECORDS
from tests.stubs.describe import Each, Get, Library, Symbol

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
