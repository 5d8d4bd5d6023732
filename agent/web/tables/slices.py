"""Tables of the status page about cards that are cut up, and cards that belong together."""

from __future__ import annotations

from agent.model.device import Device
from agent.model.snapshot import NodeSnapshot
from agent.publish.device_view import group_rows, placement_text, short_name
from agent.web.html import bytes_text, tag, text
from agent.web.sections import condition, grid, why

MAX_ROWS = 256
NAMES = ("card", "slice", "profile", "memory", "placement", "health", "id")


def slices_table(snapshot: NodeSnapshot) -> str:
    """Return every hardware slice, and what still fits on each card; nothing without slices."""
    cards = [d for d in snapshot.devices.value.devices if d.info.partitions or d.info.free_slices]
    rows = [row for card in cards for row in _slice_rows(card)]
    if not rows and not cards:
        return ""
    room = [
        tag("p", text(f"{short_name(card)}: still fits {_room(card)}"), class_="quiet")
        for card in cards
        if card.info.free_slices
    ]
    table = grid(NAMES, rows[:MAX_ROWS], "Hardware slices") if rows else ""
    return table + "".join(room)


def _slice_rows(card: Device) -> list[list[str]]:
    rows = []
    for part in card.info.partitions:
        numbers = [n for n in (part.instance, part.compute_instance) if n is not None]
        place = placement_text(part)
        reason = why(part.health)
        rows.append(
            [
                tag("strong", text(short_name(card))),
                text("/".join(map(str, numbers)) or None),
                text(part.profile),
                bytes_text(part.memory_bytes),
                text(place),
                condition(part.health) + (tag("div", text(reason), class_="why") if reason else ""),
                tag("code", text(part.uuid)),
            ]
        )
    return rows


def _room(card: Device) -> str:
    fits = [
        f"{profile} at {','.join(map(str, starts))}" if starts else f"no {profile}"
        for profile, starts in card.info.free_slices
    ]
    return "; ".join(fits)


def groups_table(snapshot: NodeSnapshot) -> str:
    """Return the groups that the scheduler may grant as one; nothing without groups."""
    view = snapshot.devices.value
    rows = [
        [text(len(names)), text(group.link_type), text(", ".join(names))]
        for group, names in group_rows(view, aligned=True)
    ]
    if not rows:
        return ""
    policy = f" (policy {view.group_policy})" if view.group_policy else ""
    if more := sum(not group.aligned for group in view.groups):
        policy += f", and {more} combinations across these blocks"
    names = ("size", "link", "devices")
    return grid(names, rows[:MAX_ROWS], f"Devices that belong together{policy}")
