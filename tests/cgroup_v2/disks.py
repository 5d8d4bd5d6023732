"""The IO controller of version 2 in memory, with the answers of Linux 6.1.

`tests/guest/file_table.py` has the answers that the kernel in the virtual machine gives, and
`tests/unit/cgroup/test_fake_v2.py` compares the fake with them.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

WHOLE_DISKS = ("254:0", "254:16")
PARTITION = "259:0"
NO_LIMITS = {"rbps": "max", "wbps": "max", "riops": "max", "wiops": "max"}
AUTOMATIC_QOS = {
    "rpct": "0.00",
    "rlat": "25000",
    "wpct": "0.00",
    "wlat": "25000",
    "min": "1.00",
    "max": "10000.00",
}
AUTOMATIC_MODEL = {
    "model": "linear",
    "rbps": "488636629",
    "rseqiops": "8932",
    "rrandiops": "8518",
    "wbps": "427891549",
    "wseqiops": "28755",
    "wrandiops": "21940",
}
DECIMALS = {"rpct": 100, "wpct": 100, "min": 10000, "max": 10000}
MAX_IOPS = (1 << 32) - 1


class CostControl:
    """Latency targets and cost model of one disk, once somebody has set any of them."""

    def __init__(self) -> None:
        self.enable = "0"
        self.qos: Mapping[str, str] | None = None  # None: automatic
        self.model: Mapping[str, str] | None = None

    def text(self, file: str) -> str:
        """Return the line without the disk."""
        values = self.qos if file == "io.cost.qos" else self.model
        automatic = AUTOMATIC_QOS if file == "io.cost.qos" else AUTOMATIC_MODEL
        shown = {"ctrl": "auto" if values is None else "user", **(values or automatic)}
        if file == "io.cost.qos":
            shown = {"enable": self.enable, **shown}
        return " ".join(f"{name}={value}" for name, value in shown.items())


class GroupDisks:
    """The lines of one group."""

    def __init__(self) -> None:
        self.limits: dict[str, dict[str, str]] = {}
        self.weights: dict[str, int] = {}


class FakeDisks:
    """All disks of the machine."""

    def __init__(self) -> None:
        self.costs: dict[str, CostControl] = {}

    def read(self, file: str, group: GroupDisks, *, is_root: bool) -> str:
        """Return a file; raise `OSError`."""
        if file == "io.max" and not is_root:
            return "".join(
                f"{disk} {' '.join(f'{name}={value}' for name, value in limits.items())}\n"
                for disk, limits in sorted(group.limits.items())
            )
        if file == "io.weight" and not is_root:
            lines = (f"{disk} {weight}\n" for disk, weight in sorted(group.weights.items()))
            return "default 100\n" + "".join(lines)
        if file in ("io.cost.qos", "io.cost.model") and is_root:
            return "".join(f"{disk} {one.text(file)}\n" for disk, one in sorted(self.costs.items()))
        raise OSError(errno.ENOENT, file)

    def write(self, file: str, group: GroupDisks, text: str) -> int:
        """Write a line; return the errno, 0 if it is accepted."""
        disk, *words = text.split()
        if disk not in WHOLE_DISKS:
            return errno.ENODEV
        if file == "io.weight":
            return self._set_weight(group, disk, words)
        pairs = [word.partition("=") for word in words]
        if any(not equals for _, equals, _ in pairs):
            return errno.EINVAL
        values = {name: value for name, _, value in pairs}
        if file == "io.max":
            return _set_limits(group, disk, values)
        if file == "io.cost.qos":
            return self._set_qos(disk, values)
        return self._set_model(disk, values)

    def _set_weight(self, group: GroupDisks, disk: str, words: list[str]) -> int:
        if disk not in self.costs:
            return errno.EOPNOTSUPP
        if words == ["default"]:
            group.weights.pop(disk, None)
            return 0
        if len(words) != 1 or not words[0].isdecimal() or not 1 <= int(words[0]) <= 10000:
            return errno.EINVAL
        group.weights[disk] = int(words[0])
        return 0

    def _set_qos(self, disk: str, values: Mapping[str, str]) -> int:
        cost = self.costs.setdefault(disk, CostControl())
        qos = dict(cost.qos or AUTOMATIC_QOS)
        is_user = cost.qos is not None
        for name, value in values.items():
            if name == "enable" and value in ("0", "1"):
                continue
            if name == "ctrl" and value in ("auto", "user"):
                is_user = value == "user"
                continue
            canonical = _canonical(name, value) if name in AUTOMATIC_QOS else None
            if canonical is None:
                return errno.EINVAL
            qos[name], is_user = canonical, True
        cost.enable = values.get("enable", cost.enable)
        cost.qos = qos if is_user else None
        return 0

    def _set_model(self, disk: str, values: Mapping[str, str]) -> int:
        cost = self.costs.setdefault(disk, CostControl())
        model = dict(cost.model or AUTOMATIC_MODEL)
        is_user = cost.model is not None
        for name, value in values.items():
            if name == "ctrl" and value in ("auto", "user"):
                is_user = value == "user"
            elif name == "model" and value == "linear":
                continue
            elif name in AUTOMATIC_MODEL and name != "model" and value.isdecimal() and int(value):
                model[name], is_user = value, True
            else:
                return errno.EINVAL
        cost.model = model if is_user else None
        return 0


def _set_limits(group: GroupDisks, disk: str, values: Mapping[str, str]) -> int:
    limits = dict(group.limits.get(disk, NO_LIMITS))
    for name, value in values.items():
        if name not in NO_LIMITS or not (value == "max" or value.isdecimal()):
            return errno.EINVAL
        if value != "max" and not int(value):
            return errno.ERANGE
        is_none = value == "max" or (name.endswith("iops") and int(value) >= MAX_IOPS)
        limits[name] = "max" if is_none else value
    if limits == NO_LIMITS:
        group.limits.pop(disk, None)
    else:
        group.limits[disk] = limits
    return 0


def _canonical(name: str, value: str) -> str | None:
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    if name in DECIMALS:
        return f"{number:.2f}" if 0 <= number <= DECIMALS[name] else None
    return str(int(number)) if number >= 0 and number == int(number) else None
