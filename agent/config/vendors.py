"""Settings of the vendors: which run, and what a person knows better than their driver."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.config.field import Rule, Table

SWITCH = ("auto", "on", "off")
BY_CDI = ("auto", "cdi")
PRELOADS = ("env", "file")
PARTITIONING = ("Prefer", "Honor")


class VendorSwitches(msgspec.Struct, frozen=True, kw_only=True):
    """Which vendors may run a worker."""

    nvidia: Annotated[str, Rule("NVIDIA GPUs through NVML", choices=SWITCH, maturity="beta")] = (
        "auto"
    )
    cambricon: Annotated[
        str, Rule("Cambricon MLUs through CNDev", choices=SWITCH, maturity="beta")
    ] = "auto"
    ascend: Annotated[
        str, Rule("Ascend NPUs through libdcmi", choices=SWITCH, maturity="alpha")
    ] = "auto"
    rdma: Annotated[
        str, Rule("InfiniBand, RoCE and soft-RoCE devices", choices=SWITCH, maturity="beta")
    ] = "auto"
    fake: Annotated[
        str, Rule("devices described in discovery.fake.file", choices=SWITCH, maturity="stable")
    ] = "auto"
    accelerators: Annotated[
        str,
        Rule("other makers' accelerators by their PCI identity", choices=SWITCH, maturity="beta"),
    ] = "auto"
    infofiles: Annotated[
        str,
        Rule("devices that device-info files describe", choices=("on", "off"), maturity="beta"),
    ] = "off"


class XidSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What Xid errors mean on this node, where a person knows better than the catalogue."""

    ignore: Annotated[tuple[str, ...], Rule("Xid numbers that never change a card's health")] = ()
    fatal: Annotated[tuple[str, ...], Rule("Xid numbers that take a card out of service")] = ()


class NvidiaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the NVIDIA worker finds its driver."""

    library_dirs: Annotated[
        tuple[str, ...],
        Rule("folders searched for libnvidia-ml.so.1; empty: the usual ones below driver_root"),
    ] = ()
    driver_root: Annotated[
        str, Rule("root of the driver's files; /run/nvidia/driver with a container")
    ] = "/"
    forget_after_s: Annotated[
        float,
        Rule("a card that left its bus stays listed that long", unit="s", low=0, high=604800),
    ] = 86400.0
    partition_policy: Annotated[
        str,
        Rule("whether pods get only cards that the partition table lists", choices=PARTITIONING),
    ] = "Prefer"
    partition_bandwidth: Annotated[
        bool, Rule("put the NVLink bandwidth of each partition into the table", maturity="beta")
    ] = False
    fabric_must_be_ready: Annotated[
        str,
        Rule("an NVLink fabric that is not ready takes the cards out of service", choices=SWITCH),
    ] = "auto"
    xids: Annotated[XidSettings, Rule("Xid errors")] = XidSettings()
    upstream_compatible: Annotated[
        bool,
        Rule(
            "as koordlet does: take every Xid but 13, 31, 43, 45, 68 and 109 for fatal, and name "
            "cards to containers by minor"
        ),
    ] = False
    injection: Annotated[
        str,
        Rule("how cards get into containers", choices=("auto", "cdi", "env", "nodes")),
    ] = "auto"
    preload: Annotated[
        str,
        Rule("how containers load HAMi-core: LD_PRELOAD or /etc/ld.so.preload", choices=PRELOADS),
    ] = "env"
    region: Annotated[
        bool, Rule("let HAMi-core count a container's use of cards where we read it")
    ] = True


class AscendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the Ascend worker finds its driver, and what counts for it."""

    library_path: Annotated[
        str, Rule("libdcmi.so itself; empty: looked for in the usual folders")
    ] = ""
    library_dirs: Annotated[
        tuple[str, ...], Rule("folders of the driver's libraries, which libdcmi.so needs")
    ] = ("/usr/local/Ascend/driver/lib64/driver", "/usr/local/Ascend/driver/lib64/common")
    driver_root: Annotated[str, Rule("root below which the driver's usual folders are")] = "/"
    sample_interval_s: Annotated[
        float,
        Rule("chips are sampled as often; from 10 on over a full second", unit="s", low=1, high=60),
    ] = 5.0
    fault_codes: Annotated[
        str, Rule("faultCode.json that replaces the maker's classes of faults; empty: those")
    ] = ""
    injection: Annotated[
        str, Rule("how chips get into containers without Ascend's own runtime", choices=BY_CDI)
    ] = "auto"
    network_is_health: Annotated[
        bool, Rule("a chip whose network port fails is out of service", maturity="beta")
    ] = False
    forget_after_s: Annotated[
        float,
        Rule("a chip that left its bus stays listed that long", unit="s", low=0, high=604800),
    ] = 86400.0


class CambriconSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the Cambricon worker finds its driver, and what the driver does not say."""

    library_path: Annotated[
        str, Rule("libcndev.so itself; empty: the linker's path, then the usual folders")
    ] = ""
    driver_root: Annotated[str, Rule("root of the driver's files and of cnmon")] = "/"
    cntopo_file: Annotated[
        str, Rule("what cntopo wrote of this machine's rings; its pairs are granted together")
    ] = ""
    smlu_unit_mib: Annotated[
        int,
        Rule("unit of an sMLU slice's memory; 0: a hundredth", unit="MiB", low=0, high=1048576),
    ] = 0
    injection: Annotated[
        str, Rule("how cards get into containers without Cambricon's own runtime", choices=BY_CDI)
    ] = "auto"


class RdmaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which RDMA devices are published, and how their ports make health."""

    soft: Annotated[bool, Rule("publish soft-RoCE and soft-iWARP devices", maturity="beta")] = False
    port_policy: Annotated[str, Rule("ports that must be active", choices=("any", "all"))] = "any"
    expected_ports: Annotated[
        Table, Rule("ports that count though they were never up: {match, ports}")
    ] = ()
    vf_pools: Annotated[Table, Rule("groups of virtual functions: {pf, vfs, driver, labels}")] = ()
    labels: Annotated[Table, Rule("labels of devices: {match, labels}")] = ()
    roles: Annotated[Table, Rule("use of a NIC: {match, role: compute or storage}")] = ()
    error_limits: Annotated[
        Table, Rule("growth of an error counter within 300 s that is told: {counter, limit}")
    ] = ()
    inject_all_ports: Annotated[
        bool, Rule("show all devices of a granted function or bond, not the first alone")
    ] = True
    inject_umad: Annotated[
        bool, Rule("show the management device too, which lets pods change the fabric")
    ] = False
    require_rdma_cm: Annotated[
        bool, Rule("refuse containers where /dev/infiniband/rdma_cm is missing")
    ] = False
    memlock: Annotated[bool, Rule("let containers with RDMA lock all of their memory")] = True
    nccl_env: Annotated[bool, Rule("set NCCL_IB_HCA where a pod does not")] = False
    counters_interval_s: Annotated[
        float, Rule("cycle of port counters and of pods' RDMA objects", unit="s", low=1, high=3600)
    ] = 10.0


class AcceleratorsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Cards of other makers, as far as a person describes them."""

    cards: Annotated[
        Table,
        Rule(
            "cards to publish: {match: vendor:device, model, memory_mib, core, node: /dev/x{n}, "
            "minor: pci-order or dev-number}"
        ),
    ] = ()


class InfofilesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where another program describes devices for koordlet, and for us."""

    directory: Annotated[
        str, Rule("folder of device-info files; our own file in it is not read")
    ] = "/var/run/koordlet/xpu-device-infos"


class FakeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that do not exist, for demonstrations and scale tests."""

    file: Annotated[str, Rule("YAML file that describes them; empty: none")] = ""
