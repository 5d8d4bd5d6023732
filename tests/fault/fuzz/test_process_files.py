"""Files of the kernel about a process that is not ours: parts of them are written by containers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.verification.procfs import (
    parse_environ,
    parse_limits,
    parse_mountinfo,
    parse_rules,
    parse_start_ticks,
)
from tests.fault.fuzz.mutating import Mutator
from tests.fault.fuzz.shares import SHARES

STAT = b"7 (a) b) S " + b" ".join(b"%d" % number for number in range(1, 50))


def text_of(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    """Have a parser of text read bytes as the host's files are read."""
    return lambda data: parse(data.decode("utf-8", "replace"))


PARSERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "environ": (parse_environ, b"A=1\0NVIDIA_VISIBLE_DEVICES=GPU-1\0=\0B\0"),
    "mountinfo": (
        parse_mountinfo,
        b"36 35 98:0 /a\\040b /mnt rw,noatime master:1 - ext4 /dev/sda rw\n"
        b"37 36 0:5 / /dev rw - tmpfs t rw",
    ),
    "limits": (
        text_of(parse_limits),
        b"Limit                     Soft Limit           Hard Limit           Units     \n"
        b"Max locked memory         65536                unlimited            bytes     \n",
    ),
    "rules": (text_of(parse_rules), b"c 195:* rw\na *:* rwm\n"),
    "stat": (parse_start_ticks, STAT),
}


@pytest.mark.parametrize("name", PARSERS)
def test_nothing_comes_out_of_process_files_but_values(name: str) -> None:
    parse, good = PARSERS[name]
    mutator = Mutator(name)
    assert parse(good)
    for _ in range(SHARES["process"] // len(PARSERS)):
        data = mutator.mutated([good])
        try:
            parse(data)
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__} for {data!r}") from error
