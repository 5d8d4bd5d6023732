"""libnvidia-ml: what the agent asks of NVIDIA's cards, of drivers from 450 on.

A card is `gpu.<i>` with a member a line; `statements.py` writes these lines from shorter ones.

    system.{driver,cuda,confidential,ready}
    gpu.<i> 1   gpu.<i>.{uuid,minor,module,bus,name,serial,vbios,mem,reserved,used,util,power,temp}
    gpu.<i>.{arch,cc,virt,ecc,persistence,mode,pstate,width,maxwidth,clock.1,clock.2,energy}
    gpu.<i>.{throttle,migmode,migpending,events,remap,addressing,numanode,chassis,rack}
    gpu.<i>.{sram,repair,unrepairable,encoder,decoder,plimit,fans,fan.<n>,ecc.<type>.<counter>}
    gpu.<i>.license supported,features,state of the first
    gpu.<i>.attach_ms  that the first handle takes in each process while persistence is not on
    mig.<i>.<j> 1      mig.<i>.<j>.{uuid,gi,ci,k,cik,start,size,mb,sm,used}
    profile.<i>.<k> 1  profile.<i>.<k>.{id,slices,max,mb,size,starts,name}
    proc.<i>.<n> pid;mem;sm;ts;gi;ci;list        link.<i>.<l> 1   link.<i>.<l>.{state,type,remote}
    field.<i>.<id>.<scope> type;value            fabric.<i>.{state,status,uuid,clique,mask,summary}
    gpm.<i>.<gi>.<metric> value, gi -1: the card ancestor.<i>.<j> level
    event.<n> gpu;type;data;gi;ci;seconds after the set was made        binding.<n> type

Lines appended to the events: gpu;type;data.
"""

from __future__ import annotations

from tests.stubs.describe import Get, Library, Symbol
from tests.stubs.nvml.forms import CARD, MIG, code
from tests.stubs.nvml.records import RECORDS
from tests.stubs.nvml.symbols import HANDLES, LINKS, LISTS, PLAIN, SYSTEM

SLICES = (
    code(
        "DeviceGetMigMode",
        f"{CARD}, unsigned *now, unsigned *pending",
        "nvml_mig_mode(&call, now, pending)",
    ),
    code("DeviceGetMaxMigDeviceCount", f"{CARD}, unsigned *to", "nvml_most(&call, to)"),
    code(
        "DeviceGetMigDeviceHandleByIndex",
        f"{CARD}, unsigned slot, void **to",
        "nvml_mig(&call, to)",
    ),
    code("DeviceGetGpuInstanceId", f"{MIG}, unsigned *to", 'nvml_mig_member(instance, "gi", to)'),
    code(
        "DeviceGetComputeInstanceId", f"{MIG}, unsigned *to", 'nvml_mig_member(instance, "ci", to)'
    ),
    code(
        "DeviceGetDeviceHandleFromMigDeviceHandle", f"{MIG}, void **to", "nvml_parent(instance, to)"
    ),
    code("DeviceGetAttributes_v2", f"{MIG}, Attributes *to", "nvml_attributes(instance, to)"),
    code("DeviceGetGpuInstanceById", f"{CARD}, unsigned gi, void **to", "nvml_by_gi(&call, to)"),
    code("GpuInstanceGetInfo", f"{MIG}, GiInfo *to", "nvml_gi_info(instance, to)"),
    code(
        "DeviceGetGpuInstanceProfileInfo",
        f"{CARD}, unsigned k, GiProfileV1 *to",
        "nvml_profile(&call, to, NULL)",
    ),
    code(
        "DeviceGetGpuInstanceProfileInfoV",
        f"{CARD}, unsigned k, GiProfileV2 *to",
        "nvml_profile(&call, NULL, to)",
        510,
    ),
    *(
        code(
            f"DeviceGetGpuInstancePossiblePlacements{version}",
            f"{CARD}, unsigned id, Placement *to, unsigned *count",
            "nvml_placements(&call, to, count)",
            since,
        )
        for version, since in (("", 0), ("_v2", 510))
    ),
    code(
        "DeviceGetGpuInstances",
        f"{CARD}, unsigned id, void **to, unsigned *count",
        "nvml_instances(&call, to, count)",
    ),
)

EVENTS = (
    code("EventSetCreate", "void **to", "nvml_set(to)"),
    code("EventSetFree", "void *set", "nvml_free_set()"),
    code("DeviceGetSupportedEventTypes", f"{CARD}, u64 *to", "nvml_types(&call, to)"),
    code("DeviceRegisterEvents", f"{CARD}, u64 types, void *set", "nvml_register(&call)"),
    code(
        "EventSetWait_v2",
        "void *set, EventData *to, unsigned timeout_ms",
        "nvml_wait(to, timeout_ms)",
    ),
    code("SystemEventSetCreate", "SetRequest *to", "nvml_system_set(to)", 571),
    code("SystemEventSetFree", "SetRequest *to", "0", 571),
    code("SystemRegisterEvents", "RegisterRequest *to", "0", 571),
    code("SystemEventSetWait", "WaitRequest *to", "nvml_system_wait(to)", 571),
)

COUNTERS = (
    code("GpmQueryDeviceSupport", f"{CARD}, GpmSupport *to", "nvml_gpm_support(&call, to)", 535),
    code("GpmSampleAlloc", "void **to", "nvml_gpm_alloc(to)", 535),
    code("GpmSampleFree", "void *sample", "nvml_gpm_free(sample)", 535),
    code("GpmSampleGet", f"{CARD}, void *sample", "nvml_gpm_get(&call, -1, sample)", 535),
    code(
        "GpmMigSampleGet",
        f"{CARD}, unsigned gi, void *sample",
        "nvml_gpm_get(&call, gi, sample)",
        535,
    ),
    code("GpmMetricsGet", "gpm_request *request", "nvml_gpm_metrics(request)", 535),
    Symbol(
        "nvmlDeviceGetSramEccErrorStatus",
        f"{CARD}, Sram *to",
        {"exceeded": Get("gpu.{device}.sram")},
        since=535,
    ),
    code("DeviceGetRepairStatus", f"{CARD}, Repair *to", "nvml_repair(&call, to)", 571),
    Symbol(
        "nvmlDeviceGetUnrepairableMemoryFlag_v1",
        f"{CARD}, Unrepairable *to",
        {"flag": Get("gpu.{device}.unrepairable")},
        since=571,
    ),
    Symbol(
        "nvmlDeviceGetTotalEccErrors",
        f"{CARD}, unsigned type, unsigned counter, u64 *to",
        {"to": Get("gpu.{device}.ecc.{type}.{counter}")},
    ),
    *(
        Symbol(
            f"nvmlDeviceGet{name}Utilization",
            f"{CARD}, unsigned *to, unsigned *period_us",
            {"period_us": Get("", "1000000"), "to": Get(f"gpu.{{device}}.{name.lower()}")},
        )
        for name in ("Encoder", "Decoder")
    ),
)

LIBRARY = Library(
    name="nvml",
    soname="libnvidia-ml.so.1",
    records=RECORDS,
    symbols=(*SYSTEM, *HANDLES, *PLAIN, *LINKS, *LISTS, *SLICES, *EVENTS, *COUNTERS),
    unsupported=3,
    bad_handle=2,
    too_small=7,
    bad_version=25,
    scope=("device", "instance", "card", "bus"),
    handles={
        "void *": "nvml_card",
        "mig *": "nvml_owner",
        "uint32_t": "nvml_number",
        "const char *": "nvml_by_bus",
    },
    scenario_env="XPU_NVML_SCENARIO",
    trace_env="XPU_NVML_CALLS",
    prototypes="nvml.h",
    sources=("cards.c", "links.c", "lists.c", "slices.c", "events.c", "counters.c"),
)
