"""The tables of the status page: devices, links, slices, memory nodes, pods, objects, events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.objects.device import UNSCHEDULABLE
from agent.objects.yaml_text import to_yaml
from agent.snapshot.device import Device, column_name, short_name
from agent.snapshot.inventory import DeviceSample
from agent.snapshot.node import GpuDirectPair, NodeSnapshot
from agent.snapshot.publications import EventLine, Publication
from agent.snapshot.self_check import SelfCheckReport
from agent.topology.distance import device_levels, level_between
from agent.web.device_json import device_group_rows, placement_text
from agent.web.page.html import badge, bytes_text, grid, health_badge, health_reason, meter, tag, text

MAX_MATRIX_DEVICES = 32  # devices; a larger matrix is read with `topology -o json`


def _samples_by_key(snapshot: NodeSnapshot) -> dict[str, DeviceSample]:
    return {s.key: s for vendor in snapshot.vendors for s in vendor.samples.value}


def _device_row(device: Device, sample: DeviceSample | None) -> list[str]:
    info, place = device.info, device.place
    used = sample.memory_used_bytes if sample else None
    memory = f"{bytes_text(used)} of {bytes_text(info.memory_bytes)}"
    busy = sample.core_percent if sample else None
    state = health_badge(info.health) if info.managed else badge("unmanaged")
    barred = dict(info.facts).get(UNSCHEDULABLE)
    notes = [health_reason(info.health), f"nothing to grant: {barred}" if barred else ""]
    notes += [
        f"{c.type} {c.status}: {c.reason} {c.message}" for c in info.conditions if c.is_notable
    ]
    return [
        tag("strong", text(short_name(device))),
        state + "".join(tag("div", text(w), class_="why") for w in notes if w),
        text(info.model or info.vendor),
        tag("code", text(info.bus_id)),
        text(place.numa_node if place.numa_node >= 0 else None),
        meter(used, info.memory_bytes, memory) if info.memory_bytes else "–",
        meter(busy, 100.0, f"{busy:.0f} %") if busy is not None else "–",
        tag("code", text(info.uuid)),
    ]


def devices_table(snapshot: NodeSnapshot) -> str:
    """Return every device with health, place and load."""
    samples = _samples_by_key(snapshot)
    rows = [_device_row(d, samples.get(d.key)) for d in snapshot.devices.value.devices]
    if not rows:
        return tag("p", "This host has no accelerator and no RDMA device.", class_="quiet")
    names = ("device", "health", "model", "bus", "NUMA", "memory", "busy", "id")
    return grid(names, rows, "Accelerators and RDMA devices", "devices")


def matrix_table(snapshot: NodeSnapshot) -> str:
    """Return the distance of each pair as `nvidia-smi topo -m` names it."""
    view = snapshot.devices.value
    columns = [(d, column_name(d, i)) for i, d in enumerate(view.devices) if d.place.path]
    columns = columns[:MAX_MATRIX_DEVICES]
    if len(columns) < 2:
        return ""
    levels = device_levels(view, snapshot.pci.value)
    rows = []
    for a, name in columns:
        row = [tag("strong", text(name))]
        for b, _ in columns:
            word = level_between(a, b, levels) or "–"
            row.append(tag("span", text(word), class_=f"level {word.rstrip('0123456789').lower()}"))
        rows.append(row)
    legend = (
        "X itself · NV# NVLinks · PIX one switch · PXB several switches · "
        "PHB one host bridge · NODE one NUMA node · SYS further"
    )
    table = grid(["", *(name for _, name in columns)], rows, "Distance of each pair")
    return table + tag("p", legend, class_="quiet")


MAX_NICS = 16
MAX_GPUS = 32
MAX_DIRECT_REASONS = 12
_VERDICT_STATES = {"ok": "healthy", "slow": "suspect", "no": "failed", "unknown": "unmanaged"}


def gpudirect_table(snapshot: NodeSnapshot) -> str:
    """Return verdicts by GPU and NIC with all reasons below; empty without pairs."""
    view = snapshot.devices.value
    if not view.direct:
        return ""
    names = {d.key: column_name(d, i) for i, d in enumerate(view.devices)}
    devices = {device.key: device for device in view.devices}
    nics = list(dict.fromkeys(pair.nic for pair in view.direct))[:MAX_NICS]
    gpus = list(dict.fromkeys(pair.gpu for pair in view.direct))[:MAX_GPUS]
    pairs = {(pair.gpu, pair.nic): pair for pair in view.direct}
    rows = [
        [
            tag("strong", text(names.get(gpu, gpu))),
            *(_direct_cell(pairs.get((gpu, nic))) for nic in nics),
        ]
        for gpu in gpus
    ]
    heads = ["", *(_nic_heading(devices.get(nic), names.get(nic, nic)) for nic in nics)]
    return grid(heads, rows, "GPUDirect RDMA") + _direct_reasons(view.direct)


def _nic_heading(nic: Device | None, name: str) -> str:
    netdevs = dict(nic.info.facts).get("name") if nic is not None else None
    return f"{name} {netdevs}" if netdevs and netdevs != name else name


def _direct_cell(pair: GpuDirectPair | None) -> str:
    if pair is None:
        return "–"
    return badge(_VERDICT_STATES.get(pair.verdict, "unmanaged"), f"{pair.verdict} {pair.level}")


def _direct_reasons(pairs: Iterable[GpuDirectPair]) -> str:
    """Return the reasons of bad verdicts, each once, with the number of its pairs."""
    counts: dict[str, int] = {}
    for pair in pairs:
        for reasons in {f"{check.name}: {check.detail}" for check in pair.checks}:
            counts[reasons] = counts.get(reasons, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_DIRECT_REASONS]
    return "".join(
        tag("p", text(f"{reasons} ({count} {'pair' if count == 1 else 'pairs'})"), class_="quiet")
        for reasons, count in ordered
    )


MAX_SLICE_ROWS = 256

SLICE_COLUMNS = ("card", "slice", "profile", "memory", "placement", "health", "id")


def slices_table(snapshot: NodeSnapshot) -> str:
    """Return every hardware slice, and the free slices of each card; empty without slices."""
    cards = [d for d in snapshot.devices.value.devices if d.info.partitions or d.info.free_slices]
    rows = [row for card in cards for row in _slice_rows(card)]
    if not rows and not cards:
        return ""
    room = [
        tag("p", text(f"{short_name(card)}: still fits {_free_slices_text(card)}"), class_="quiet")
        for card in cards
        if card.info.free_slices
    ]
    table = grid(SLICE_COLUMNS, rows[:MAX_SLICE_ROWS], "Hardware slices") if rows else ""
    return table + "".join(room)


def _slice_rows(card: Device) -> list[list[str]]:
    rows = []
    for part in card.info.partitions:
        numbers = [n for n in (part.instance, part.compute_instance) if n is not None]
        place = placement_text(part)
        reason = health_reason(part.health)
        rows.append(
            [
                tag("strong", text(short_name(card))),
                text("/".join(map(str, numbers)) or None),
                text(part.profile),
                bytes_text(part.memory_bytes),
                text(place),
                health_badge(part.health)
                + (tag("div", text(reason), class_="why") if reason else ""),
                tag("code", text(part.uuid)),
            ]
        )
    return rows


def _free_slices_text(card: Device) -> str:
    fits = [
        f"{profile} at {','.join(map(str, starts))}" if starts else f"no {profile}"
        for profile, starts in card.info.free_slices
    ]
    return "; ".join(fits)


def groups_table(snapshot: NodeSnapshot) -> str:
    """Return the groups that the scheduler may allocate together; empty without groups."""
    view = snapshot.devices.value
    rows = [
        [text(len(names)), text(group.link_type), text(", ".join(names))]
        for group, names in device_group_rows(view, aligned=True)
    ]
    if not rows:
        return ""
    policy = f" (policy {view.group_policy})" if view.group_policy else ""
    if more := sum(not group.aligned for group in view.groups):
        policy += f", and {more} combinations across these blocks"
    names = ("size", "link", "devices")
    return grid(names, rows[:MAX_SLICE_ROWS], f"Devices that belong together{policy}")


MAX_POD_ROWS = 50


def numa_table(snapshot: NodeSnapshot) -> str:
    """Return NUMA nodes with their usage and distances."""
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
    """Return the pods that use the most CPU."""
    usage = snapshot.usage.value.pods
    pods = [(pod, usage.get(pod.uid)) for pod in snapshot.pods.value]
    if not pods:
        return tag("p", "No pod's control group was found on this host.", class_="quiet")
    pods.sort(key=lambda p: (-((p[1] and p[1].cpu_cores) or 0.0), p[0].uid))
    rows = []
    for pod, use in pods[:MAX_POD_ROWS]:
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
    more = f" (the {MAX_POD_ROWS} busiest of {len(pods)})" if len(pods) > MAX_POD_ROWS else ""
    names = ("pod", "class", "containers", "cores used", "memory used")
    return grid(names, rows, f"Pods{more}")


def agent_table(snapshot: NodeSnapshot, report: SelfCheckReport) -> str:
    """Return the vendors' workers and the agent's self-checks."""
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


def objects_list(objects: Sequence[Publication]) -> str:
    """Return each published object, as a block that the reader can open."""
    return "".join(
        tag(
            "details",
            tag("summary", text(o.desired.kind), " ", tag("code", text(o.where))),
            tag("p", badge("failed", o.problem)) if o.problem else "",
            tag("pre", text(to_yaml(o.desired.body).decode()), tabindex=0),
        )
        for o in objects
    )
