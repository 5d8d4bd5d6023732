"""Pseudonyms of identifiers: equal inputs give equal outputs, different ones different outputs."""

from __future__ import annotations

import hashlib
import hmac
import string
from collections.abc import Callable

_UNSET_BYTES = frozenset(b"\0\xff")  # identifiers with only these bytes are unset
_DOCUMENTATION_PREFIX = b"\x20\x01\x0d\xb8"  # IPv6 prefix of examples, RFC 3849
_IPV4_MAPPED_PREFIX = bytes(10) + b"\xff\xff"  # IPv4 in IPv6
_MAX_TRIES = 64  # after that equal aliases are accepted: kinds with so few values identify no one


class Aliases:
    """One consistent set of replacements, derived from a secret salt that is not stored.

    Identifiers that the kernel derives from one another (MAC, EUI-64, GUID, GID) stay derived from
    one another. Unset ones (all zeros, all ones) stay.
    """

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._by_original: dict[tuple[str, bytes], bytes] = {}
        self._used_aliases: set[tuple[str, bytes]] = set()

    def mac(self, mac: bytes) -> bytes:
        """Replace six bytes; the bits for group and for local administration stay."""
        return self._alias("mac", mac, lambda noise: _keep_flags(mac, noise[:6]))

    def guid(self, guid: bytes) -> bytes:
        """Replace eight bytes; a GUID derived from a MAC is derived from the MAC's replacement."""
        middle = guid[3:5]
        if middle == b"\xff\xfe":  # EUI-64 of IPv6: the second bit of the first byte is flipped
            mac = self.mac(bytes((guid[0] ^ 2,)) + guid[1:3] + guid[5:8])
            return bytes((mac[0] ^ 2,)) + mac[1:3] + middle + mac[3:6]
        if middle == b"\x03\x00":  # the scheme of Mellanox cards
            mac = self.mac(guid[:3] + guid[5:8])
            return mac[:3] + middle + mac[3:6]
        return self._alias("guid", guid, lambda noise: _keep_flags(guid, noise[:8]))

    def gid(self, gid: bytes) -> bytes:
        """Replace sixteen bytes; link-local and IPv4-mapped addresses keep their kind."""
        if gid.startswith(_IPV4_MAPPED_PREFIX):
            return _IPV4_MAPPED_PREFIX + self.ipv4(gid[12:])
        return self._prefix(gid[:8]) + self.guid(gid[8:])

    def ipv4(self, address: bytes) -> bytes:
        """Replace four bytes by an address of 10.0.0.0/8."""
        return self._alias("ipv4", address, lambda noise: b"\x0a" + noise[:3])

    def uuid(self, digits: str) -> str:
        """Replace 32 hexadecimal digits; version and variant stay."""
        raw = bytes.fromhex(digits)
        return self._alias("uuid", raw, lambda noise: _keep_version(raw, noise[:16])).hex()

    def digest(self, digits: str) -> str:
        """Replace 64 hexadecimal digits: the id of a container."""
        return self._alias("digest", bytes.fromhex(digits), lambda noise: noise).hex()

    def die(self, digits: str) -> str:
        """Replace 40 hexadecimal digits: the id of an Ascend chip's die."""
        return self._alias("die", bytes.fromhex(digits), lambda noise: noise[:20]).hex()

    def serial(self, text: str) -> str:
        """Replace letters by letters, digits by digits; everything else stays."""
        raw = text.encode("utf-8", "surrogatepass")
        alias = self._alias("serial", raw, lambda noise: _same_classes(raw, noise))
        return alias.decode("utf-8", "surrogatepass")

    def host(self, name: str) -> str:
        """Replace a host name; with and without its domain it becomes the same single label."""
        label = name.lower().partition(".")[0].encode("utf-8", "surrogatepass")
        return self._alias("host", label, _host_alias).decode()

    def name(self, text: str) -> str:
        """Replace the name of a pod, a namespace or a Node object."""
        raw = text.lower().encode("utf-8", "surrogatepass")
        return self._alias("name", raw, lambda noise: b"name-" + noise[:4].hex().encode()).decode()

    def _prefix(self, prefix: bytes) -> bytes:
        is_global = prefix[0] & 0xE0 == 0x20  # a global prefix identifies its owner
        if not is_global and prefix[2:] == bytes(6):
            return prefix  # fe80::, fec0::, and none: equal everywhere
        head = _DOCUMENTATION_PREFIX if is_global else prefix[:2]
        return self._alias("prefix", prefix, lambda noise: head + noise[: 8 - len(head)])

    def _alias(self, kind: str, original: bytes, make: Callable[[bytes], bytes]) -> bytes:
        if not set(original) - _UNSET_BYTES:
            return original
        alias = self._by_original.get((kind, original))
        count = 0
        while alias is None:
            noise = hmac.digest(self._salt, b"%s %d " % (kind.encode(), count) + original, "sha256")
            candidate = make(noise)
            count += 1
            if count > _MAX_TRIES or (
                candidate != original and (kind, candidate) not in self._used_aliases
            ):
                alias = self._by_original[kind, original] = candidate
                self._used_aliases.add((kind, candidate))
        return alias


def _keep_flags(original: bytes, noise: bytes) -> bytes:
    return bytes((noise[0] & 0xFC | original[0] & 3,)) + noise[1:]


def _keep_version(original: bytes, noise: bytes) -> bytes:
    mixed = bytearray(noise)
    mixed[6] = original[6] & 0xF0 | noise[6] & 0x0F
    mixed[8] = original[8] & 0xF0 | noise[8] & 0x0F
    return bytes(mixed)


def _host_alias(noise: bytes) -> bytes:
    return b"node-" + noise[:4].hex().encode()


def _same_classes(original: bytes, noise: bytes) -> bytes:
    # as many bytes as needed, however long the original is
    stream = hashlib.shake_256(noise).digest(len(original))
    mixed = bytes(map(_same_class, original, stream))
    # a serial may be a JSON number, and those do not start with 0
    return b"1" + mixed[1:] if mixed.startswith(b"0") and original[0] != ord("0") else mixed


def _same_class(character: int, noise: int) -> int:
    for letters in (string.digits, string.ascii_lowercase, string.ascii_uppercase):
        if chr(character) in letters:
            return ord(letters[noise % len(letters)])
    return character
