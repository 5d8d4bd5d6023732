"""Which machine this is and when it started."""

from __future__ import annotations

import re

from agent.errors import ParseError
from agent.host.attributes import fact, word
from agent.host.files import HostFiles, text
from agent.host.proc import parse_stat
from agent.model.snapshot import NodeIdentity

STAT_LIMIT = 512 * 1024  # bytes; `btime` stands behind a line with a number for each interrupt

_UUID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_WORD = re.compile(r"([A-Za-z0-9._+~-]{1,128})")
_VERSION = re.compile(r"Linux version ([A-Za-z0-9._+~-]{1,128})(?: .*)?", re.DOTALL)
_MODALIAS = re.compile(r"(?:cpu:type:([A-Za-z0-9_]{1,32})[,:]|x86cpu:).*", re.DOTALL)
_X86 = "x86_64"  # the only architecture that a modalias calls otherwise than uname


def read_identity(host: HostFiles, name: str, source: str) -> NodeIdentity:
    """Read boot id, boot time, kernel and architecture; what the host does not tell stays empty."""
    kernel_files = "/proc/sys/kernel"
    kernel = word(host, f"{kernel_files}/osrelease", _WORD)
    architecture = word(host, f"{kernel_files}/arch", _WORD)  # since Linux 6.1
    return NodeIdentity(
        name=name,
        source=source,
        boot_id=word(host, f"{kernel_files}/random/boot_id", _UUID) or "",
        boot_time_s=_boot_time_s(host),
        kernel=kernel or word(host, "/proc/version", _VERSION) or "",
        architecture=architecture
        or fact(host, "/sys/devices/system/cpu/modalias", _modalias)
        or "",
    )


def _modalias(content: str) -> str:
    match = _MODALIAS.fullmatch(content)
    if match is None:
        raise ParseError("modalias of a CPU", content)
    return _X86 if match[1] in (None, "x86") else match[1]


def _boot_time_s(host: HostFiles) -> float:
    content = text(host, "/proc/stat", STAT_LIMIT)
    try:
        return float(parse_stat(content or "").boot_time_s or 0)
    except ParseError:
        return 0.0
