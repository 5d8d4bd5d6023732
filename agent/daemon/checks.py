"""The agent's checks on itself: heartbeats of its loops, parts of its snapshot, its vendors."""

from __future__ import annotations

from collections.abc import Iterable

from agent.loop import Loop
from agent.model.selfcheck import Check
from agent.model.snapshot import NodeSnapshot


def loop_checks(loops: Iterable[Loop], now_s: float) -> list[Check]:
    """Return one check a loop: its heartbeat and its last error."""
    checks = []
    for loop in loops:
        ok = loop.healthy(now_s)
        if loop.last_good_s is not None:
            message = f"last good {now_s - loop.last_good_s:.1f} s ago"
        elif loop.due_s is not None and now_s < loop.due_s:
            message = f"first due in {loop.due_s - now_s:.0f} s"
        else:
            message = "never good"
        if loop.failures:
            message += f"; {loop.failures} failures in a row: {loop.last_error}"
        checks.append(Check(name=f"loop:{loop.name}", ok=ok, message=message))
    return checks


def snapshot_checks(snapshot: NodeSnapshot) -> list[Check]:
    """Return the checks on parts of the snapshot and on the vendors.

    A vendor that does not answer is bad news about devices, shown there; it does not make the
    agent unready, or one broken driver would take all other devices out of the metrics.
    """
    checks = [
        Check(
            name=f"part:{name}", ok=part.taken_s is not None and not part.error, message=part.error
        )
        for name, part in (
            ("cpus", snapshot.cpus),
            ("numa", snapshot.numa),
            ("pci", snapshot.pci),
            ("devices", snapshot.devices),
        )
    ]
    for vendor in snapshot.vendors:
        message = f"{vendor.state} {vendor.reason} {vendor.message}".strip()
        checks.append(
            Check(
                name=f"vendor:{vendor.vendor}",
                ok=vendor.state == "ready",
                message=message,
                gates_ready=False,
            )
        )
    return checks
