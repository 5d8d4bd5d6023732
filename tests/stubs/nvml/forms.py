"""Forms that most symbols of NVML have: of a card, one text or number to fill."""

from __future__ import annotations

from tests.stubs.describe import Get, Symbol

CARD = "void *device"
MIG = "mig *instance"  # a card or an instance


def text(name: str, member: str) -> Symbol:
    arguments = f"{CARD}, char *to, unsigned room"
    return Symbol(f"nvmlDeviceGet{name}", arguments, {"to": Get(f"gpu.{{device}}.{member}")})


def number(name: str, member: str, type_: str = "unsigned", since: int = 0) -> Symbol:
    answer = {"to": Get(f"gpu.{{device}}.{member}")}
    return Symbol(f"nvmlDeviceGet{name}", f"{CARD}, {type_} *to", answer, since=since)


def numbers(
    name: str, member: str, names: tuple[str, ...], separator: str, type_: str = "unsigned"
) -> Symbol:
    answer = {
        one: Get(f"gpu.{{device}}.{member}", part=place, separator=separator)
        for place, one in enumerate(names)
    }
    to = ", ".join(f"{type_} *{one}" for one in names)
    return Symbol(f"nvmlDeviceGet{name}", f"{CARD}, {to}", answer)


def code(name: str, arguments: str, answer: str, since: int = 0) -> Symbol:
    return Symbol(f"nvml{name}", arguments, f"    return {answer};", since=since)


def processes(kind: str, letter: str) -> list[Symbol]:
    of_510 = [
        code(
            f"DeviceGet{kind}RunningProcesses{version}",
            f"{CARD}, unsigned *count, Process *to",
            f"nvml_processes(&call, count, to, NULL, '{letter}')",
            510,
        )
        for version in ("_v2", "_v3")
    ]
    if letter == "m":
        return of_510
    first = code(
        f"DeviceGet{kind}RunningProcesses",
        f"{CARD}, unsigned *count, OldProcess *to",
        f"nvml_processes(&call, count, NULL, to, '{letter}')",
    )
    return [first, *of_510]
