"""The health of each RDMA device from the kernel log, its device node and its ports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.snapshot.device import Health
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceEvent, Problem
from plugins.vendors.rdma.health import ports
from plugins.vendors.rdma.health.kernel_log import KernelLogFaults
from plugins.vendors.rdma.health.ports import DeviceHistory, PortHistory, PortReading


class DeviceHealthTracker:
    """The health of all devices by key, which is the address of the function, if there is one.

    For one thread at a time.
    """

    def __init__(self, host: HostFiles, policy: str, *, replay: bool) -> None:
        self._policy = policy
        self._log_faults = KernelLogFaults(host, replay=replay)
        self._histories: dict[str, DeviceHistory] = {}
        self._faults: dict[str, Health] = {}
        self._reported: dict[str, Health] = {}

    @property
    def problem(self) -> Problem | None:
        """Return why the kernel log is not read; `None` if it is."""
        return self._log_faults.problem

    def read_log(self, now_s: float) -> None:
        """Read new records of the kernel log."""
        self._log_faults.read(now_s)

    def retain(self, present_keys: Iterable[str], absent: Mapping[str, bool]) -> None:
        """Drop all other devices. Drop the log of `absent` ones that are in no pod (`False`)."""
        self._log_faults.forget(key for key, in_pod in absent.items() if not in_pod)
        present = set(present_keys)
        histories = {
            key: old for key, old in self._histories.items() if key in present or key in absent
        }
        self._histories = {
            key: history if key in present else ports.pause(history)
            for key, history in histories.items()
        }
        self._reported = {key: health for key, health in self._reported.items() if key in present}
        self._faults = {key: health for key, health in self._faults.items() if key in present}

    def expect(self, key: str, used_ports: Iterable[int], fault: Health | None) -> None:
        """Set the used ports, and a fault that applies whatever the state of the ports is."""
        self._histories[key] = ports.mark_used_ports(self._history(key), used_ports)
        self._faults.pop(key, None)
        if fault is not None:
            self._faults[key] = fault

    def observe(
        self,
        key: str,
        readings: tuple[PortReading, ...],
        *,
        now_s: float,
        wall_s: float,
        lag_degraded: bool,
    ) -> DeviceEvent | None:
        """Add a reading of the ports; return an event if it changed the health."""
        self._histories[key] = ports.observe_ports(
            self._history(key),
            readings,
            now_s=now_s,
            wall_s=wall_s,
            policy=self._policy,
            lag_degraded=lag_degraded,
        )
        active = any(port.state == ports.ACTIVE for port in readings)
        self._log_faults.check_port(key, active=active, now_s=now_s)
        now = self.verdict(key)
        before = self._reported.get(key, now)
        if now is None:
            return None
        self._reported[key] = now
        if before == now:
            return None
        return DeviceEvent(key=key, reason=now.reason, message=now.message, state=now.state)

    def verdict(self, key: str) -> Health | None:
        """Return the gravest health now; `None` without any reading of the device."""
        health = self._history(key).health
        fault = self._faults.get(key)
        if health is not None and health.is_in_service and fault is not None:
            health = fault
        return self._log_faults.health(key) or health

    def clear(self, key: str) -> bool:
        """Clear the fault of a device in the kernel log; return whether there was one."""
        has_fault = self._log_faults.health(key) is not None
        self._log_faults.forget((key,))
        return has_fault

    def used_ports(self, key: str) -> tuple[int, ...]:
        """Return the ports that were active in this boot or are expected to be."""
        return tuple(sorted(self._history(key).used_ports))

    def port(self, key: str, number: int) -> PortHistory:
        """Return the history of a port."""
        return self._history(key).port(number)

    def count_downed(self, key: str, number: int, value: int, now_s: float) -> None:
        """Add a value of a port's counter of lost links."""
        self._histories[key] = ports.count_downed(self._history(key), number, value, now_s)

    def close(self) -> None:
        """Close the log."""
        self._log_faults.close()

    def _history(self, key: str) -> DeviceHistory:
        return self._histories.get(key, DeviceHistory())
