"""The kubelet's `/configz`: each key for itself, so that a changed one costs only itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from agent.errors import ParseError
from agent.kubelet.base import KubeletConfig
from agent.model.device import Pairs
from agent.model.foreign.quantities import parse_quantity
from agent.topology.text import parse_cpu_list

MAX_OPTIONS = 64
MAX_TEXT = 256
RESERVED = ("kubeReserved", "systemReserved")

T = TypeVar("T")
Raws = dict[str, msgspec.Raw]


class _Whole(msgspec.Struct):
    kubeletconfig: Raws


def parse_config(data: bytes) -> KubeletConfig:
    """Decode what the endpoint answers; raise `ParseError` when it is no such object at all.

    A key of another type than ours is in `odd` and counts as not said.
    """
    try:
        keys = msgspec.json.decode(data, type=_Whole).kubeletconfig
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ParseError(f"kubelet's configz: {str(error)[:120]}", "") from error
    odd: list[str] = []

    def read(key: str, parse: Callable[[msgspec.Raw], T]) -> T | None:
        if key not in keys or bytes(keys[key]) == b"null":
            return None
        try:
            return parse(keys[key])
        except (msgspec.MsgspecError, ParseError, RecursionError, UnicodeDecodeError):
            odd.append(key)
            return None

    # without the key nothing is reserved, as the kubelet sees it
    reserved = [read(key, _milli) or 0 for key in RESERVED]
    return KubeletConfig(
        cpu_manager_policy=read("cpuManagerPolicy", _word),
        cpu_manager_options=read("cpuManagerPolicyOptions", _options) or (),
        reserved_system_cpus=read("reservedSystemCPUs", _cpus),
        reserved_milli=None if set(RESERVED) & set(odd) else sum(reserved),
        topology_policy=read("topologyManagerPolicy", _word),
        topology_scope=read("topologyManagerScope", _word),
        cgroup_driver=read("cgroupDriver", _word),
        cgroup_root=read("cgroupRoot", _word),
        odd=tuple(odd),
    )


def _word(raw: msgspec.Raw) -> str | None:
    word = msgspec.json.decode(raw, type=str)
    if len(word) > MAX_TEXT:
        raise ParseError("kubelet's setting: too long", word)
    return word or None


def _options(raw: msgspec.Raw) -> Pairs:
    options = msgspec.json.decode(raw, type=dict[str, str])
    if len(options) > MAX_OPTIONS or max(map(len, (*options, *options.values(), ""))) > MAX_TEXT:
        raise ParseError("kubelet's options: too many", "")
    return tuple(sorted(options.items()))


def _cpus(raw: msgspec.Raw) -> frozenset[int] | None:
    return parse_cpu_list(msgspec.json.decode(raw, type=str)) or None


def _milli(raw: msgspec.Raw) -> int:
    """Return the CPU of a reservation, in thousandths; without a `cpu` there is none."""
    amounts = msgspec.json.decode(raw, type=dict[str, str])
    if "cpu" not in amounts:
        return 0
    # a thousandth is the finest that the kubelet counts: ask for the number of those
    amount = parse_quantity(_thousandfold(amounts["cpu"]))
    if amount is None:
        raise ParseError("CPU reserved by the kubelet", amounts["cpu"])
    return amount.value


def _thousandfold(text: str) -> str:
    """Return a quantity of CPU times a thousand: `1` is `1k`, `500m` is `500`."""
    return text[:-1] if text.endswith("m") else f"{text}k"
