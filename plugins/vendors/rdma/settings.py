"""Settings of `discovery.rdma`, with the rules in their tables."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, TypeVar

import msgspec

from agent.errors import BadConfig, ParseError
from agent.snapshot.device import Pairs
from agent.snapshot.pci import is_host_bridge, parse_user_address
from agent.snapshot.settings import SettingRule, SettingTable, VendorSettings
from agent.wire_formats.kernel_text import parse_cpu_list
from plugins.vendors.rdma.health.ports import ERROR_LIMITS
from plugins.vendors.rdma.sysfs.values import is_name

ROLE_LABEL = "xpu-agent.io/role"
ROLES = ("compute", "storage")
POLICIES = ("any", "all")
MAX_RULES = 256  # of one list
MAX_LIMIT = 10**9

_BUS_RANGE = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2})-([0-9a-fA-F]{2})")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9_.*?-]{1,63}")


class DevicePattern(msgspec.Struct, frozen=True):
    """Selects devices: an address, buses `DDDD:BB-BB`, a root `pciDDDD:BB`, or a name pattern."""

    text: str

    def fits(self, address: str | None, root: str | None, name: str | None) -> bool:
        """Return whether the pattern selects a device of this address, root and RDMA name."""
        if is_host_bridge(self.text):
            return root == self.text
        buses = _BUS_RANGE.fullmatch(self.text)
        if buses:
            domain, bus = address.split(":")[:2] if address else ("", "0")
            is_same_domain = bool(address) and int(domain, 16) == int(buses[1], 16)
            return is_same_domain and int(buses[2], 16) <= int(bus, 16) <= int(buses[3], 16)
        if ":" in self.text:
            return address == self.text
        return name is not None and fnmatch.fnmatchcase(name, self.text)


class LabelRule(msgspec.Struct, frozen=True):
    """Labels for the devices that match."""

    match: DevicePattern
    labels: Pairs


class PortRule(msgspec.Struct, frozen=True):
    """Ports that must be active on the devices that match."""

    match: DevicePattern
    ports: tuple[int, ...]


class PoolRule(msgspec.Struct, frozen=True, kw_only=True):
    """Virtual functions that form a group: by their PF, their index and their driver."""

    pf: DevicePattern
    indices: frozenset[int] | None = None  # None: all
    driver: str | None = None  # None: any
    labels: Pairs = ()


RuleT = TypeVar("RuleT")


def _text(value: object, key: str) -> str:
    if not isinstance(value, str) or not value or len(value) > 4096:
        raise BadConfig(f"{key}: must be a text")
    return value


def _choice(value: object, key: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise BadConfig(f"{key}: must be one of {', '.join(allowed)}")
    return str(value)


def _check_keys(row: Mapping[str, object], key: str, allowed: tuple[str, ...]) -> None:
    for name in row:
        if name not in allowed:
            raise BadConfig(f"{key}: unknown key {str(name)[:64]!r}, known: {', '.join(allowed)}")


def _rows(
    table: SettingTable, name: str, decode: Callable[[Mapping[str, object], str], RuleT]
) -> tuple[RuleT, ...]:
    """Return the decoded rows of a table; raise `BadConfig` that names the key."""
    key = f"discovery.rdma.{name}"
    if len(table) > MAX_RULES:
        raise BadConfig(f"{key}: must be a list of at most {MAX_RULES} tables")
    return tuple(decode(row, f"{key}[{index}]") for index, row in enumerate(table))


def _match(value: object, key: str) -> DevicePattern:
    text = _text(value, key)
    if is_host_bridge(text) or _BUS_RANGE.fullmatch(text) or _NAME_PATTERN.fullmatch(text):
        return DevicePattern(text)
    try:
        return DevicePattern(parse_user_address(text))
    except ParseError as error:
        raise BadConfig(f"{key}: neither address, bus range, root nor name: {text!r}") from error


def _labels(value: object, key: str) -> Pairs:
    if not isinstance(value, Mapping):
        raise BadConfig(f"{key}: must be a table of texts")
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str) or not name:
            raise BadConfig(f"{key}: names and values must be texts")
    return tuple(sorted(value.items()))


def _label_rule(row: Mapping[str, object], key: str) -> LabelRule:
    _check_keys(row, key, ("match", "labels"))
    return LabelRule(
        _match(row.get("match"), f"{key}.match"), _labels(row.get("labels"), f"{key}.labels")
    )


def _role_rule(row: Mapping[str, object], key: str) -> LabelRule:
    _check_keys(row, key, ("match", "role"))
    role = _choice(row.get("role"), f"{key}.role", ROLES)
    return LabelRule(_match(row.get("match"), f"{key}.match"), ((ROLE_LABEL, role),))


def _port_rule(row: Mapping[str, object], key: str) -> PortRule:
    _check_keys(row, key, ("match", "ports"))
    ports = row.get("ports")
    if not isinstance(ports, list | tuple) or not all(
        type(port) is int and 1 <= port <= 255 for port in ports
    ):
        raise BadConfig(f"{key}.ports: must be a list of numbers from 1 to 255")
    return PortRule(_match(row.get("match"), f"{key}.match"), tuple(ports))


def _pool_rule(row: Mapping[str, object], key: str) -> PoolRule:
    _check_keys(row, key, ("pf", "vfs", "driver", "labels"))
    vfs, driver = row.get("vfs"), row.get("driver")
    try:
        indices = None if vfs is None else parse_cpu_list(_text(vfs, f"{key}.vfs"))
    except ParseError as error:
        raise BadConfig(f"{key}.vfs: must be a list such as 0-3,8") from error
    return PoolRule(
        pf=_match(row.get("pf"), f"{key}.pf"),
        indices=indices,
        driver=None if driver is None else _text(driver, f"{key}.driver"),
        labels=_labels(row.get("labels", {}), f"{key}.labels"),
    )


def _limit_rule(row: Mapping[str, object], key: str) -> tuple[str, int]:
    _check_keys(row, key, ("counter", "limit"))
    counter, limit = row.get("counter"), row.get("limit")
    if not isinstance(counter, str) or not is_name(counter):
        raise BadConfig(f"{key}.counter: must be the name of a counter's file")
    if type(limit) is not int or not 0 <= limit <= MAX_LIMIT:
        raise BadConfig(f"{key}.limit: must be a whole number from 0 to {MAX_LIMIT}")
    return counter, limit


class RdmaSettings(VendorSettings, frozen=True, kw_only=True, dict=True):
    """Which RDMA devices are published, and how their ports determine their health."""

    soft: Annotated[
        bool, SettingRule("publish soft-RoCE and soft-iWARP devices", maturity="beta")
    ] = False
    port_policy: Annotated[
        str, SettingRule("ports that must be active", choices=("any", "all"))
    ] = "any"
    expected_ports: Annotated[
        SettingTable, SettingRule("ports that count though they were never up: {match, ports}")
    ] = ()
    vf_pools: Annotated[
        SettingTable, SettingRule("groups of virtual functions: {pf, vfs, driver, labels}")
    ] = ()
    labels: Annotated[SettingTable, SettingRule("labels of devices: {match, labels}")] = ()
    roles: Annotated[
        SettingTable, SettingRule("use of a NIC: {match, role: compute or storage}")
    ] = ()
    error_limits: Annotated[
        SettingTable,
        SettingRule("growth of an error counter within 300 s that is reported: {counter, limit}"),
    ] = ()
    inject_all_ports: Annotated[
        bool, SettingRule("show all devices of a granted function or bond, not the first alone")
    ] = True
    inject_umad: Annotated[
        bool, SettingRule("show the management device too, which lets pods change the fabric")
    ] = False
    require_rdma_cm: Annotated[
        bool, SettingRule("refuse containers where /dev/infiniband/rdma_cm is missing")
    ] = False
    memlock: Annotated[bool, SettingRule("let containers with RDMA lock all of their memory")] = (
        True
    )
    nccl_env: Annotated[bool, SettingRule("set NCCL_IB_HCA where a pod does not")] = False
    counters_interval_s: Annotated[
        float,
        SettingRule("cycle of port counters and of pods' RDMA objects", unit="s", low=1, high=3600),
    ] = 10.0

    def check(self, *, is_forced: bool = False) -> None:  # noqa: ARG002 - see VendorSettings
        """Raise `BadConfig` that names the key of an invalid rule."""
        _ = (self.port_rules, self.pool_rules, self.label_rules, self.limits)  # decode the tables

    @cached_property
    def port_rules(self) -> tuple[PortRule, ...]:
        """Return the rules in `expected_ports`."""
        return _rows(self.expected_ports, "expected_ports", _port_rule)

    @cached_property
    def pool_rules(self) -> tuple[PoolRule, ...]:
        """Return the rules in `vf_pools`."""
        return _rows(self.vf_pools, "vf_pools", _pool_rule)

    @cached_property
    def label_rules(self) -> tuple[LabelRule, ...]:
        """Return the rules in `labels`, then those in `roles`."""
        return (
            *_rows(self.labels, "labels", _label_rule),
            *_rows(self.roles, "roles", _role_rule),
        )

    @cached_property
    def limits(self) -> Mapping[str, int]:
        """Return by how much each error counter may grow within five minutes without a warning."""
        return {**ERROR_LIMITS, **dict(_rows(self.error_limits, "error_limits", _limit_rule))}

    def labels_of(self, address: str | None, root: str | None, name: str) -> Pairs:
        """Return the labels of a device; of two rules for one key the first one applies."""
        labels: dict[str, str] = {}
        for rule in self.label_rules:
            if rule.match.fits(address, root, name):
                labels = dict(rule.labels) | labels
        return tuple(sorted(labels.items()))

    def expected_ports_of(
        self, address: str | None, root: str | None, name: str
    ) -> tuple[int, ...]:
        """Return the ports that must be active on a device."""
        rules = (rule for rule in self.port_rules if rule.match.fits(address, root, name))
        return tuple(sorted({port for rule in rules for port in rule.ports}))
