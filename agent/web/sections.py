"""The tables of the status page: devices, distances, memory nodes, pods, the agent itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.model.device import Device, Health
from agent.model.distances import device_levels, level_of
from agent.model.inventory import DeviceSample
from agent.model.selfcheck import SelfReport
from agent.model.snapshot import NodeSnapshot
from agent.publish.device_view import column_name, short_name
from agent.publish.wire.conditions import UNSCHEDULABLE
from agent.publish.wire.sanitise import known_time
from agent.web.base import EventLine, PublishedObject
from agent.web.html import bytes_text, tag, text
from agent.web.svg import SIGNS

MAX_MATRIX = 32  # devices; a larger matrix is read with `topology -o json`
MAX_PODS = 50


def grid(
    names: Sequence[str], rows: Iterable[Sequence[str]], caption: str, class_: str | None = None
) -> str:
    """Return a table that scrolls inside its own box; cells are markup."""
    head = tag("tr", *(tag("th", text(name) if name else "", scope="col") for name in names))
    body = "".join(tag("tr", *(tag("td", cell) for cell in row)) for row in rows)
    inner = tag("caption", text(caption)) + tag("thead", head) + tag("tbody", body)
    return tag("div", tag("table", inner, class_=class_), class_="scroll", tabindex=0)


def badge(state: str, word: str = "") -> str:
    """Return a health state as colour, sign and word, so that none is needed alone."""
    sign = tag("span", SIGNS.get(state, "·"), aria_hidden="true")
    return tag("span", sign, " ", text(word or state), class_=f"badge {state}")


def condition(health: Health) -> str:
    """Return the badge of a state; one that nobody can tell now never looks well."""
    if health.certain:
        return badge(health.state.value)
    tone = "suspect" if health.in_service else health.state.value
    return badge(tone, f"{health.state.value} or not: unknown")


def meter(used: float | None, total: float | None, label: str) -> str:
    """Return a bar with its figure; only a dash when one of both is unknown."""
    if used is None or not total:
        return text(label) if used is not None else "–"
    percent = min(100.0, 100.0 * used / total)
    bar = tag("span", "", class_="fill", style=f"width:{percent:.0f}%")
    return tag("span", bar, class_="meter", aria_hidden="true") + tag("span", text(label))


def _samples(snapshot: NodeSnapshot) -> dict[str, DeviceSample]:
    return {s.key: s for vendor in snapshot.vendors for s in vendor.samples.value}


def _device_row(device: Device, sample: DeviceSample | None) -> list[str]:
    info, place = device.info, device.place
    used = sample.memory_used_bytes if sample else None
    memory = f"{bytes_text(used)} of {bytes_text(info.memory_bytes)}"
    busy = sample.core_percent if sample else None
    state = condition(info.health) if info.managed else badge("unmanaged")
    barred = dict(info.facts).get(UNSCHEDULABLE)
    told = [why(info.health), f"nothing to grant: {barred}" if barred else ""]
    told += [f"{c.type} {c.status}: {c.reason} {c.message}" for c in info.conditions if c.notable]
    return [
        tag("strong", text(short_name(device))),
        state + "".join(tag("div", text(w), class_="why") for w in told if w),
        text(info.model or info.vendor),
        tag("code", text(info.bus_id)),
        text(place.numa_node if place.numa_node >= 0 else None),
        meter(used, info.memory_bytes, memory) if info.memory_bytes else "–",
        meter(busy, 100.0, f"{busy:.0f} %") if busy is not None else "–",
        tag("code", text(info.uuid)),
    ]


def why(health: Health) -> str:
    """Return the reason in words and since when; nothing of a device that is simply well."""
    if health.reason == Health().reason:
        return ""
    since = known_time(health.since_s)
    return f"{health.reason}: {health.message}" + (f" (since {since})" if since else "")


def devices_table(snapshot: NodeSnapshot) -> str:
    """Return every device with health, place and load."""
    samples = _samples(snapshot)
    rows = [_device_row(d, samples.get(d.key)) for d in snapshot.devices.value.devices]
    if not rows:
        return tag("p", "This host has no accelerator and no RDMA device.", class_="quiet")
    names = ("device", "health", "model", "bus", "NUMA", "memory", "busy", "id")
    return grid(names, rows, "Accelerators and RDMA devices", "devices")


def matrix_table(snapshot: NodeSnapshot) -> str:
    """Return the distance of each pair as `nvidia-smi topo -m` names it."""
    view = snapshot.devices.value
    shown = [(d, column_name(d, i)) for i, d in enumerate(view.devices) if d.place.path]
    shown = shown[:MAX_MATRIX]
    if len(shown) < 2:
        return ""
    found = device_levels(view, snapshot.pci.value)
    rows = []
    for a, name in shown:
        row = [tag("strong", text(name))]
        for b, _ in shown:
            word = level_of(a, b, found) or "–"
            row.append(tag("span", text(word), class_=f"level {word.rstrip('0123456789').lower()}"))
        rows.append(row)
    legend = (
        "X itself · NV# NVLinks · PIX one switch · PXB several switches · "
        "PHB one host bridge · NODE one NUMA node · SYS further"
    )
    table = grid(["", *(name for _, name in shown)], rows, "Distance of each pair")
    return table + tag("p", legend, class_="quiet")


def numa_table(snapshot: NodeSnapshot) -> str:
    """Return memory nodes with their use and distances."""
    usage = {n.node_id: n for n in snapshot.usage.value.node.numa}
    rows = []
    for node in snapshot.numa.value.nodes:
        use = usage.get(node.id)
        used = use.memory_bytes if use else None
        cores = use.cpu_cores if use else None
        rows.append(
            [
                tag("strong", text(f"NUMA {node.id}")),
                text(len(node.cpus)),
                meter(cores, len(node.cpus), f"{cores:.2f}") if cores is not None else "–",
                meter(
                    used,
                    node.memory_bytes,
                    f"{bytes_text(used)} of {bytes_text(node.memory_bytes)}",
                ),
                text(" ".join(map(str, node.distances or ()))),
            ]
        )
    return grid(("node", "CPUs", "cores used", "memory used", "distances"), rows, "Memory nodes")


def pods_table(snapshot: NodeSnapshot) -> str:
    """Return the pods that use most CPU."""
    usage = snapshot.usage.value.pods
    pods = [(pod, usage.get(pod.uid)) for pod in snapshot.pods.value]
    if not pods:
        return tag("p", "No pod's control group was found on this host.", class_="quiet")
    pods.sort(key=lambda p: (-((p[1] and p[1].cpu_cores) or 0.0), p[0].uid))
    rows = []
    for pod, use in pods[:MAX_PODS]:
        cores = use.cpu_cores if use else None
        rows.append(
            [
                text(f"{pod.namespace}/{pod.name}" if pod.name else pod.uid),
                text(pod.qos.value),
                text(len(pod.containers)),
                text(None if cores is None else f"{cores:.3f}"),
                bytes_text(use.memory_bytes if use else None),
            ]
        )
    more = f" (the {MAX_PODS} busiest of {len(pods)})" if len(pods) > MAX_PODS else ""
    names = ("pod", "class", "containers", "cores used", "memory used")
    return grid(names, rows, f"Pods{more}")


def agent_table(snapshot: NodeSnapshot, report: SelfReport) -> str:
    """Return the vendors' workers and the agent's checks on itself."""
    rows = [
        [
            text(check.name),
            badge("healthy" if check.ok else "failed", "ok" if check.ok else "fails"),
            text(check.message),
        ]
        for check in report.checks
    ]
    for vendor, problem in snapshot.devices.value.problems:
        rows.append([text(vendor), badge("suspect", problem.reason), text(problem.message)])
    return grid(("part", "state", "what it says"), rows, "The agent itself")


def events_list(events: Sequence[EventLine]) -> str:
    """Return the last events, newest first."""
    if not events:
        return tag("p", "Nothing has happened since the agent started.", class_="quiet")
    rows = [
        [text(e.time), text(e.reason), text(e.about), text(e.message), text(e.count)]
        for e in reversed(events)
    ]
    return grid(("time", "reason", "about", "message", "times"), rows, "Events")


def objects_list(objects: Sequence[PublishedObject]) -> str:
    """Return each published object, folded."""
    return "".join(
        tag(
            "details",
            tag("summary", text(o.kind), " ", tag("code", text(o.where))),
            tag("p", badge("failed", o.problem)) if o.problem else "",
            tag("pre", text(o.text), tabindex=0),
        )
        for o in objects
    )
