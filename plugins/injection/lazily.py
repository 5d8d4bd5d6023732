"""A vendor's part in grants without its imports: vendors are loaded at the start, those later."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent.model.device import VendorDevice
    from agent.model.grant.container import Container
    from agent.model.grant.edits import ContainerEdits
    from agent.model.grant.granted import Grant
    from agent.model.grant.host import HostMeans, HostNeeds

    Edits = Callable[[Sequence[VendorDevice], Grant, Container, HostMeans], ContainerEdits]
    Needs = Callable[[Mapping[str, object]], HostNeeds]


def lazily(module: str) -> Edits:
    """Return the function `edits` of a module that is imported when it is first asked."""

    def edits(
        devices: Sequence[VendorDevice], grant: Grant, container: Container, host: HostMeans
    ) -> ContainerEdits:
        decide: Edits = import_module(module).edits
        return decide(devices, grant, container, host)

    return edits


def needs_lazily(module: str) -> Needs:
    """Return the function `needs` of a module that is imported when it is first asked."""

    def needs(settings: Mapping[str, object]) -> HostNeeds:
        tell: Needs = import_module(module).needs
        return tell(settings)

    return needs
