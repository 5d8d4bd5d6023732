"""Settings of RDMA discovery: decoded once, wrong ones refused by the name of their key."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from agent.errors import BadConfig, ParseError
from agent.snapshot.device import Pairs
from agent.snapshot.pci import is_host_bridge, parse_user_address
from agent.snapshot.settings import SettingRule, SettingTable
from agent.snapshot.vendor import VendorSettings
from agent.wire_formats.kernel_text import parse_cpu_list
from plugins.vendors.rdma.health.ports import ERROR_LIMITS
from plugins.vendors.rdma.sysfs.values import is_name

ROLE_LABEL = "xpu-agent.io/role"
ROLES = ("compute", "storage")
POLICIES = ("any", "all")
# what containers get is decided in the agent; here it is only known
INJECTION_KEYS = ("inject_all_ports", "inject_umad", "require_rdma_cm", "memlock", "nccl_env")
MAX_RULES = 256  # of one list
MAX_LIMIT = 10**9

_BUS_RANGE = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2})-([0-9a-fA-F]{2})")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9_.*?-]{1,63}")


class DevicePattern(msgspec.Struct, frozen=True):
    """Chooses devices: an address, buses `DDDD:BB-BB`, a root `pciDDDD:BB`, or a name pattern."""

    text: str

    def fits(self, address: str | None, root: str | None, name: str | None) -> bool:
        """Say whether a device at that address, below that root, of that RDMA name is meant."""
        if is_host_bridge(self.text):
            return root == self.text
        buses = _BUS_RANGE.fullmatch(self.text)
        if buses:
            domain, bus = address.split(":")[:2] if address else ("", "0")
            same = bool(address) and int(domain, 16) == int(buses[1], 16)
            return same and int(buses[2], 16) <= int(bus, 16) <= int(buses[3], 16)
        if ":" in self.text:
            return address == self.text
        return name is not None and fnmatch.fnmatchcase(name, self.text)


class LabelRule(msgspec.Struct, frozen=True):
    """Labels of the devices that match."""

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


class RdmaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `discovery.rdma` may hold; the defaults suit a node that nobody configured."""

    soft: bool = False  # publish rxe and siw devices (test clusters)
    replay: bool = False  # the host is a recording: no device nodes to compare
    port_policy: str = "any"
    expected_ports: tuple[PortRule, ...] = ()
    vf_pools: tuple[PoolRule, ...] = ()
    labels: tuple[LabelRule, ...] = ()
    roles: tuple[LabelRule, ...] = ()
    error_limits: tuple[tuple[str, int], ...] = ()  # counter, growth that five minutes may bring
    counters_interval_s: float = 10.0  # drivers refresh their counters no faster than that
    state_dir: str | None = None  # None: minors are not kept beyond this process

    @property
    def limits(self) -> Mapping[str, int]:
        """Growth of error counters within five minutes beyond which a person is told."""
        return {**ERROR_LIMITS, **dict(self.error_limits)} if self.error_limits else ERROR_LIMITS

    def labels_of(self, address: str | None, root: str | None, name: str) -> Pairs:
        """Return the labels of a device; of two rules for one key the first wins."""
        found: dict[str, str] = {}
        for rule in (*self.labels, *self.roles):
            if rule.match.fits(address, root, name):
                found = dict(rule.labels) | found
        return tuple(sorted(found.items()))

    def expected_ports_of(
        self, address: str | None, root: str | None, name: str
    ) -> tuple[int, ...]:
        """Return the ports that must be active on a device."""
        rules = (rule for rule in self.expected_ports if rule.match.fits(address, root, name))
        return tuple(sorted({port for rule in rules for port in rule.ports}))


def _flag(value: object, key: str) -> bool:
    if not isinstance(value, bool):
        raise BadConfig(f"{key}: must be true or false")
    return value


def _text(value: object, key: str) -> str:
    if not isinstance(value, str) or not value or len(value) > 4096:
        raise BadConfig(f"{key}: must be a text")
    return value


def _choice(value: object, key: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise BadConfig(f"{key}: must be one of {', '.join(allowed)}")
    return str(value)


def _table(value: object, key: str, known: Iterable[str]) -> Mapping[object, object]:
    if not isinstance(value, Mapping):
        raise BadConfig(f"{key}: must be a table")
    allowed = tuple(known)
    for name in value:
        if name not in allowed:
            raise BadConfig(f"{key}: unknown key {str(name)[:64]!r}, known: {', '.join(allowed)}")
    return value


def _rules(value: object, key: str) -> list[tuple[object, str]]:
    if not isinstance(value, list | tuple) or len(value) > MAX_RULES:
        raise BadConfig(f"{key}: must be a list of at most {MAX_RULES} tables")
    return [(item, f"{key}[{at}]") for at, item in enumerate(value)]


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


def _label_rule(value: object, key: str) -> LabelRule:
    table = _table(value, key, ("match", "labels"))
    return LabelRule(
        _match(table.get("match"), f"{key}.match"), _labels(table.get("labels"), f"{key}.labels")
    )


def _role_rule(value: object, key: str) -> LabelRule:
    table = _table(value, key, ("match", "role"))
    role = _choice(table.get("role"), f"{key}.role", ROLES)
    return LabelRule(_match(table.get("match"), f"{key}.match"), ((ROLE_LABEL, role),))


def _port_rule(value: object, key: str) -> PortRule:
    table = _table(value, key, ("match", "ports"))
    ports = table.get("ports")
    if not isinstance(ports, list | tuple) or not all(
        type(port) is int and 1 <= port <= 255 for port in ports
    ):
        raise BadConfig(f"{key}.ports: must be a list of numbers from 1 to 255")
    return PortRule(_match(table.get("match"), f"{key}.match"), tuple(ports))


def _pool_rule(value: object, key: str) -> PoolRule:
    table = _table(value, key, ("pf", "vfs", "driver", "labels"))
    vfs, driver = table.get("vfs"), table.get("driver")
    try:
        indices = None if vfs is None else parse_cpu_list(_text(vfs, f"{key}.vfs"))
    except ParseError as error:
        raise BadConfig(f"{key}.vfs: must be a list such as 0-3,8") from error
    return PoolRule(
        pf=_match(table.get("pf"), f"{key}.pf"),
        indices=indices,
        driver=None if driver is None else _text(driver, f"{key}.driver"),
        labels=_labels(table.get("labels", {}), f"{key}.labels"),
    )


def _limit_rule(value: object, key: str) -> tuple[str, int]:
    table = _table(value, key, ("counter", "limit"))
    counter, limit = table.get("counter"), table.get("limit")
    if not isinstance(counter, str) or not is_name(counter):
        raise BadConfig(f"{key}.counter: must be the name of a counter's file")
    if type(limit) is not int or not 0 <= limit <= MAX_LIMIT:
        raise BadConfig(f"{key}.limit: must be a whole number from 0 to {MAX_LIMIT}")
    return counter, limit


def _interval(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 3600:
        raise BadConfig(f"{key}: must be a number from 1 to 3600")
    return float(value)


def decode_rdma_settings(data: Mapping[str, object]) -> RdmaSettings:
    """Decode the vendor's section; `BadConfig` names the key that is unknown or wrong."""
    known = (*RdmaSettings.__struct_fields__, *INJECTION_KEYS)
    table = _table(data, "discovery.rdma", known)
    for name in INJECTION_KEYS:
        _flag(table.get(name, False), f"discovery.rdma.{name}")

    def rules(name: str) -> list[tuple[object, str]]:
        return _rules(table.get(name) or (), f"discovery.rdma.{name}")

    state_dir = table.get("state_dir")
    return RdmaSettings(
        soft=_flag(table.get("soft", False), "discovery.rdma.soft"),
        replay=_flag(table.get("replay", False), "discovery.rdma.replay"),
        port_policy=_choice(
            table.get("port_policy", "any"), "discovery.rdma.port_policy", POLICIES
        ),
        expected_ports=tuple(_port_rule(*item) for item in rules("expected_ports")),
        vf_pools=tuple(_pool_rule(*item) for item in rules("vf_pools")),
        labels=tuple(_label_rule(*item) for item in rules("labels")),
        roles=tuple(_role_rule(*item) for item in rules("roles")),
        error_limits=tuple(_limit_rule(*item) for item in rules("error_limits")),
        counters_interval_s=_interval(
            table.get("counters_interval_s", 10.0), "discovery.rdma.counters_interval_s"
        ),
        state_dir=_text(state_dir, "discovery.rdma.state_dir") if state_dir else None,
    )


class RdmaSection(VendorSettings, frozen=True, kw_only=True):
    """Which RDMA devices are published, and how their ports make health."""

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
        SettingRule("growth of an error counter within 300 s that is told: {counter, limit}"),
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
        """Raise `BadConfig` that names the key of a rule that cannot be understood."""
        decode_rdma_settings(msgspec.structs.asdict(self))
