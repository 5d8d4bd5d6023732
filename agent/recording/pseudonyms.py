"""Replaces identifying names in a recorded host; its structure stays."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import AddressValueError, IPv6Address

import msgspec

from agent.recording.aliases import Aliases
from agent.recording.tree import LinkEntry, TreeBuilder, TreeEntry, TreeFiles
from agent.topology.pci_config import extended_capability

MIN_WORD = 4  # characters; shorter names and serials are replaced only in their own files
MIN_NUMBER = 8  # digits, for the same reason: a shorter number may be a counter
_DEVICE_SERIAL = 0x0003  # extended capability: a EUI-64, least significant byte first
_HOSTNAME = "/proc/sys/kernel/hostname"
_NO_HOST = ("localhost", "(none)", "rxe", "siw")

_HEX2, _HEX4 = rb"[0-9a-f]{2}", rb"[0-9a-f]{4}"
_IDENTIFIER = re.compile(
    rb"(?:(?<=pod)|(?<![0-9a-z:]))(?:"
    rb"(?P<pairs>(?:%(h2)s:){19}%(h2)s|(?:%(h2)s:){7}%(h2)s|(?:%(h2)s:){5}%(h2)s)|"
    rb"(?P<words>(?:%(h4)s:){7}%(h4)s|(?:%(h4)s:){3}%(h4)s)|"
    rb"(?P<die>[0-9a-f]{8}(?:-[0-9a-f]{8}){4})|"
    rb"(?P<uuid>[0-9a-f]{8}(?P<mark>[-_])%(h4)s(?P=mark)%(h4)s(?P=mark)%(h4)s(?P=mark)[0-9a-f]{12})"
    rb")(?![0-9a-z:])"
    rb"|(?:(?<=enx)|(?<=soft-))(?P<flat>[0-9a-f]{16}|[0-9a-f]{12})(?![0-9a-z])"
    % {b"h2": _HEX2, b"h4": _HEX4},
    re.IGNORECASE,
)
_BARE = re.compile(  # containers, machine ids; `pod` and 32 digits are a static pod
    rb"(?:(?<=pod)|(?<![0-9a-z]))(?:[0-9a-f]{64}|[0-9a-f]{32})(?![0-9a-z])", re.IGNORECASE
)
_IPV4 = re.compile(rb"(?<![0-9A-Za-z.-])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9A-Za-z-]|\.[0-9])")
_IPV6 = re.compile(  # what may be a short form; `_IDENTIFIER` has the long one
    rb"(?<![0-9A-Za-z:.-])(?=[0-9a-f]*:[0-9a-f]*:)[0-9a-f:]{3,39}(?![0-9A-Za-z-]|\.[0-9])",
    re.IGNORECASE,
)
_CPU_SERIAL = re.compile(r"^Serial\s*:\s*(\w+)", re.MULTILINE)  # of some Arm boards
_BUILDER = re.compile(rb"\([^()@\s]+@[^()\s]+\)")  # user and host of a kernel build

_KERNEL_ARGUMENTS = re.compile(
    rb"(?:(?:isolcpus|nohz_full|rcu_nocbs|nosmt|maxcpus|nr_cpus|mitigations|numa\w*|psi|iommu\w*"
    rb"|intel_iommu|amd_iommu|pci\w*|hugepages\w*|default_hugepagesz|transparent_hugepage"
    rb"|cgroup\w*|systemd\.unified_cgroup_hierarchy|swapaccount|rdt)(?:[.=]\S*)?|nosmt|quiet)"
)
_FILE_SYSTEMS = (b"cgroup", b"cgroup2", b"resctrl", b"sysfs", b"proc", b"hugetlbfs", b"devtmpfs")


class IdentifyingWords(msgspec.Struct):
    """Words of this host without a recognisable form: names and serial numbers."""

    hosts: set[str] = msgspec.field(default_factory=set)
    names: set[str] = msgspec.field(default_factory=set)  # of pods, namespaces and the Node object
    serials: set[str] = msgspec.field(default_factory=set)


def pseudonymise(
    tree: TreeFiles, tapes: Mapping[str, bytes], salt: bytes
) -> tuple[TreeFiles, dict[str, bytes]]:
    """Replace what identifies this machine, in contents, names, links and tapes.

    That is: host name, machine and boot id, UUIDs, serial numbers, MACs, GUIDs, GIDs with the
    addresses in them, pods and containers. Kernel arguments and mounts that the agent does not read
    are left out. Without the salt the originals cannot be computed, and guesses cannot be checked;
    so the salt must be random and must not be stored.
    """
    replaced = pseudonymise_all(RecordingContents(tree=tree, tapes=tapes), salt)
    return replaced.tree, dict(replaced.tapes)


class RecordingContents(msgspec.Struct, frozen=True, kw_only=True):
    """A recording and texts about the same host; equal names get equal replacements in all."""

    tree: TreeFiles
    tapes: Mapping[str, bytes]  # by vendor
    texts: Mapping[str, bytes] = {}  # by name of the file: JSON, metrics, YAML, plain text
    names: frozenset[str] = frozenset()  # of pods, namespaces and the Node object


def pseudonymise_all(originals: RecordingContents, salt: bytes) -> RecordingContents:
    """Replace in texts the same identifiers, IP addresses, and the given names."""
    tree, tapes, texts = originals.tree, originals.tapes, originals.texts
    secrets = _identifying_words(tree, tapes)
    for data in texts.values():
        secrets.serials.update(_serials_of(data, is_one_document=True))
    secrets.names = set(originals.names) - secrets.hosts - {""}
    words = _Pseudonymiser(Aliases(salt), secrets, _vocabulary(tree, {**tapes, **texts}))
    builder = TreeBuilder()
    for directory, entries in tree.walk():
        for name, entry in entries.items():
            path = f"{directory}/{name}"
            builder.put(words.name(path), _pseudonymise_entry(words, path, entry))
    return RecordingContents(
        tree=builder.build(),
        tapes={vendor: words.tape(data) for vendor, data in tapes.items()},
        texts={name: words.text(data) for name, data in texts.items()},
    )


class _Pseudonymiser:
    """Replaces identifiers in text of any kind."""

    def __init__(
        self, aliases: Aliases, secrets: IdentifyingWords, vocabulary: frozenset[str]
    ) -> None:
        self.aliases = aliases
        replacements: dict[bytes, bytes] = {}
        for serial in sorted(secrets.serials):
            replacements[_encode(serial).lower()] = _encode(aliases.serial(serial))
        for name in sorted(secrets.names):
            replacements[_encode(name).lower()] = _encode(aliases.name(name))
        for host in sorted(secrets.hosts):
            replacements[_encode(host).lower()] = _encode(aliases.host(host))
        self._replace_all_words = _replacer(replacements)
        # a machine with the name `nvme` must not rename the drivers of its disks
        free = {
            word: alias
            for word, alias in replacements.items()
            if len(word) >= (MIN_NUMBER if word.isdigit() else MIN_WORD)
            and word.decode("utf-8", "replace") not in vocabulary
        }
        self._replace_long_words = _replacer(free)

    def name(self, text: str) -> str:
        """Replace identifiers in a path or in the text of a link."""
        raw = text.encode("utf-8", "surrogateescape")
        return self._replace_digits(_IDENTIFIER.sub(self._replace_identifier, raw)).decode(
            "utf-8", "surrogateescape"
        )

    def contents(self, path: str, data: bytes) -> bytes:
        """Replace identifiers in a file."""
        has_host_name = path == _HOSTNAME or path.endswith(("/node_desc", "/serial"))
        data = (self._replace_all_words if has_host_name else self._replace_long_words)(
            _IDENTIFIER.sub(self._replace_identifier, data)
        )
        # below /sys, long rows of digits are CPU sets
        return data if path.startswith("/sys/") else self._replace_digits(data)

    def tape(self, data: bytes) -> bytes:
        """Replace identifiers in recorded answers."""
        return self._replace_digits(
            self._replace_long_words(_IDENTIFIER.sub(self._replace_identifier, data))
        )

    def text(self, data: bytes) -> bytes:
        """Replace identifiers in a text about the host.

        As in recorded answers, and IP addresses.
        """
        return _IPV4.sub(self._ipv4, _IPV6.sub(self._ipv6, self.tape(data)))

    def _ipv4(self, match: re.Match[bytes]) -> bytes:
        octets = [int(part) for part in match[0].split(b".")]
        if max(octets) > 255 or octets[0] in (0, 127):
            return match[0]  # not an address, the wildcard, or loopback
        return b".".join(b"%d" % part for part in self.aliases.ipv4(bytes(octets)))

    def _ipv6(self, match: re.Match[bytes]) -> bytes:
        text = match[0].decode()
        end = ":" if text.endswith(":") and not text.endswith("::") else ""  # end of a sentence
        groups = text.removesuffix(end).split(":")
        if len({len(word) for word in groups}) == 1 and len(groups[0]) in (2, 4):
            return match[0]  # a GUID, or a long form, which is replaced already
        try:
            address = IPv6Address(text.removesuffix(end))
        except AddressValueError:
            return match[0]
        if address.is_loopback or address.is_unspecified:
            return match[0]
        return f"{IPv6Address(self.aliases.gid(address.packed))}{end}".encode()

    def _replace_digits(self, data: bytes) -> bytes:
        return _BARE.sub(lambda match: self._digit_alias(match[0]), data)

    def _digit_alias(self, digits: bytes) -> bytes:
        text = digits.decode()
        alias = self.aliases.uuid(text) if len(text) == 32 else self.aliases.digest(text)
        return _match_case(digits, alias.encode())

    def _replace_identifier(self, match: re.Match[bytes]) -> bytes:
        original = match[0]
        if match["die"]:
            digits = self.aliases.die(original.replace(b"-", b"").decode()).encode()
            return _match_case(original, b"-".join(digits[at : at + 8] for at in range(0, 40, 8)))
        mark = match["mark"] or b":"
        plain = original.replace(mark, b"")
        if match["uuid"]:
            digits = self.aliases.uuid(plain.decode()).encode()
            groups = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
            return _match_case(original, mark.join(groups))
        digits = self._address(bytes.fromhex(plain.decode())).hex().encode()
        if match["flat"]:
            return _match_case(original, digits)
        step = 2 if match["pairs"] else 4
        parts = tuple(digits[at : at + step] for at in range(0, len(digits), step))
        return _match_case(original, mark.join(parts))

    def _address(self, raw: bytes) -> bytes:
        if len(raw) == 6:
            return self.aliases.mac(raw)
        if len(raw) == 8:
            return self.aliases.guid(raw)
        # 20 bytes are the hardware address of IP over InfiniBand: flags, queue pair, GID
        return raw[:-16] + self.aliases.gid(raw[-16:])


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # JSON can spell what UTF-8 cannot


def _match_case(original: bytes, replaced: bytes) -> bytes:
    return replaced.upper() if original != original.lower() else replaced


def _replacer(words: Mapping[bytes, bytes]) -> Callable[[bytes], bytes]:
    if not words:
        return lambda data: data
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    alternatives = b"|".join(re.escape(word) for word in longest_first)
    pattern = re.compile(rb"(?<![0-9A-Za-z])(?:%s)(?![0-9A-Za-z])" % alternatives, re.IGNORECASE)
    return lambda data: pattern.sub(lambda match: words[match[0].lower()], data)


def _pseudonymise_entry(words: _Pseudonymiser, path: str, entry: TreeEntry) -> TreeEntry:
    if isinstance(entry, LinkEntry):
        return LinkEntry(words.name(entry.text))
    if not isinstance(entry, bytes):
        return entry
    if path.endswith("/config"):
        return _pseudonymise_pci_config(words.aliases, entry)
    if path == "/proc/cmdline":
        arguments = (word for word in entry.split() if _KERNEL_ARGUMENTS.fullmatch(word))
        return words.contents(path, b" ".join(arguments) + b"\n")
    if path.endswith("/mounts"):
        lines = entry.splitlines(keepends=True)
        return words.contents(path, b"".join(line for line in lines if _is_relevant_mount(line)))
    return words.contents(path, _BUILDER.sub(b"(builder@host)", entry))


def _is_relevant_mount(mount: bytes) -> bool:
    fields = mount.split()
    return len(fields) > 2 and (fields[2] in _FILE_SYSTEMS or fields[1] == b"/sys/fs/cgroup")


def _pseudonymise_pci_config(aliases: Aliases, data: bytes) -> bytes:
    at = extended_capability(data, _DEVICE_SERIAL)
    if at is None or at + 12 > len(data):
        return data
    serial = aliases.guid(data[at + 4 : at + 12][::-1])[::-1]
    return data[: at + 4] + serial + data[at + 12 :]


def _identifying_words(tree: TreeFiles, tapes: Mapping[str, bytes]) -> IdentifyingWords:
    identifying = IdentifyingWords()
    for directory, entries in tree.walk():
        for name, entry in entries.items():
            if not isinstance(entry, bytes):
                continue
            text = entry.decode("utf-8", "replace").strip("\0 \t\r\n")
            if name == "serial":
                identifying.serials.add(text)
            elif name == "cpuinfo":
                identifying.serials.update(_CPU_SERIAL.findall(text))
            elif f"{directory}/{name}" == _HOSTNAME:
                identifying.hosts.update((text, text.partition(".")[0]))
            elif name == "node_desc":
                identifying.hosts.update(_hosts_of(text, directory.rpartition("/")[2]))
    for data in tapes.values():
        identifying.serials.update(_serials_of(data))
    identifying.hosts.difference_update(_NO_HOST, ("",))
    identifying.serials = {text for text in identifying.serials if len(set(text)) > 1}
    return identifying


def _hosts_of(description: str, device: str) -> list[str]:
    """Return host names in a node description: `host HCA-1`, `host mlx5_0` or `host` alone."""
    words = description.split()
    if len(words) > 1 and (words[-1] == device or words[-1].startswith("HCA-")):
        return words[:-1]
    return words if len(words) == 1 and words != [device] else []


def _serials_of(tape: bytes, *, is_one_document: bool = False) -> Iterator[str]:
    """Yield serial numbers in JSON: of each line, or of the text as a whole."""
    for line in [tape] if is_one_document else tape.splitlines():
        try:
            yield from _serials_in(json.loads(line))
        except (ValueError, RecursionError):
            # not a line of a tape: identifiers with a recognisable form are replaced anyway
            continue


def _serials_in(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        pairs: Iterable[tuple[object, object]] = value.items()
        children: Iterable[object] = value.values()
    elif isinstance(value, list):
        pairs = [(value[0], value[1])] if len(value) == 2 else []
        children = value
    else:
        return
    for key, item in pairs:
        is_serial = isinstance(key, str) and "serial" in key.lower()
        if is_serial and isinstance(item, str | int) and not isinstance(item, bool):
            yield str(item)
    for item in children:
        yield from _serials_in(item)


def _vocabulary(tree: TreeFiles, tapes: Mapping[str, bytes]) -> frozenset[str]:
    """Return names of files, vendors and fields, which must not be replaced."""
    words = set(tapes)
    for _, entries in tree.walk():
        words.update(*([*re.findall(r"[A-Za-z0-9]+", name), name] for name in entries))
    for data in tapes.values():
        words.update(key.decode() for key in re.findall(rb'"(\w+)"\s*:', data))
    return frozenset(word.lower() for word in words)
