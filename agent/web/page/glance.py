"""The node at a glance: its usage, and each card with its load, its owners and last minutes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized

from agent.metrics.device_pods import (
    NO_POD,
    UNUSED,
    DevicePod,
    DevicePodIndex,
    DevicePods,
    process_key,
)
from agent.snapshot.device import Device, DeviceKind, HealthState, short_name
from agent.snapshot.inventory import POWER, POWER_LIMIT, TEMPERATURE, DeviceSample, ProcessSample
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.usage import DeviceTrend, Trend
from agent.web.page.html import (
    anchor,
    badge,
    bytes_text,
    fold,
    health_badge,
    rate_text,
    section,
    tag,
    text,
)
from agent.web.page.sparkline import WIDTH, sparkline

MAX_CARDS = 32  # devices shown at a glance; the table below has all
MAX_OWNERS = 4  # pods of one card
MAX_PROCESSES = 4  # of one card; more are counted
MAX_SAMPLE_AGE_S = 180.0  # older values are not shown as the present ones, as in the metrics
HEAT_RANGE = (20.0, 100.0)  # degrees Celsius from the lower to the upper edge of a picture
SOME_WATTS = 100.0  # height of a picture of a card whose power limit is not known, at least
ROOM = 1.25  # and its height by the highest value
LITTLE_TRAFFIC = 1e6  # bytes per second: height of a picture of a NIC, at least
NO_DEVICE_TREND = DeviceTrend()


def fresh_samples(snapshot: NodeSnapshot, now_s: float) -> dict[str, DeviceSample]:
    """Return the samples by device key, without those that are too old to describe the present."""
    return {
        sample.key: sample
        for vendor in snapshot.vendors
        if (age_s := vendor.samples.age_s(now_s)) is not None and age_s <= MAX_SAMPLE_AGE_S
        for sample in vendor.samples.value
    }


def glance_section(
    snapshot: NodeSnapshot, samples: Mapping[str, DeviceSample], index: DevicePodIndex
) -> str:
    """Return the tiles of the node, and a card for each device."""
    pods = index.find(snapshot, samples)
    trends = snapshot.trend.value.devices
    devices = sorted(snapshot.devices.value.devices, key=_card_order)
    cards = [
        _card(device, samples.get(device.key), trends.get(device.key, NO_DEVICE_TREND), pods)
        for device in devices[:MAX_CARDS]
    ]
    more = len(devices) - len(cards)
    note = f"{more} more devices are in the table below." if more > 0 else ""
    return section(
        "glance",
        "The node at a glance",
        _tiles(snapshot),
        tag("ul", *cards, class_="cards") if cards else "",
        tag("p", note, class_="quiet") if note else "",
        tag("p", text(_trend_note(snapshot)), class_="quiet") if cards else "",
    )


def _trend_note(snapshot: NodeSnapshot) -> str:
    view = snapshot.trend.value
    if not view.step_s:
        return "The pictures of the last minutes begin a few seconds after the agent's start."
    minutes = WIDTH * view.step_s / 60
    return f"Each picture shows the last {minutes:g} minutes, the newest value at the right."


def _card_order(device: Device) -> tuple[bool, bool]:
    """Return the order of cards: accelerators before NICs; what is not managed comes last."""
    return device.info.kind is DeviceKind.RDMA, not device.info.managed


def _tile(figure: str, label: str, picture: str = "") -> str:
    return tag(
        "div",
        tag("b", text(figure)),
        tag("span", text(label), class_="quiet"),
        picture,
        class_="tile",
    )


def _noun(word: str, items: Sized) -> str:
    return word if len(items) == 1 else f"{word}s"


def _tiles(snapshot: NodeSnapshot) -> str:
    healths = [d.info.health for d in snapshot.devices.value.devices if d.info.managed]
    good = sum(health.state is HealthState.HEALTHY and health.certain for health in healths)
    node, trend = snapshot.usage.value.node, snapshot.trend.value
    cpus, numa = snapshot.cpus.value, snapshot.numa.value
    cores = "–" if node.cpu_cores is None else f"{node.cpu_cores:.2f}"
    memory_label = f"memory used of {bytes_text(node.memory_total_bytes)}"
    return tag(
        "div",
        _tile(f"{good} of {len(healths)}", "devices healthy") if healths else _tile("0", "devices"),
        _tile(
            cores,
            f"cores used of {len(cpus.usable)}",
            sparkline(trend.cpu_cores, 0, len(cpus.usable) or 1),
        ),
        _tile(
            bytes_text(node.memory_bytes),
            memory_label,
            sparkline(trend.memory_bytes, 0, node.memory_total_bytes or 1),
        ),
        _tile(
            str(len(numa.nodes)),
            f"memory {_noun('node', numa.nodes)} on {len(cpus.packages)} "
            f"{_noun('socket', cpus.packages)}",
        ),
        _tile(str(len(snapshot.pods.value)), _noun("pod", snapshot.pods.value)),
        class_="tiles",
    )


def device_state(device: Device) -> str:
    """Return the state in which a device is drawn; an uncertain one is drawn as suspect."""
    health = device.info.health
    if not device.info.managed:
        return "unmanaged"
    return health.state.value if health.certain or not health.is_in_service else "suspect"


def _card(device: Device, sample: DeviceSample | None, trend: DeviceTrend, pods: DevicePods) -> str:
    info = device.info
    state = health_badge(info.health) if info.managed else badge("unmanaged")
    model = (info.model or info.vendor).removeprefix("NVIDIA ")
    rows = [*_gauges(device, sample, trend), *_traffic_gauges(device, trend)]
    gauges = "".join(
        tag("div", tag("dt", text(name)), tag("dd", picture, tag("span", text(figure))))
        for name, figure, picture in rows
    )
    reason = "" if info.health.state is HealthState.HEALTHY else info.health.reason
    return tag(
        "li",
        tag("h3", tag("span", text(short_name(device))), state),
        tag("p", text(model), class_="quiet"),
        tag("p", text(reason), class_="why") if reason else "",
        tag("dl", gauges, class_="gauges") if rows else "",
        _owners(pods.get(device.key, (UNUSED,))) if info.kind is not DeviceKind.RDMA else "",
        _processes(device, sample, pods),
        class_=f"card {device_state(device)}",
        id=anchor("card", device.key),
    )


_Gauge = tuple[str, str, str]  # name, figure, picture


def _gauges(device: Device, sample: DeviceSample | None, trend: DeviceTrend) -> Iterable[_Gauge]:
    """Yield the quantities of an accelerator that are known now or were in the last minutes."""
    if device.info.kind is DeviceKind.RDMA:
        return
    total = device.info.memory_bytes or (sample.memory_total_bytes if sample else None)
    busy = sample.core_percent if sample else None
    used = sample.memory_used_bytes if sample else None
    heat, power = _reading(sample, TEMPERATURE), _reading(sample, POWER)
    limit = _reading(sample, POWER_LIMIT)
    yield "busy", _figure(busy, "%"), sparkline(trend.busy_percent, 0, 100)
    yield (
        "memory",
        f"{bytes_text(used)} of {bytes_text(total)}" if total else bytes_text(used),
        sparkline(trend.memory_bytes, 0, total or _highest(trend.memory_bytes)),
    )
    yield "temperature", _figure(heat, "°C"), sparkline(trend.temperature_celsius, *HEAT_RANGE)
    top = limit or max(SOME_WATTS, ROOM * _highest(trend.power_watts))
    suffix = f" of {limit:.0f} W" if limit and power is not None else " W"
    yield "power", _figure(power, suffix.strip()), sparkline(trend.power_watts, 0, top)


def _traffic_gauges(device: Device, trend: DeviceTrend) -> Iterable[_Gauge]:
    """Yield the traffic over each kind of link; a NIC has a picture of both directions together."""
    for link in trend.links:
        sent, received = link.sent.last, link.received.last
        if sent is None and received is None:
            continue
        figure, picture = f"↑ {rate_text(sent)} ↓ {rate_text(received)}", ""
        if device.info.kind is DeviceKind.RDMA:
            both = _sum(link.sent, link.received)
            picture = sparkline(both, 0, max(LITTLE_TRAFFIC, _highest(both)))
        yield link.link, figure, picture


def _sum(one: Trend, other: Trend) -> Trend:
    """Return the sums of two trends that end together."""
    return one if not other.packed else other if not one.packed else one.plus(other)


def _reading(sample: DeviceSample | None, family: str) -> float | None:
    """Return the highest reading of a family; `None` without readings."""
    values = [one.value for one in sample.readings if one.family == family] if sample else []
    return max(values, default=None)


def _figure(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.0f} {unit}"


def _highest(trend: Trend) -> float:
    return max((value for value in trend.values if value is not None), default=1.0)


def pod_name(pod: DevicePod) -> str:
    """Return the name of a pod with its namespace; its uid if it is not listed."""
    return f"{pod.namespace}/{pod.pod}" if pod.pod else f"pod {pod.pod_uid}"


def _owners(pods: Sequence[DevicePod]) -> str:
    owners = [pod for pod in pods if pod.reason != NO_POD]
    if not owners:
        return tag("p", "no pod", class_="owner quiet")
    containers: dict[str, list[str]] = {}
    for pod in owners:
        containers.setdefault(pod_name(pod), []).extend([pod.container] if pod.container else [])
    names = [
        tag("span", text(" · ".join([name, *([", ".join(inner)] if inner else [])])))
        for name, inner in list(containers.items())[:MAX_OWNERS]
    ]
    more = len(containers) - len(names)
    if more > 0:
        names.append(tag("span", f"and {more} more", class_="quiet"))
    return tag("p", *names, class_="owner")


def _processes(device: Device, sample: DeviceSample | None, pods: DevicePods) -> str:
    processes = (sample.processes if sample is not None else None) or ()
    if not processes:
        return ""
    ordered = sorted(processes, key=lambda one: (-(one.memory_bytes or 0), one.pid))
    rows = [_process_row(device, one, pods) for one in ordered[:MAX_PROCESSES]]
    more = len(processes) - len(rows)
    if more > 0:
        rows.append(tag("li", f"and {more} more"))
    noun = "process" if len(processes) == 1 else "processes"
    return fold(
        anchor("processes", device.key),
        f"{len(processes)} {noun}",
        tag("ul", *rows, class_="plain"),
    )


def _process_row(device: Device, process: ProcessSample, pods: DevicePods) -> str:
    (pod,) = pods.get(process_key(device, process.pid), (UNUSED,))
    words = [
        tag("code", str(process.pid)),
        bytes_text(process.memory_bytes),
        text(_figure(process.core_percent, "%") if process.core_percent is not None else None),
        text(pod_name(pod) if pod.reason != NO_POD else "not of a pod"),
    ]
    return tag("li", " · ".join(words))
