"""Variables that the runtime would keep as the container has them, whatever a hook answers."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from agent.model.grant.container import Container
from agent.model.grant.edits import ContainerEdits, Note
from agent.model.grant.refusal import GrantRefused, Refusal

ONLY_HELPS = ("LD_LIBRARY_PATH",)  # without it a program fails by itself, and sees nothing more


def obeyed(edits: ContainerEdits, container: Container) -> ContainerEdits:
    """Return edits whose variables count; raise `GrantRefused` if the container's own would.

    A variable that image and pod both set is twice in what containerd makes of the two, and NRI
    then changes the first and keeps the last. One that only helps to find libraries is told of.
    """
    names = [name for name, _ in container.env]
    if len(set(names)) == len(names):
        return edits
    times = Counter(names)
    notes = []
    for name, value in edits.env:
        if times[name] < 2 or container.value(name) == value:
            continue
        told = f"{name} is set {times[name]} times, as by image and pod: take it out of the pod"
        if name not in ONLY_HELPS:
            raise GrantRefused(Refusal.DEVICE_CONFLICT, told)
        notes.append(Note(reason="VariableNotSet", message=told))
    return replace(edits, notes=(*edits.notes, *notes)) if notes else edits
