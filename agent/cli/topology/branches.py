"""PCI functions as branches below their roots, for those who draw or list them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.topology.address import is_root, sort_key
from agent.topology.pci import PciFunction


class Branch(msgspec.Struct, frozen=True):
    """A root, bridge or device; `function` is `None` for roots and for bridges unseen."""

    address: str
    function: PciFunction | None
    children: tuple[Branch, ...] = ()


class _Twig(msgspec.Struct):
    function: PciFunction | None = None
    children: dict[str, _Twig] = msgspec.field(default_factory=dict)


def branches(functions: Iterable[PciFunction]) -> tuple[Branch, ...]:
    """Return the roots with all below, each level in order; what has no root stands beside them.

    Built from the paths of the functions, which are finite: no loop can come of a hostile tree.
    """
    top = _Twig()
    for function in functions:
        twig = top
        for part in function.path:
            twig = twig.children.setdefault(part, _Twig())
        twig.function = function
    return _grown(top)


def _grown(twig: _Twig) -> tuple[Branch, ...]:
    return tuple(
        Branch(address, child.function, _grown(child))
        for address, child in sorted(twig.children.items(), key=lambda item: _order(item[0]))
    )


def _order(address: str) -> tuple[int, ...]:
    if is_root(address):
        domain, bus = address.removeprefix("pci").split(":")
        return int(domain, 16), int(bus, 16)
    return sort_key(address)
