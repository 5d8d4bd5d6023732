"""Current values of a card beside those of `CndevCard`, in base units.

A value that the card does not report, or that no card can have, is left out.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator
from functools import partial
from ipaddress import ip_address

import msgspec
from msgspec.structs import replace

from agent.snapshot.inventory import CELSIUS, FLAG, HERTZ, PERCENT, WATTS, Bounds, scale
from plugins.shared.c_structures import decode_c_text
from plugins.vendors.cambricon.library.card import COUNTS, CndevCard

MEGA = 10**6
GIGA = 10**9
MEGAHERTZ = scale(HERTZ, 1 / MEGA)
ROWS: Bounds = (0, 1 << 20)  # also of memory pages
REPLAYS: Bounds = (0, 1 << 30)
WINDOW_BYTES: Bounds = (0, 1 << 33)  # of PCIe in 20 ms: more than any bus carries
WINDOWS_A_SECOND = 50  # the card reports the traffic of the last 20 ms
LINK_GIGABYTES: Bounds = (0, 10_000)
CONGESTION_SINCE = 6  # interface version whose structure has the counts of these packets
OPTICAL_LANES = 8
OPTICAL_DBM: Bounds = (-60, 30)
OPTICAL_VOLTS: Bounds = (0, 10)
CODECS = 20  # elements of each list of codecs

MAC_STATES = {0: "down", 1: "up", 2: "lldp", 3: "ready"}
SERDES_STATES = {0: "disabled", 1: "enabled", 2: "establishing"}
CABLE_STATES = {0: "absent", 1: "present", 2: "unsupported"}
LINK_MODES = {0: "uninitialized", 1: "any", 2: "mlulink", 3: "roce"}
SPEED_FORMATS = {0: "nrz", 1: "pam4"}
PEER_KINDS = {0: "mlu", 1: "switch"}
RETIREMENT_CAUSES = {0: "single_bit", 1: "double_bit"}

# (member of the structure, kind of error)
LINK_COUNTER_KINDS = (
    ("replay", "replay"),
    ("fatal", "fatal"),
    ("ecc_double", "ecc_double_bit"),
    ("crc24", "crc24"),
    ("crc32", "crc32"),
    ("corrected", "corrected"),
    ("uncorrected", "uncorrected"),
)
LINK_ERROR_KINDS = (
    ("corrected_fec", "corrected_fec"),
    ("uncorrected_fec", "uncorrected_fec"),
    ("rx_bad_fcs", "rx_bad_fcs"),
    ("tx_bad_fcs", "tx_bad_fcs"),
    ("illegal_access", "illegal_access"),
)
LINK_EVENT_KINDS = (
    ("down", "link_down"),
    ("replay", "task_replay"),
    ("replay_fail", "replay_failed"),
)
CONGESTION_KINDS = (("cnp", "cnp"), ("pfc", "pfc"))

_NAME = re.compile(r"[0-9A-Za-z./:_ -]{1,64}")  # of a port, and what a UUID looks like

Labelled = Iterator[tuple[tuple[str, ...], float]]  # (values of labels, value)


def read_clocks(card: CndevCard) -> Labelled:
    """Yield (domain, Hz) of the cores, their default, and the memory."""
    record = card.read("cndevGetFrequencyInfo", "Clocks")
    if record is None:
        return
    values = (
        ("core", record.board),
        ("memory", record.ddr),
        ("core_default", record.board_default),
    )
    for domain, megahertz in values:
        if megahertz and card.is_possible(f"clock {domain}", megahertz, MEGAHERTZ):
            yield (domain,), float(megahertz * MEGA)


def read_codecs(card: CndevCard) -> Labelled:
    """Yield (codec, its number, busy share) of video codecs, en- and decoders, and image codecs."""
    video = card.read("cndevGetVideoCodecUtilization", "VideoCodecs")
    if video is not None:
        yield from _busy_shares(card, "video", video.vpus, video.vpu)
        yield from _busy_shares(card, "encoder", video.encoders, video.encoder)
        yield from _busy_shares(card, "decoder", video.decoders, video.decoder)
    image = card.read("cndevGetImageCodecUtilization", "ImageCodecs")
    if image is not None:
        yield from _busy_shares(card, "image", image.jpus, image.jpu)


def _busy_shares(
    card: CndevCard, codec: str, count: int, percents: ctypes.Array[ctypes.c_int32]
) -> Labelled:
    for number, percent in enumerate(percents[:count] if 0 < count <= CODECS else ()):
        if card.is_possible(f"utilization {codec}", percent, PERCENT):
            yield (codec, str(number)), percent / 100


def read_pcie_rates(card: CndevCard) -> Labelled:
    """Yield (direction, bytes per second) over PCIe in the last 20 ms."""
    record = card.read("cndevGetPCIethroughputV2", "PcieTraffic")
    if record is not None:
        for direction, size in (("read", record.read), ("write", record.write)):
            if card.is_possible(f"pcie rate {direction}", size, WINDOW_BYTES):
                yield (direction,), float(size * WINDOWS_A_SECOND)


def read_pcie_totals(card: CndevCard) -> Labelled:
    """Yield (direction, bytes) over PCIe since the driver was loaded; nothing if it has no totals.

    Older drivers leave both totals at zero.
    """
    record = card.read("cndevGetPCIethroughputV2", "PcieTraffic")
    if record is None or not (record.read_total or record.write_total):
        return
    for direction, size in (("read", record.read_total), ("write", record.write_total)):
        if card.is_possible(f"pcie {direction}", size, COUNTS):
            yield (direction,), float(size)


def read_pcie_replays(card: CndevCard) -> float | None:
    """Return the PCIe packets that were sent again."""
    record = card.read("cndevGetPcieReplayCounter", "PcieReplays")
    if record is None or not card.is_possible("pcie replays", record.count, REPLAYS):
        return None
    return float(record.count)


def read_power_limits(card: CndevCard) -> Labelled:
    """Yield (kind, watts) of the default limit and of the lowest and highest that can be set."""
    default = card.read("cndevGetPowerManagementDefaultLimitation", "PowerLimit")
    bounds = card.read("cndevGetPowerManagementLimitationRange", "PowerRange")
    values = (
        ("default", default.watts if default else 0),
        ("lowest", bounds.low if bounds else 0),
        ("highest", bounds.high if bounds else 0),
    )
    for kind, watts in values:
        if watts and card.is_possible(f"power limit {kind}", watts, WATTS):
            yield (kind,), float(watts)


class LinkState(msgspec.Struct, frozen=True, kw_only=True):
    """What an MLULink port reports."""

    port: str
    layers: tuple[tuple[str, str], ...]  # (layer, its state)
    speed_bytes: float | None  # per second, at most
    traffic: tuple[tuple[str, str, float], ...]  # (bytes or packets, direction, count)
    errors: tuple[tuple[str, float], ...]  # (kind, count)
    congestion: tuple[tuple[str, float], ...]  # (kind, packets)
    mode: str | None  # what the port is used for
    speed_format: str | None
    name: str  # of the socket at the case; empty: the port has none
    version: str
    is_enabled: tuple[tuple[str, float], ...]  # (direction, 0 or 1)
    capabilities: tuple[tuple[str, float], ...]  # (capability, 0 or 1)
    peer: LinkPeer | None


class LinkPeer(msgspec.Struct, frozen=True, kw_only=True):
    """What an MLULink port is connected to. Texts that are not known are empty.

    A switch has a MAC address and the name of its port only.
    """

    kind: str
    mac: str
    port_name: str
    uuid: str = ""
    ip: str = ""
    serial: str = ""
    board_serial: str = ""
    slot: str = ""
    port: str = ""
    ncs: str = ""  # number of the card in the network of MLULink


def read_links(card: CndevCard) -> Iterator[LinkState]:
    """Yield the states of the MLULink ports."""
    for port in card.link_ports():
        counters = card.read_port("cndevGetMLULinkCounter", "LinkCounters", port)
        speed = card.read_port("cndevGetMLULinkSpeedInfo", "LinkSpeed", port)
        mode = card.read_port("cndevGetMLULinkPortMode", "LinkMode", port)
        yield LinkState(
            port=str(port),
            layers=tuple(_link_layers(card, port)),
            speed_bytes=_link_speed(card, speed),
            traffic=tuple(_link_traffic(card, counters)),
            errors=tuple(_link_errors(card, port, counters)),
            congestion=tuple(_congestion(card, counters)),
            mode=LINK_MODES.get(mode.mode) if mode is not None else None,
            speed_format=SPEED_FORMATS.get(speed.format) if speed is not None else None,
            name=_link_name(card, port),
            version=_link_version(card, port),
            is_enabled=tuple(_enabled_directions(card, port)),
            capabilities=tuple(_link_capabilities(card, port)),
            peer=_link_peer(card, port),
        )


def _link_name(card: CndevCard, port: int) -> str:
    record = card.read_port("cndevGetMLULinkPPI", "LinkName", port)
    name = decode_c_text(record.name) if record is not None else ""
    return name if _NAME.fullmatch(name) else ""


def _link_version(card: CndevCard, port: int) -> str:
    record = card.read_port("cndevGetMLULinkVersion", "LinkVersion", port)
    numbers = tuple(record.number) if record is not None else ()
    return ".".join(map(str, numbers)) if numbers and max(numbers) < 1 << 16 else ""


def _enabled_directions(card: CndevCard, port: int) -> Iterator[tuple[str, float]]:
    inbound, outbound = ctypes.c_int32(-1), ctypes.c_int32(-1)
    symbol = "cndevGetMLULinkState"
    call = partial(_fill_directions, card, symbol, port, inbound, outbound)
    if card.call(f"{symbol} {port}", call):
        for direction, flag in (("inbound", inbound.value), ("outbound", outbound.value)):
            if card.is_possible(f"link enabled {direction}", flag, FLAG):
                yield direction, float(flag)


def _fill_directions(
    card: CndevCard, symbol: str, port: int, inbound: ctypes.c_int32, outbound: ctypes.c_int32
) -> bool:
    card.cndev.call(symbol, ctypes.byref(inbound), ctypes.byref(outbound), card.handle, port)
    return True


def _link_capabilities(card: CndevCard, port: int) -> Iterator[tuple[str, float]]:
    record = card.read_port("cndevGetMLULinkCapability", "LinkCapability", port)
    if record is not None:
        for capability, flag in (("p2p", record.p2p), ("interlaken", record.serdes)):
            if card.is_possible(f"link capability {capability}", flag, FLAG):
                yield capability, float(flag)


def _link_peer(card: CndevCard, port: int) -> LinkPeer | None:
    record = card.read_port("cndevGetMLULinkRemoteInfo", "Remote", port)
    kind = PEER_KINDS.get(record.connect) if record is not None else None
    if record is None or kind is None:
        return None
    mac = ":".join(f"{byte:02x}" for byte in record.mac) if any(record.mac) else ""
    name = decode_c_text(record.port_name)
    peer = LinkPeer(kind=kind, mac=mac, port_name=name if _NAME.fullmatch(name) else "")
    if kind != "mlu":
        return peer
    uuid = decode_c_text(record.uuid)
    return replace(
        peer,
        uuid=uuid if _NAME.fullmatch(uuid) else "",
        ip=_ip_text(record),
        serial=f"{record.mc_sn:x}",
        board_serial=f"{record.ba_sn:x}",
        slot=str(record.slot),
        port=str(record.port),
        ncs=str(record.ncs),
    )


def _ip_text(record: ctypes.Structure) -> str:
    """Return the address at the other end, which drivers give as text or as bytes; "" if none."""
    if record.ipvalid != 1:
        return ""
    raw = bytes(record.ip)
    for address in (
        decode_c_text(raw.partition(b"\0")[0]),
        raw[: {4: 4, 6: 16}.get(record.ipver, 0)],
    ):
        try:
            return str(ip_address(address))
        except ValueError:
            continue
    return ""


def _link_layers(card: CndevCard, port: int) -> Iterator[tuple[str, str]]:
    record = card.read_port("cndevGetMLULinkStatusV2", "LinkV2", port)
    if record is None:
        return
    layers = (
        ("mac", MAC_STATES.get(record.mac)),
        ("serdes", SERDES_STATES.get(record.serdes)),
        ("cable", CABLE_STATES.get(record.presence)),
    )
    for layer, state in layers:
        if state is not None:
            yield layer, state


def _link_speed(card: CndevCard, record: ctypes.Structure | None) -> float | None:
    speed = float(record.gigabytes) if record else 0.0
    is_known = speed and card.is_possible("link speed", speed, LINK_GIGABYTES)
    return speed * GIGA if is_known else None


def _link_traffic(
    card: CndevCard, counters: ctypes.Structure | None
) -> Iterator[tuple[str, str, float]]:
    for unit in ("bytes", "packets") if counters is not None else ():
        for direction in ("read", "write"):
            count = getattr(counters, f"{direction}_{unit}")
            if card.is_possible(f"link {unit}", count, COUNTS):
                yield unit, direction, float(count)


def _link_errors(
    card: CndevCard, port: int, counters: ctypes.Structure | None
) -> Iterator[tuple[str, float]]:
    errors = card.read_port("cndevGetMLULinkErrorCounter", "LinkErrors", port)
    events = card.read_port("cndevGetMLULinkEventCounter", "LinkEvents", port)
    for record, members in (
        (counters, LINK_COUNTER_KINDS),
        (errors, LINK_ERROR_KINDS),
        (events, LINK_EVENT_KINDS),
    ):
        yield from _link_counts(card, record, members)


def _congestion(card: CndevCard, counters: ctypes.Structure | None) -> Iterator[tuple[str, float]]:
    if card.cndev.version >= CONGESTION_SINCE:
        yield from _link_counts(card, counters, CONGESTION_KINDS)


def _link_counts(
    card: CndevCard, record: ctypes.Structure | None, members: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, float]]:
    for member, kind in members if record is not None else ():
        count = getattr(record, member)
        if card.is_possible(f"link {kind}", count, COUNTS):
            yield kind, float(count)


class OpticalState(msgspec.Struct, frozen=True, kw_only=True):
    """What the optical module at an MLULink port reports."""

    port: str
    is_present: bool
    celsius: float | None = None
    volts: float | None = None
    watts: tuple[tuple[str, str, float], ...] = ()  # (direction, lane, light)


def read_optical_modules(card: CndevCard) -> Iterator[OpticalState]:
    """Yield the optical modules of the MLULink ports that can have one."""
    for port in card.link_ports():
        record = card.read_port("cndevGetOpticalInfo", "Optical", port)
        if record is None or not card.is_possible("optical present", record.present, FLAG):
            continue
        if not record.present:
            yield OpticalState(port=str(port), is_present=False)
            continue
        celsius, volts = float(record.temperature), float(record.voltage)
        # below zero: not measured
        is_warm = celsius >= 0 and card.is_possible("optical temperature", celsius, CELSIUS)
        is_fed = card.is_possible("optical voltage", volts, OPTICAL_VOLTS)
        yield OpticalState(
            port=str(port),
            is_present=True,
            celsius=celsius if is_warm else None,
            volts=volts if is_fed else None,
            watts=tuple(_light(card, record)),
        )


def _light(card: CndevCard, record: ctypes.Structure) -> Iterator[tuple[str, str, float]]:
    lanes = record.lanes if 0 < record.lanes <= OPTICAL_LANES else 0
    for direction in ("sent", "received"):
        for lane, dbm in enumerate(getattr(record, direction)[:lanes]):
            if card.is_possible(f"optical {direction}", dbm, OPTICAL_DBM):
                yield direction, str(lane), 10 ** (dbm / 10 - 3)


def read_remapped_rows(card: CndevCard) -> Labelled:
    """Yield (kind, rows) of memory rows replaced after correctable and uncorrectable errors."""
    record = card.read("cndevGetRemappedRowsV2", "RowsV2")
    record = record or card.read("cndevGetRemappedRows", "Rows")
    if record is not None:
        for kind in ("correctable", "uncorrectable"):
            rows = getattr(record, kind)
            if card.is_possible(f"rows {kind}", rows, ROWS):
                yield (kind,), float(rows)


def read_repair_states(card: CndevCard) -> Labelled:
    """Yield (state, 0 or 1): whether a repair or a retirement of memory is pending, or failed."""
    symbol = "cndevGetRepairStatus"
    record = card.read(symbol, "Repair")
    if record is not None:
        for member, state in (
            ("pending", "pending"),
            ("failed", "failed"),
            ("retire_pending", "retirement_pending"),
        ):
            flag = getattr(record, member)
            if card.is_possible(f"repair {state}", flag, FLAG):
                yield (state,), float(flag)
    elif card.is_unsupported(symbol):  # drivers before 6.0.3 count the rows
        rows = card.read("cndevGetRemappedRows", "Rows")
        for state in ("pending", "failed") if rows is not None else ():
            count = getattr(rows, state)
            if card.is_possible(f"repair {state}", count, ROWS):
                yield (state,), float(count > 0)


def read_retired_pages(card: CndevCard) -> Labelled:
    """Yield (cause, pages) of memory pages taken out of use."""
    symbol = "cndevGetRetiredPages"
    for number, cause in RETIREMENT_CAUSES.items():
        pages = card.call(symbol, partial(_retired_pages, card, number))
        if pages is not None and card.is_possible(f"pages {cause}", pages, ROWS):
            yield (cause,), float(pages)


def _retired_pages(card: CndevCard, cause: int) -> int:
    request = card.cndev.record("RetiredPages")
    request.cause = cause
    card.cndev.call("cndevGetRetiredPages", ctypes.byref(request), card.handle)
    return int(request.count)
