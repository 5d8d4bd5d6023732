"""The health of an RDMA device: a pure state machine of its ports and time.

Seconds are monotonic, except for `wall_s`. Nothing is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from agent.snapshot.device import Health, HealthState

DOWN, INIT, ARMED, ACTIVE, ACTIVE_DEFER = 1, 2, 3, 4, 5  # port states
DISABLED = 3  # physical state

CONFIRM_DOWN_S = 2.0
CONFIRM_UP_S = 10.0
FLAP_WINDOW_S = 600.0
FLAP_EDGES = 3
FLAP_HOLD_S = 1800.0
ERROR_WINDOW_S = 300.0
ERROR_LIMITS: Mapping[str, int] = MappingProxyType(
    {  # growth within the window beyond which a person is informed
        "symbol_error": 10,
        "port_rcv_errors": 10,
        "local_link_integrity_errors": 0,
        "excessive_buffer_overrun_errors": 0,
        "rx_icrc_encapsulated": 0,
    }
)

_MESSAGES = {
    "DeviceHealthy": "device is healthy",
    "PortActiveDefer": "port is active but defers traffic: its link recovers from errors",
    "PortDisabled": "all ports are disabled: enable them, or take the setting off the card",
    "PortDown": "no port has a link: check cable, transceiver and the switch's port",
    "NoSubnetManager": "link is up but no subnet manager has configured the port",
    "PortInit": "port waits for the subnet manager",
    "PortArmed": "port is armed but not activated by the subnet manager",
    "NoPorts": "the device shows no readable port",
    "PortStateUnknown": "port states cannot be understood",
    "LagDegraded": "one member of the bond has no carrier",
    "DeviceNodeMissing": "the device's node for applications is missing",
    "DeviceGone": "the device is no longer on its bus",
    "DriverUnbound": "no driver is bound to the function: somebody else's, or left over",
    "BoundToVFIO": "bound to vfio-pci: a virtual machine's device",
    "NoRdmaDevice": "a driver is bound but has registered no RDMA device: is its module loaded",
    "LinkFlapping": "the link went down three times or more within ten minutes",
}


class PortReading(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one port at one moment."""

    number: int
    state: int | None  # None: unreadable, or a text that is no state
    physical: int | None = None
    sm_lid: int | None = None
    is_infiniband: bool = False
    is_readable: bool = True  # False: the state file gave an error or nothing


class PortHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The history of a port between readings."""

    number: int
    is_used: bool = False  # was active once in this boot, or is expected to be
    is_up: bool | None = None  # as last known
    edges: tuple[float, ...] = ()  # times of the last own down edges
    flaps: int = 0  # all own down edges
    downed: int | None = None  # the port's own counter, last value
    steps: tuple[tuple[float, int], ...] = ()  # (time, increase) of that counter


class DeviceHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The history of a device; `health` is the confirmed health."""

    ports: tuple[PortHistory, ...] = ()
    health: Health | None = None  # None: no reading yet
    doubt_s: float | None = None  # since when the readings contradict `health` without interruption
    flapping_until_s: float = 0.0

    @property
    def used_ports(self) -> frozenset[int]:
        """Return the numbers of the used ports."""
        return frozenset(port.number for port in self.ports if port.is_used)

    def port(self, number: int) -> PortHistory:
        """Return the history of a port; an empty one if there is none."""
        blank = PortHistory(number=number)
        return next((port for port in self.ports if port.number == number), blank)


def health_of(reason: str, state: HealthState) -> Health:
    """Return a health with the message of its reason."""
    return Health(state=state, reason=reason, message=_MESSAGES[reason])


def mark_used_ports(history: DeviceHistory, numbers: Iterable[int]) -> DeviceHistory:
    """Mark ports as used: those stored in this boot and those that settings expect."""
    used = set(numbers)
    by_number = {port.number: port for port in history.ports}
    for number in used - set(by_number):
        by_number[number] = PortHistory(number=number)
    ports = (
        replace(port, is_used=port.is_used or n in used) for n, port in sorted(by_number.items())
    )
    return replace(history, ports=tuple(ports))


def _down_reason(ports: tuple[PortReading, ...], best: int) -> str:
    """Return the reason why no port is active; `best` is the highest state of any."""
    if best == ARMED:
        return "PortArmed"
    if best == INIT:
        waiting = [port for port in ports if port.state == INIT]
        has_no_manager = any(port.is_infiniband and port.sm_lid == 0 for port in waiting)
        return "NoSubnetManager" if has_no_manager else "PortInit"
    is_disabled = all(port.state == DOWN and port.physical == DISABLED for port in ports)
    return "PortDisabled" if is_disabled else "PortDown"


def _partly_down(ports: tuple[PortReading, ...]) -> Health:
    numbers = ", ".join(str(port.number) for port in ports if port.state != ACTIVE)
    problem = f"port {numbers} is not active, and all that are in use have to be"
    message = f"{problem} (discovery.rdma.port_policy)"
    return Health(state=HealthState.FAILED, reason="PortDown", message=message)


def judge_ports(
    ports: tuple[PortReading, ...], used: frozenset[int], policy: str = "any"
) -> Health:
    """Return the health that follows from one reading of the ports, unconfirmed.

    Only used ports count; all ports do if none was used yet. With the `policy` "all" each used port
    must be active, with "any" one of them.
    """
    counted = tuple(port for port in ports if port.number in used) or ports
    if not any(port.is_readable for port in counted):
        return health_of("NoPorts", HealthState.FAILED)
    readable = tuple(port for port in counted if port.state is not None)
    # a number beyond those that the kernel documents is not active, and no better than down
    levels = [port.state if (port.state or 0) <= ACTIVE_DEFER else 0 for port in readable]
    best = max((level or 0 for level in levels), default=0)
    if policy == "all" and best >= ACTIVE and any(level != ACTIVE for level in levels):
        return _partly_down(readable)
    if ACTIVE in levels:
        return health_of("DeviceHealthy", HealthState.HEALTHY)
    if ACTIVE_DEFER in levels:
        return health_of("PortActiveDefer", HealthState.SUSPECT)
    if len(readable) < len(counted):
        return health_of("PortStateUnknown", HealthState.SUSPECT)
    return health_of(_down_reason(readable, best), HealthState.FAILED)


def _update_port(port: PortHistory, reading: PortReading, now_s: float) -> PortHistory:
    """Return a port's history with one more reading."""
    if reading.state is None:
        return port  # unknown is neither up nor down
    is_up = reading.state in (ACTIVE, ACTIVE_DEFER)
    is_down_edge = port.is_up is True and not is_up
    edges = (*port.edges, now_s) if is_down_edge else port.edges
    return replace(
        port,
        is_used=port.is_used or is_up,
        is_up=is_up,
        edges=tuple(at for at in edges if now_s - at < FLAP_WINDOW_S)[-FLAP_EDGES:],
        flaps=port.flaps + is_down_edge,
    )


def count_downed(history: DeviceHistory, number: int, value: int, now_s: float) -> DeviceHistory:
    """Add a value of a port's counter `link_downed`; a smaller one means that it was reset."""
    port = history.port(number)
    growth = value - port.downed if port.downed is not None else 0
    steps = (*port.steps, (now_s, growth)) if growth > 0 else port.steps
    # one reading in ten seconds: at most sixty steps fit into the window
    steps = tuple(step for step in steps if now_s - step[0] < FLAP_WINDOW_S)
    port = replace(port, downed=value, steps=steps)
    return _hold_flapping(_with_ports(history, {number: port}), now_s)


def _with_ports(history: DeviceHistory, changed: dict[int, PortHistory]) -> DeviceHistory:
    ports = {port.number: port for port in history.ports} | changed
    return replace(history, ports=tuple(port for _, port in sorted(ports.items())))


def _hold_flapping(history: DeviceHistory, now_s: float) -> DeviceHistory:
    """Extend flapping to half an hour after the last of three changes within the window."""
    until_s = history.flapping_until_s
    for port in history.ports:
        edges = [at for at in port.edges if now_s - at < FLAP_WINDOW_S]
        steps = [step for step in port.steps if now_s - step[0] < FLAP_WINDOW_S]
        if len(edges) >= FLAP_EDGES:
            until_s = max(until_s, edges[-1] + FLAP_HOLD_S)
        if sum(growth for _, growth in steps) >= FLAP_EDGES:
            until_s = max(until_s, steps[-1][0] + FLAP_HOLD_S)
    return replace(history, flapping_until_s=until_s)


def _apply_warnings(health: Health, *, lag_degraded: bool, is_flapping: bool) -> Health:
    """Return a suspect health for a healthy one if the bond is degraded or the link flaps."""
    if health.state is not HealthState.HEALTHY or not (lag_degraded or is_flapping):
        return health
    return health_of("LagDegraded" if lag_degraded else "LinkFlapping", HealthState.SUSPECT)


def observe_ports(
    history: DeviceHistory,
    ports: tuple[PortReading, ...],
    *,
    now_s: float,
    wall_s: float,
    policy: str = "any",
    lag_degraded: bool = False,
) -> DeviceHistory:
    """Return the history with one more reading of the ports; its `health` may be published.

    The first reading counts at once. A device goes out of service if readings agree for two
    seconds, and back into service if they agree for ten.
    """
    updated = {
        reading.number: _update_port(history.port(reading.number), reading, now_s)
        for reading in ports
    }
    history = _hold_flapping(_with_ports(history, updated), now_s)
    current = judge_ports(ports, history.used_ports, policy)
    current = _apply_warnings(
        current, lag_degraded=lag_degraded, is_flapping=now_s < history.flapping_until_s
    )
    published = history.health
    if published is None:
        return replace(history, health=current)
    if current.reason == "PortStateUnknown" or current == replace(published, since_s=None):
        return replace(history, doubt_s=None)
    if current.is_in_service != published.is_in_service:
        since_s = now_s if history.doubt_s is None else history.doubt_s
        needed_s = CONFIRM_UP_S if current.is_in_service else CONFIRM_DOWN_S
        if now_s - since_s < needed_s:
            return replace(history, doubt_s=since_s)
    return replace(history, health=replace(current, since_s=wall_s), doubt_s=None)


class ErrorWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Error counters of one port at the start of the current five minutes."""

    since_s: float
    base: tuple[tuple[str, int], ...]
    is_reported: bool = False  # once in each window


def check_errors(
    window: ErrorWindow | None,
    values: tuple[tuple[str, int], ...],
    now_s: float,
    limits: Mapping[str, int] = ERROR_LIMITS,
) -> tuple[ErrorWindow, str]:
    """Compare counters with the start of the window; the text names those that grew too fast.

    Errors do not change the health. A new counter, or one that decreased, starts again.
    """
    if window is None or now_s - window.since_s >= ERROR_WINDOW_S:
        return ErrorWindow(since_s=now_s, base=values), ""
    current = dict(values)
    base = {name: min(value, current.get(name, value)) for name, value in window.base}
    base = {**current, **base}
    window = replace(window, base=tuple(base.items()))
    exceeded = [
        f"{name} +{current[name] - base[name]}"
        for name, limit in limits.items()
        if name in current and current[name] - base[name] > limit
    ]
    if window.is_reported or not exceeded:
        return window, ""
    return replace(window, is_reported=True), ", ".join(exceeded)


def pause(history: DeviceHistory) -> DeviceHistory:
    """Return the history of an absent device, without a pending change."""
    ports = tuple(replace(port, is_up=None) for port in history.ports)
    return replace(history, ports=ports, doubt_s=None)
