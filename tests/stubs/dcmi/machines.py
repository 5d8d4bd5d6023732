"""Scenarios of whole Ascend machines: the chips of `fixtures/hosts/atlas-*`."""

from __future__ import annotations

from itertools import combinations

HCCS, SYS, SIO, HCCS_SW = 0, 4, 5, 6

# bus, 0.1 W, degrees and MB in use, as npu-smi printed them on an idle machine
IDLE_910B3 = (
    ("c1", 1018, 43, 3318),
    ("c2", 920, 39, 3314),
    ("81", 1020, 40, 3314),
    ("82", 998, 40, 3314),
    ("01", 986, 45, 3314),
    ("02", 997, 44, 3314),
    ("41", 1038, 45, 3314),
    ("42", 982, 44, 3315),
)
A3_BUSES = tuple(f"{root + chip:02x}" for root in range(0, 256, 32) for chip in (1, 3))


def chip(card: int, number: int = 0, /, **facts: object) -> list[str]:
    """Return the lines of one chip; `None` takes a line away."""
    return [f"chip.{card}.{number}.{k} {v}" for k, v in facts.items() if v is not None]


def b3(index: int, /, **more: object) -> list[str]:
    """Return one healthy, idle 910B3 on a card of its own."""
    bus, power, temp, used = IDLE_910B3[index % 8]
    facts: dict[str, object] = {
        "logic": index,
        "phy": index,
        "name": "910B3",
        "cores": 20,
        "aic": 20,
        "aicpu": 7,
        "board_id": "30",
        "device": "d802",
        "pci": f"0:{bus}:0:0",
        "die": f"{index:x}:0:0:0:0" if index else "0:0:0:0:1",
        "serial": f"0000000000{index:02d}",
        "hbm": 65536,
        "hbm_used": used,
        "hbm_temp": temp + 2,
        "hbm_busy": 0,
        "health": 0,
        "boot": 16,
        "power": power,
        "temp": temp,
        "volt": 87,
        "clock": 800,
        "util": 0,
        "util_12": 0,
        "util_13": 0,
        "ecc": "0:0",
        **more,
    }
    return chip(index, **facts)


def b3x8(count: int = 8) -> list[str]:
    """Return so many 910B3, each two joined over HCCS."""
    lines = [f"card_list {','.join(map(str, range(count)))}", "version 24.1.rc1"]
    lines += [line for phy in range(count) for line in b3(phy)]
    for a, b in combinations(range(count), 2):
        lines += [f"topo.{a}.0.{b}.0 {HCCS}", f"topo.{b}.0.{a}.0 {HCCS}"]
    return lines


def a3(index: int, /, **more: object) -> list[str]:
    """Return one chip of an A3 card, two to a card; the second tells no power."""
    card, number = divmod(index, 2)
    facts: dict[str, object] = {
        "logic": index,
        "phy": index,
        "name": "Ascend910",
        "cores": 24,
        "aic": 24,
        "aicpu": 7,
        "board_id": "b2",
        "device": "d803",
        "pci": f"0:{A3_BUSES[index]}:0:0",
        "die": f"a3000000:{index:x}:0:0:1",
        "hbm": 65536,
        "hbm_used": 3116 + index,
        "hbm_temp": 38,
        "hbm_busy": 0,
        "health": 0,
        "boot": 16,
        "power": 1722 if number == 0 else None,
        "temp": 36,
        "volt": 87,
        "clock": 800,
        "util": 0,
        "ecc": "0:0",
        "spod": f"{index * 65536 + 1024}:7:3",
        "sio": "0,0",
        **more,
    }
    return chip(card, number, **facts)


def a3x16() -> list[str]:
    """Return eight A3 cards: the dies of a card over SIO, all others through switches."""
    lines = [f"card_list {','.join(map(str, range(8)))}", "version 25.0.rc1", "die_policy 0"]
    lines += [f"card.{card}.chips 2" for card in range(8)]
    lines += [line for phy in range(16) for line in a3(phy)]
    for a, b in combinations(range(16), 2):
        kind = SIO if a // 2 == b // 2 else HCCS_SW
        for x, y in ((a, b), (b, a)):
            lines.append(f"topo.{x // 2}.{x % 2}.{y // 2}.{y % 2} {kind}")
    return lines
