"""PCI addresses and host bridges: one spelling and one order for all of the agent."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from agent.errors import ParseError

MAX_BRIDGES = 32  # above one function
MAX_LINK = 4096  # characters of a link's text: the kernel's PATH_MAX

_CANONICAL = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([01][0-9a-fA-F])\.([0-7])")
_SHORT = re.compile(r"[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def parse_address(text: str) -> str:
    """Return the address in lower case with a domain of at least four digits.

    A domain beyond 16 bits (Intel VMD, Hyper-V) keeps its five to eight digits; zeros in front
    of a shorter one are dropped, so that NVML's 00000000:1B:00.0 is 0000:1b:00.0.
    Everything else raises `ParseError`; blanks are for the caller to strip.
    """
    if _CANONICAL.fullmatch(text):
        return text
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise ParseError("PCI address", text)
    domain, bus, device, function = (int(part, 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def parse_user_address(text: str) -> str:
    """Accept from settings what `parse_address` does, and 1b:00.0 for a function of domain 0."""
    return parse_address(f"0000:{text}" if _SHORT.fullmatch(text) else text)


def is_root(part: str) -> bool:
    """Say whether a part of a path names a host bridge: pciDDDD:BB, domain in hexadecimal."""
    return _ROOT.fullmatch(part) is not None


def sort_key(address: str) -> tuple[int, int, int, int]:
    """Order addresses by number: 10000:00:00.0 comes after 9999:00:00.0.

    Takes what `parse_address` returned.
    """
    domain, bus, rest = address.split(":")
    return int(domain, 16), int(bus, 16), int(rest[:2], 16), int(rest[3], 16)


def slot(address: str) -> str:
    """Return domain, bus and device: what the functions of one card have in common."""
    return address.rpartition(".")[0]


class PciPath(msgspec.Struct, frozen=True):
    """Where a link's text puts a function."""

    root: str | None = None
    bridges: tuple[str, ...] = ()  # from the root port down
    outer_bridges: int = 0  # how many of them stand above the last root


def split_link(text: str, own: str) -> PciPath:
    """Read the text of a function's link; nothing is resolved, so nothing need exist.

    The first host bridge is the root, all addresses are the chain, and everything else is
    dropped (the second host bridge of an Intel VMD, virtual buses). `ParseError` when the chain
    does not end in the function's own address or is deeper than any PCI tree.
    """
    above, _, last = text.rstrip("/").rpartition("/")
    if len(text) > MAX_LINK or last != own:
        raise ParseError("PCI link", text)
    return _above(above)


@lru_cache(maxsize=256)  # a card's virtual functions share all but the last part
def _above(text: str) -> PciPath:
    root: str | None = None
    chain: list[str] = []
    outer = 0
    for part in text.split("/"):
        if is_root(part):
            root, outer = root or part, len(chain)
        elif _ADDRESS.fullmatch(part):
            chain.append(parse_address(part))
    if len(chain) > MAX_BRIDGES:
        raise ParseError("PCI link", text)
    return PciPath(root, tuple(chain), outer)
