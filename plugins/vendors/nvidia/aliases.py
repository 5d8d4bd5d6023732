"""Names of dcgm-exporter for NVIDIA's metrics: its default counters, and optional ones."""

from __future__ import annotations

from msgspec.structs import replace

from agent.snapshot.vendor import (
    AliasLabel,
    AliasMatch,
    AliasSource,
    AliasTable,
    DeviceValue,
    LabelOrigin,
    MetricAlias,
)

_MIB, _MHZ, _KB = 1 / (1 << 20), 1e-6, 1e-3
_MILLI, _NANO, _PERCENT = 1e3, 1e9, 100.0
_LINKS = 18  # of dcgm-exporter's names for single NVLinks

_LABELS = (
    AliasLabel("gpu", LabelOrigin.FACT, "index"),
    AliasLabel("UUID", LabelOrigin.UUID),
    AliasLabel("pci_bus_id", LabelOrigin.BUS_ID_LONG),
    AliasLabel("device", LabelOrigin.VENDOR_MINOR, prefix="nvidia"),
    AliasLabel("modelName", LabelOrigin.NAME),
    AliasLabel("Hostname", LabelOrigin.NODE),
    AliasLabel("DCGM_FI_DRIVER_VERSION", LabelOrigin.DRIVER_VERSION),
    AliasLabel("container", LabelOrigin.CONTAINER),
    AliasLabel("namespace", LabelOrigin.NAMESPACE),
    AliasLabel("pod", LabelOrigin.POD),
)
_SLICE_LABELS = (
    AliasLabel("GPU_I_PROFILE", LabelOrigin.READING, "profile"),
    AliasLabel("GPU_I_ID", LabelOrigin.READING, "gpu_instance"),
)


def _from(family: str, factor: float = 1.0, **where: str) -> AliasSource:
    """Return a source of readings of `xpu_device_<family>`."""
    return AliasSource(family=f"xpu_device_{family}", factor=factor, where=tuple(where.items()))


def _from_slice(family: str, factor: float = 1.0, **where: str) -> AliasSource:
    """Return a source of readings of MIG instances.

    Instances that share a GPU instance have the same labels and the same value.
    """
    source = _from(f"slice_{family}", factor, **where)
    return replace(source, labels=_SLICE_LABELS, is_sum=False)


def _gauge(name: str, text: str, *sources: AliasSource, differs: str = "") -> MetricAlias:
    match = AliasMatch.NEAR if differs else AliasMatch.SAME
    return MetricAlias(
        name=f"DCGM_FI_{name}", type="gauge", help=text, sources=sources, match=match, note=differs
    )


def _counter(name: str, text: str, *sources: AliasSource, differs: str = "") -> MetricAlias:
    return replace(_gauge(name, text, *sources, differs=differs), type="counter")


def _absent(name: str, type_: str, reason: str) -> MetricAlias:
    return MetricAlias(name=name, type=type_, match=AliasMatch.ABSENT, note=reason)


_CLOCKS = (
    _gauge("DEV_SM_CLOCK", "SM clock frequency (in MHz).", _from("clock_hertz", _MHZ, domain="sm")),
    _gauge(
        "DEV_MEM_CLOCK",
        "Memory clock frequency (in MHz).",
        _from("clock_hertz", _MHZ, domain="memory"),
    ),
    _gauge(
        "DEV_CLOCK_THROTTLE_REASONS",
        "Current clock throttle reasons (bitmask).",
        *(
            _from("throttle_active", float(bit), reason=reason)
            for reason, bit in (
                ("sw_power_cap", 0x4),
                ("hw_slowdown", 0x8),
                ("sw_thermal", 0x20),
                ("hw_thermal", 0x40),
                ("hw_power_brake", 0x80),
            )
        ),
        differs="Bits that users ask for themselves are 0: idle, clock settings, sync boost, "
        "display.",
    ),
    _gauge("DEV_PSTATE", "Performance state (0 to 15).", _from("performance_state")),
)
_HEAT_AND_POWER = (
    _gauge(
        "DEV_MEMORY_TEMP",
        "Memory temperature (in C).",
        _from("temperature_celsius", sensor="memory"),
    ),
    _gauge("DEV_GPU_TEMP", "GPU temperature (in C).", _from("temperature_celsius", sensor="gpu")),
    _gauge("DEV_POWER_USAGE", "Power draw (in W).", _from("power_watts")),
    _gauge(
        "DEV_POWER_MGMT_LIMIT",
        "Current power limit (in W).",
        _from("power_limit_watts"),
        differs="The limit that is enforced, which another limit of the board may lower.",
    ),
    _gauge("DEV_ENFORCED_POWER_LIMIT", "Enforced power limit (in W).", _from("power_limit_watts")),
    _gauge(
        "DEV_POWER_MGMT_LIMIT_MIN",
        "Minimum power limit (in W).",
        _from("power_limit_bounds_watts", kind="min"),
    ),
    _gauge(
        "DEV_POWER_MGMT_LIMIT_MAX",
        "Maximum power limit (in W).",
        _from("power_limit_bounds_watts", kind="max"),
    ),
    _gauge(
        "DEV_POWER_MGMT_LIMIT_DEF",
        "Default power limit (in W).",
        _from("power_limit_bounds_watts", kind="default"),
    ),
    _counter(
        "DEV_TOTAL_ENERGY_CONSUMPTION",
        "Total energy consumption since boot (in mJ).",
        _from("energy_joules_total", _MILLI),
    ),
    _gauge(
        "DEV_FAN_SPEED",
        "Fan speed (in %).",
        _from("fan_speed_ratio", _PERCENT, fan="0"),
        differs="Of the first fan; xpu_device_fan_speed_ratio has each.",
    ),
)
_PCIE = (
    _counter(
        "DEV_PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", _from("pcie_replays_total")
    ),
    *(
        _counter(
            f"DEV_PCIE_{direction.upper()}_THROUGHPUT",
            f"Total number of bytes {verb} through PCIe {direction.upper()} (in KB) via NVML.",
            _from("pcie_bytes_total", _KB, direction=direction),
            differs="A counter, as its type says; DCGM's value is the rate of 20 ms.",
        )
        for direction, verb in (("tx", "transmitted"), ("rx", "received"))
    ),
)
_UTILIZATION = (
    _gauge(
        "DEV_GPU_UTIL",
        "GPU utilization (in %).",
        AliasSource(value=DeviceValue.UTILIZATION_PERCENT),
        differs="The mean since the last sample, not the driver's last value. A card with MIG has "
        "a value where it has performance counters.",
    ),
    _gauge(
        "DEV_MEM_COPY_UTIL",
        "Memory utilization (in %).",
        _from("memory_busy_ratio", _PERCENT),
    ),
    _gauge(
        "DEV_ENC_UTIL",
        "Encoder utilization (in %).",
        _from("engine_busy_ratio", _PERCENT, engine="encoder"),
    ),
    _gauge(
        "DEV_DEC_UTIL",
        "Decoder utilization (in %).",
        _from("engine_busy_ratio", _PERCENT, engine="decoder"),
    ),
)
_MEMORY = (
    _gauge(
        "DEV_FB_FREE",
        "Framebuffer memory free (in MiB).",
        _from("memory_free_bytes", _MIB),
        _from_slice("memory_free_bytes", _MIB),
    ),
    _gauge(
        "DEV_FB_USED",
        "Framebuffer memory used (in MiB).",
        AliasSource(value=DeviceValue.MEMORY_USED_BYTES, factor=_MIB),
        _from_slice("memory_used_bytes", _MIB),
    ),
    _gauge(
        "DEV_FB_RESERVED",
        "Framebuffer memory reserved (in MiB).",
        _from("memory_reserved_bytes", _MIB),
    ),
    _gauge(
        "DEV_FB_TOTAL",
        "Total framebuffer memory (in MiB).",
        AliasSource(value=DeviceValue.MEMORY_TOTAL_BYTES, factor=_MIB),
        _from_slice("memory_total_bytes", _MIB),
    ),
)
_ERRORS = (
    _gauge("DEV_XID_ERRORS", "Value of the last XID error encountered.", _from("last_xid")),
    *(
        _counter(
            f"DEV_{name}_VIOLATION",
            f"Throttling duration due to {cause} (in ns).",
            _from("throttle_seconds_total", _NANO, reason=reason),
        )
        for name, cause, reason in (
            ("POWER", "power constraints", "power"),
            ("THERMAL", "thermal constraints", "thermal"),
            ("SYNC_BOOST", "sync-boost constraints", "sync_boost"),
            ("BOARD_LIMIT", "board limit constraints", "board_limit"),
            ("LOW_UTIL", "low utilization", "low_utilization"),
            ("RELIABILITY", "reliability constraints", "reliability"),
        )
    ),
    *(
        _counter(
            f"DEV_ECC_{letter}BE_{period}_TOTAL",
            f"Total number of {bits}-bit {duration} ECC errors.",
            _from(family, kind=kind),
        )
        for letter, bits, kind in (("S", "single", "corrected"), ("D", "double", "uncorrected"))
        for period, duration, family in (
            ("VOL", "volatile", "ecc_errors_total"),
            ("AGG", "persistent", "ecc_lifetime_errors_total"),
        )
    ),
    *(
        _counter(
            f"DEV_RETIRED_{letter}BE",
            f"Total number of retired pages due to {bits}-bit errors.",
            _from("retired_pages", cause=f"{bits}_bit"),
        )
        for letter, bits in (("S", "single"), ("D", "double"))
    ),
    _counter(
        "DEV_RETIRED_PENDING",
        "Total number of pages pending retirement.",
        _from("page_retirement_pending"),
        differs="1 if there is such a page: NVML tells no number.",
    ),
    _counter(
        "DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Number of remapped rows for uncorrectable errors",
        _from("remapped_rows_total", kind="uncorrectable"),
    ),
    _counter(
        "DEV_CORRECTABLE_REMAPPED_ROWS",
        "Number of remapped rows for correctable errors",
        _from("remapped_rows_total", kind="correctable"),
    ),
    _gauge(
        "DEV_ROW_REMAP_FAILURE",
        "Whether remapping of rows has failed",
        _from("row_remap_failed"),
    ),
    _gauge(
        "DEV_ROW_REMAP_PENDING",
        "Whether remapping of rows is pending",
        _from("row_remap_pending"),
    ),
)
_NVLINK = (
    *(
        _counter(
            f"DEV_NVLINK_{name}_ERROR_COUNT_TOTAL",
            text,
            _from("nvlink_errors_total", kind=kind),
            differs=differs,
        )
        for name, text, kind, differs in (
            (
                "CRC_FLIT",
                "Total number of NVLink flow-control CRC errors.",
                "crc",
                "CRC errors of both kinds: drivers count them together now.",
            ),
            ("REPLAY", "Total number of NVLink retries.", "replay", ""),
            ("RECOVERY", "Total number of NVLink recovery errors.", "recovery", ""),
        )
    ),
    _absent(
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "counter",
        "Drivers count CRC errors of both kinds together now: see CRC_FLIT.",
    ),
    _counter(
        "DEV_NVLINK_BANDWIDTH_TOTAL",
        "Total number of NVLink bandwidth counters for all lanes.",
        _from("nvlink_bytes_total"),
        differs="Bytes of data, sent and received; DCGM states no unit.",
    ),
    *(
        _counter(
            f"DEV_NVLINK_BANDWIDTH_L{link}",
            f"NVLink bandwidth counter of link {link}.",
            _from("nvlink_link_bytes_total", link=str(link)),
            differs="Bytes of data, sent and received; DCGM states no unit.",
        )
        for link in range(_LINKS)
    ),
)
_HOPPER = "Cards before Hopper have none: NVML has counters from Hopper on, DCGM from Volta on."


def _profile(
    name: str, text: str, family: str, slice_family: str = "", pipe: str = ""
) -> MetricAlias:
    where = {"pipe": pipe} if pipe else {}
    return _gauge(
        f"PROF_{name}",
        text,
        _from(family, 1.0, **where),
        _from_slice(slice_family or family, 1.0, **where),
        differs=_HOPPER,
    )


_PROFILING = (
    _profile(
        "GR_ENGINE_ACTIVE",
        "Ratio of time the graphics engine is active.",
        "graphics_engine_active_ratio",
    ),
    _profile(
        "SM_ACTIVE",
        "The ratio of cycles an SM has at least 1 warp assigned.",
        "sm_active_ratio",
        "utilization_ratio",
    ),
    _profile(
        "SM_OCCUPANCY",
        "The ratio of number of warps resident on an SM.",
        "sm_occupancy_ratio",
    ),
    _profile(
        "DRAM_ACTIVE",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        "pipe_active_ratio",
        pipe="dram",
    ),
    _profile(
        "PIPE_TENSOR_ACTIVE",
        "Ratio of cycles the tensor (HMMA) pipe is active.",
        "pipe_active_ratio",
        pipe="tensor",
    ),
    *(
        _profile(
            f"PIPE_{pipe.upper()}_ACTIVE",
            f"Ratio of cycles the {pipe} pipes are active.",
            "pipe_active_ratio",
            pipe=pipe,
        )
        for pipe in ("fp64", "fp32", "fp16")
    ),
    *(
        _gauge(
            f"PROF_{link.upper()}_{direction.upper()}_BYTES",
            f"The rate of data {verb} over {text} in bytes per second.",
            _from(f"{link}_bytes_per_second", direction=direction),
            differs=differs,
        )
        for link, text, differs in (
            ("pcie", "the PCIe bus", ""),
            ("nvlink", "NVLink", "Cards before Hopper: without protocol headers."),
        )
        for direction, verb in (("tx", "transmitted"), ("rx", "received"))
    ),
)
_EXPORTERS_OWN = (
    MetricAlias(
        name="DCGM_EXP_XID_ERRORS_COUNT",
        type="gauge",
        help="Count of XID errors.",
        sources=(
            replace(
                _from("xid_errors_total"), labels=(AliasLabel("xid", LabelOrigin.READING, "xid"),)
            ),
        ),
        match=AliasMatch.NEAR,
        note="Since the boot or the agent's start, not within a window; without err_code and "
        "window_size_in_ms.",
    ),
    _absent(
        "DCGM_EXP_CLOCK_EVENTS_COUNT",
        "gauge",
        "Counts of a window: xpu_device_throttle_seconds_total has the time of each reason.",
    ),
    _absent(
        "DCGM_EXP_GPU_HEALTH_STATUS",
        "gauge",
        "The result of DCGM's own health checks: xpu_device_health_state has the agent's.",
    ),
    _absent(
        "DCGM_EXP_P2P_STATUS",
        "gauge",
        "Of pairs of cards: the topology of the Device object and xpu_gpudirect_ready have them.",
    ),
)
_LICENSE = (
    _gauge(
        "DEV_VGPU_LICENSE_STATUS",
        "vGPU License status",
        _from("vgpu_licensed"),
        differs="Absent where no licence is needed; DCGM has 0 there.",
    ),
)

DCGM = AliasTable(
    name="dcgm",
    exporter="NVIDIA's dcgm-exporter",
    maker="nvidia",
    labels=_LABELS,
    metrics=(
        *_CLOCKS,
        *_HEAT_AND_POWER,
        *_PCIE,
        *_UTILIZATION,
        *_MEMORY,
        *_ERRORS,
        *_NVLINK,
        *_LICENSE,
        *_PROFILING,
        *_EXPORTERS_OWN,
    ),
)
