"""The status page's table of GPUs and NICs: which reach each other without the host's memory."""

from __future__ import annotations

from collections.abc import Iterable

from agent.model.device import Device
from agent.model.snapshot import DirectPair, NodeSnapshot
from agent.publish.device_view import column_name
from agent.web.html import tag, text
from agent.web.sections import badge, grid

MAX_COLUMNS = 16
MAX_ROWS = 32
MAX_REASONS = 12
_STATES = {"ok": "healthy", "slow": "suspect", "no": "failed", "unknown": "unmanaged"}


def direct_table(snapshot: NodeSnapshot) -> str:
    """Return verdicts by GPU and NIC with all reasons below; nothing without a pair."""
    view = snapshot.devices.value
    if not view.direct:
        return ""
    names = {d.key: column_name(d, i) for i, d in enumerate(view.devices)}
    devices = {device.key: device for device in view.devices}
    nics = list(dict.fromkeys(pair.nic for pair in view.direct))[:MAX_COLUMNS]
    gpus = list(dict.fromkeys(pair.gpu for pair in view.direct))[:MAX_ROWS]
    found = {(pair.gpu, pair.nic): pair for pair in view.direct}
    rows = [
        [tag("strong", text(names.get(gpu, gpu))), *(_cell(found.get((gpu, nic))) for nic in nics)]
        for gpu in gpus
    ]
    heads = ["", *(_head(devices.get(nic), names.get(nic, nic)) for nic in nics)]
    return grid(heads, rows, "GPUDirect RDMA") + _reasons(view.direct)


def _head(nic: Device | None, name: str) -> str:
    netdevs = dict(nic.info.facts).get("name") if nic is not None else None
    return f"{name} {netdevs}" if netdevs and netdevs != name else name


def _cell(pair: DirectPair | None) -> str:
    if pair is None:
        return "–"
    return badge(_STATES.get(pair.verdict, "unmanaged"), f"{pair.verdict} {pair.level}")


def _reasons(pairs: Iterable[DirectPair]) -> str:
    """List what stands in the way, each thing once, with the number of pairs that it concerns."""
    counts: dict[str, int] = {}
    for pair in pairs:
        for words in {f"{check.name}: {check.detail}" for check in pair.checks}:
            counts[words] = counts.get(words, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_REASONS]
    return "".join(
        tag("p", text(f"{words} ({count} {'pair' if count == 1 else 'pairs'})"), class_="quiet")
        for words, count in ordered
    )
