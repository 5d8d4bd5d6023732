"""Containers without a grant whose image or spec asks the vendor's runtime for devices."""

from __future__ import annotations

from agent.model.grant.container import Container
from agent.model.grant.edits import NONE, ContainerEdits, Note

OFF, WARN, VOID = "off", "warn", "void"
_ASKS_FOR_NONE = ("", "void", "none")


def withheld(
    container: Container, variable: str, wanted: str, *, ours: bool, implied: bool = False
) -> ContainerEdits:
    """Tell of a container that helps itself to devices, or with `void` set its variable to void.

    `ours`: the container's runtime handler is the vendor's, which reads the variable, or with
    `implied` takes its absence for a request. Privileged and protected containers, and those that
    another plug-in gave devices, keep what they have.
    """
    value = (container.value(variable) or "").strip()
    if not ours or wanted == OFF or (value in _ASKS_FOR_NONE and not implied):
        return NONE
    if container.given_elsewhere:
        return NONE
    asked = f"container {container.name!r} asks for devices with {variable} and was granted none"
    if wanted == WARN or container.privileged or container.protected:
        return ContainerEdits(notes=(Note(reason="UngrantedDevices", message=asked),))
    message = f"{asked}; it gets none"
    return ContainerEdits(
        env=((variable, "void"),), notes=(Note(reason="UngrantedDevices", message=message),)
    )
