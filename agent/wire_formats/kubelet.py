"""The kubelet's formats: `/configz`, the CPU manager's checkpoint, names of resources."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

import msgspec

from agent.errors import ParseError
from agent.snapshot.device import Pairs
from agent.wire_formats.json_values import JSON_ERRORS
from agent.wire_formats.kernel_text import parse_cpu_list
from agent.wire_formats.quantities import parse_quantity


class KubeletConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `/configz` that the agent reads; `None`: not set."""

    cpu_manager_policy: str | None = None
    cpu_manager_options: Pairs = ()
    reserved_system_cpus: frozenset[int] | None = None
    reserved_milli: int | None = None  # CPU of kubeReserved and systemReserved together
    topology_policy: str | None = None
    topology_scope: str | None = None
    cgroup_driver: str | None = None
    cgroup_root: str | None = None
    mistyped_keys: tuple[str, ...] = ()  # keys with values of an unknown type


MAX_OPTIONS = 64
MAX_TEXT = 256
RESERVED = ("kubeReserved", "systemReserved")
T = TypeVar("T")

RawKeys = dict[str, msgspec.Raw]


class _ConfigzJson(msgspec.Struct):
    kubeletconfig: RawKeys


def parse_configz(data: bytes) -> KubeletConfig:
    """Decode the answer of the endpoint; raises `ParseError` if it is not such an object.

    A key with another type is in `mistyped_keys` and counts as absent.
    """
    try:
        keys = msgspec.json.decode(data, type=_ConfigzJson).kubeletconfig
    except JSON_ERRORS as error:
        raise ParseError(f"kubelet's configz: {str(error)[:120]}", "") from error
    problems: list[str] = []

    def read(key: str, parse: Callable[[msgspec.Raw], T]) -> T | None:
        if key not in keys or bytes(keys[key]) == b"null":
            return None
        try:
            return parse(keys[key])
        except (*JSON_ERRORS, ParseError):
            problems.append(key)
            return None

    # without the key nothing is reserved, as the kubelet sees it
    reserved = [read(key, _milli) or 0 for key in RESERVED]
    return KubeletConfig(
        cpu_manager_policy=read("cpuManagerPolicy", _word),
        cpu_manager_options=read("cpuManagerPolicyOptions", _options) or (),
        reserved_system_cpus=read("reservedSystemCPUs", _cpus),
        reserved_milli=None if set(RESERVED) & set(problems) else sum(reserved),
        topology_policy=read("topologyManagerPolicy", _word),
        topology_scope=read("topologyManagerScope", _word),
        cgroup_driver=read("cgroupDriver", _word),
        cgroup_root=read("cgroupRoot", _word),
        mistyped_keys=tuple(problems),
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
    """Return the CPU of a reservation in thousandths; `None` without `cpu`."""
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


CHECKPOINT_NAME = "cpu_manager_state"
MAX_CHECKPOINT_BYTES = 4 << 20
MAX_PODS = 4096
MAX_CONTAINERS = 256  # of one pod
_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,127}")


class CpuCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs that the kubelet allocated; those of a pod's containers are joined."""

    policy: str | None = None
    default_cpus: frozenset[int] = frozenset()  # CPUs shared by containers without exclusive ones
    pod_cpus: tuple[tuple[str, frozenset[int]], ...] = ()  # by pod uid


class _CheckpointJson(msgspec.Struct, rename="camel"):
    policy_name: str
    default_cpu_set: str = ""
    entries: dict[str, dict[str, str]] | None = None


def parse_checkpoint(data: bytes) -> CpuCheckpoint:
    """Decode a checkpoint; raises `ParseError` for the whole of it if one part is invalid.

    Otherwise used CPUs would look free. The checksum is not checked: it is that of the kubelet's
    own print of a Go struct.
    """
    if len(data) > MAX_CHECKPOINT_BYTES:
        raise ParseError(f"CPU manager checkpoint: more than {MAX_CHECKPOINT_BYTES} bytes", "")
    try:
        checkpoint = msgspec.json.decode(data, type=_CheckpointJson)
    except JSON_ERRORS as error:
        raise ParseError(f"CPU manager checkpoint: {str(error)[:120]}", "") from error
    entries = checkpoint.entries or {}
    if len(entries) > MAX_PODS or not all(map(_UID.fullmatch, entries)):
        raise ParseError("CPU manager checkpoint: entries", ", ".join(sorted(entries)[:3]))
    return CpuCheckpoint(
        policy=checkpoint.policy_name,
        default_cpus=parse_cpu_list(checkpoint.default_cpu_set),
        pod_cpus=tuple((uid, _cpus_of_pod(uid, entries[uid])) for uid in sorted(entries)),
    )


def _cpus_of_pod(uid: str, containers: dict[str, str]) -> frozenset[int]:
    if len(containers) > MAX_CONTAINERS:
        raise ParseError("CPU manager checkpoint: containers of", uid)
    return frozenset[int]().union(*map(parse_cpu_list, containers.values()))


# as koordlet's proxy names them; consumers such as dcgm-exporter look for these
KOORDLET_RESOURCE_NAMES: Mapping[str, str] = MappingProxyType(
    {"gpu": "nvidia.com/gpu", "rdma": "koordinator.sh/rdma"}
)
