"""Many files of one kernel parsed at once: its files have the same keys, and other numbers.

All work on bytes is done for all files together, so that a file costs half of what it costs
`agent.cgroup.parse`. Files that differ in more than numbers are refused together, with
`ParseError`: the caller then parses them one by one, and learns which of them is bad.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

import msgspec

from agent.cgroup.parse import CpuStat, Memory
from agent.errors import ParseError

_DIGITS = b"0123456789"
_BETWEEN = b"\0"  # no kernel file has it: keys cannot slip from one file into the next
_COMMA = bytes.maketrans(b"\n", b",")
_NO_NUMBERS = bytes(set(range(256)) - set(_DIGITS + b"\n "))
_LRU_KEYS = b"inactive_anon \nactive_anon \ninactive_file \nactive_file \nunevictable \n"
_LRU_LEAST = len(_LRU_KEYS) + 4  # the last line's end not counted
_PERIODS = b"\nnr_periods \nnr_throttled \n"
_MOST = 1 << 64  # the first number that no counter of the kernel holds

_list = msgspec.json.Decoder(list[int])


def memory_stat_v2(files: Sequence[bytes]) -> list[Memory]:
    """Return what `parse.memory_stat_v2` returns of each file."""
    before, key, _ = files[0].partition(b"inactive_anon")
    least = len(before.translate(None, _DIGITS)) + before.count(b"\n")  # a digit a line
    end = _line_after(files[0], b"unevictable")
    lines = [
        data[(start := data.find(key, least)) : data.find(end, start + _LRU_LEAST) + 1]
        for data in files
    ]
    numbers = _numbers("memory.stat", lines, _LRU_KEYS)
    used = list(map(add, map(add, numbers[0::5], numbers[1::5]), numbers[4::5]))
    with_cache = list(map(add, map(add, used, numbers[2::5]), numbers[3::5]))
    _check("memory.stat", with_cache)
    return list(zip(used, with_cache, strict=True))


def cpu_stat_v2(files: Sequence[bytes]) -> list[CpuStat]:
    """Return what `parse.cpu_stat_v2` returns of each file."""
    keys = files[0].translate(None, _DIGITS)
    if not keys.startswith(b"usage_usec \n"):
        raise ParseError("cpu.stat", "its first key is not usage_usec")
    numbers = _numbers("cpu.stat", files, keys)
    width, at = keys.count(b"\n"), keys.find(_PERIODS)
    usage = numbers[0::width]
    _check("cpu.stat", usage)
    usage_ns = [one * 1000 for one in usage]
    if at < 0:
        return [(one, None) for one in usage_ns]
    first = keys.count(b"\n", 0, at + 1)
    periods = numbers[first::width]
    _check("cpu.stat", periods)
    throttling = zip(periods, numbers[first + 1 :: width], strict=True)
    return list(zip(usage_ns, throttling, strict=True))


def _line_after(data: bytes, key: bytes) -> bytes:
    """Return the end of the key's line with the next line's first letter."""
    end = data.find(b"\n", data.find(key))
    return data[end : end + 2]


def _numbers(what: str, files: Sequence[bytes], keys: bytes) -> list[int]:
    """Return the numbers of all files in their order; `keys` is each file without its digits."""
    text = _BETWEEN.join(files)
    if text.translate(None, _DIGITS) != _BETWEEN.join([keys] * len(files)):
        raise ParseError(what, "files of one kernel have other keys than each other")
    # a digit in a key leaves two numbers in one place, which JSON refuses, or one before the blank
    values = text.translate(_COMMA, _NO_NUMBERS)
    if b" ," in values:
        raise ParseError(what, "a key without a number")
    try:
        numbers = _list.decode(b"[%b]" % values[:-1])
    except msgspec.DecodeError as error:
        raise ParseError(what, str(error)) from error
    if len(numbers) != len(files) * keys.count(b"\n"):
        raise ParseError(what, "not one number a line")
    return numbers


def _check(what: str, numbers: Sequence[int]) -> None:
    if max(numbers) >= _MOST:
        raise ParseError(what, "a number that no counter holds")
