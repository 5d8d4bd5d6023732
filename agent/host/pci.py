"""All PCI functions of a host, from the texts of links and attributes in sysfs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from agent.errors import HostFileError, ParseError
from agent.host.attributes import entries
from agent.host.files import MAX_ENTRIES, HostFiles, text
from agent.host.pci_function import DEVICES, read_function
from agent.topology.address import parse_address, sort_key
from agent.topology.pci import PciFunction, PciTree

SWITCH_LINKS = "/sys/kernel/pci_switch_link/virtual_switch_links"
IOMMU_GROUPS = "/sys/kernel/iommu_groups"
MAX_FUNCTIONS = MAX_ENTRIES


class _Notes(msgspec.Struct):
    """Counts what was odd, so that a host full of it gives one line a kind."""

    seen: dict[str, tuple[str, int]] = msgspec.field(default_factory=dict)

    def add(self, kind: str, what: str) -> None:
        first, count = self.seen.get(kind, (what, 0))
        self.seen[kind] = (first, count + 1)

    def lines(self) -> tuple[str, ...]:
        return tuple(
            f"{kind}: {first}" + (f" and {count - 1} more" if count > 1 else "")
            for kind, (first, count) in sorted(self.seen.items())
        )


def read_pci(host: HostFiles) -> PciTree:
    """Read the PCI functions of a host; what cannot be read is absent or `None`, never an error.

    At most the first 8192 functions by name. `read_function` says which facts are asked of
    which class. Links are split as texts, so a recorded tree need not hold their targets.
    """
    notes = _Notes()
    entries, skipped = _entries(host, notes)
    functions: dict[str, PciFunction] = {}
    for address in sorted(entries, key=sort_key):
        function, believed = read_function(host, entries[address], address)
        if not believed:
            notes.add("pci_link_mismatch", address)
        if function is None:
            notes.add("pci_vanished", address)
        else:
            functions[address] = function
    functions = _related(functions, notes)
    return PciTree(
        functions=MappingProxyType(functions),
        switch_links=_switch_links(host),
        iommu_types=_iommu_types(host, functions.values()),
        skipped=skipped,
        warnings=notes.lines(),
    )


def _entries(host: HostFiles, notes: _Notes) -> tuple[dict[str, str], int]:
    """Return entry names by address, and how many entries are no PCI address."""
    try:
        names = host.names(DEVICES)
    except HostFileError as error:
        notes.add("pci_unreadable", str(error))
        return {}, 0
    found: dict[str, str] = {}
    skipped = 0
    if len(names) >= MAX_FUNCTIONS:
        notes.add("pci_limit", f"{MAX_FUNCTIONS} or more entries, the rest is left out")
    for name in names[:MAX_FUNCTIONS]:
        try:
            found.setdefault(parse_address(name), name)
        except ParseError:
            skipped += 1
    return found, skipped


def _related(functions: Mapping[str, PciFunction], notes: _Notes) -> dict[str, PciFunction]:
    """Make both ends of SR-IOV agree: a virtual function has one physical one, the first.

    A `virtfn` link counts if it leads to a function that is here and has no virtual functions
    itself. Who then still points at no physical function is an orphan.
    """
    owners: dict[str, str] = {}
    kept: dict[str, PciFunction] = {}
    for function in functions.values():
        mine = []
        for address in function.virtfns if function.physfn is None else ():
            target = functions.get(address)
            if target is None or target is function or target.virtfns:
                notes.add("pci_bad_virtfn", f"{function.address} names {address}")
            elif owners.setdefault(address, function.address) != function.address:
                notes.add("pci_vf_claimed_twice", address)
            elif address not in mine:
                mine.append(address)
        same = tuple(mine) == function.virtfns
        kept[function.address] = function if same else replace(function, virtfns=tuple(mine))
    for address, owner in owners.items():
        if kept[address].physfn != owner:
            kept[address] = replace(kept[address], physfn=owner)
    tree = PciTree(functions=kept)
    for function in kept.values():
        if tree.is_orphan(function):
            notes.add("pci_orphan_vf", f"{function.address} of {function.physfn}")
    return kept


def _switch_links(host: HostFiles) -> frozenset[tuple[str, str]]:
    """Return the pairs of switches that are cabled to each other, smaller address first."""
    pairs: set[tuple[str, str]] = set()
    for name in entries(host, SWITCH_LINKS):
        for peer in entries(host, f"{SWITCH_LINKS}/{name}"):
            try:
                a, b = sorted((parse_address(name), parse_address(peer)), key=sort_key)
            except ParseError:
                continue
            pairs.add((a, b))
    return frozenset(pairs)


def _iommu_types(host: HostFiles, functions: Iterable[PciFunction]) -> tuple[tuple[int, str], ...]:
    """Return the type of the groups that physical devices are in."""
    groups = {f.iommu_group for f in functions if f.iommu_group is not None and f.physfn is None}
    types = ((group, text(host, f"{IOMMU_GROUPS}/{group}/type")) for group in sorted(groups))
    return tuple((group, kind) for group, kind in types if kind is not None)
