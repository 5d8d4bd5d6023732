"""Lets a guest's kernel find cache allocation in a processor that has none.

The emulator's debugger stops the kernel where it looks for the feature: the bits are set in its
memory, and its CPUID calls for these leaves are answered. The kernel then offers its resctrl file
system with every file and check; nothing is throttled, and all counters are 0.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path

REGISTERS = (
    *("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp"),
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip"),
)
ENTRY, READY = "resctrl_late_init", "rdtgroup_init"  # between these the kernel asks
CPUID, CPU_DATA = "native_cpuid", "boot_cpu_data"

# boot_cpu_data: the words of features, and after the vendor's and the model's names the cache
FEATURE_WORDS = 0x28
VENDOR = b"GenuineIntel"
CACHE_AFTER_VENDOR = 16 + 64
RDT_A = (9, 15)
ALLOCATION = ((7, 4), (7, 6), (7, 18))  # cache, code and data apart, bandwidth
MONITORING = ((11, 0), (11, 1), (11, 2), (11, 3))
MAX_RMID, OCCUPANCY_BYTES = 63, 65536

# eax, ebx, ecx, edx of a leaf and its subleaf: 11 ways, 16 and 8 classes, two ways shared
LEAVES = {
    (0x10, 1): (10, 0x600, 4, 15),
    (0x10, 3): (89, 0, 4, 7),
    (0xF, 1): (0, OCCUPANCY_BYTES, MAX_RMID, 7),
}
HELP_S = 300.0


def parse_symbols(kallsyms: str) -> dict[str, list[int]]:
    """Return the addresses of the kernel's symbols that are needed here."""
    names = (ENTRY, READY, CPUID, CPU_DATA)
    result: dict[str, list[int]] = {name: [] for name in names}
    pattern = rf"^([0-9a-f]+) \w ({'|'.join(names)})$"
    for address, name in re.findall(pattern, kallsyms, re.MULTILINE):
        result[name].append(int(address, 16))
    return result


class Debugger:
    """The emulator's debugger: a client of gdb's remote protocol."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(HELP_S)
        self._socket.connect(str(path))
        self._buffer = b""

    def ask(self, text: str) -> str:
        """Send a command; return the answer."""
        data = text.encode()
        self._socket.sendall(b"$%b#%02x" % (data, sum(data) & 255))
        while True:
            end = self._buffer.find(b"#")
            if end >= 0 and len(self._buffer) >= end + 3:
                break
            more = self._socket.recv(65536)
            if not more:
                raise ConnectionError("the emulator ended")
            self._buffer += more
        start = self._buffer.index(b"$")
        answer, self._buffer = self._buffer[start + 1 : end], self._buffer[end + 3 :]
        self._socket.sendall(b"+")
        return answer.decode()

    def read(self, address: int, size: int) -> bytes:
        """Return memory."""
        return bytes.fromhex(self.ask(f"m{address:x},{size:x}"))

    def read_word(self, address: int, size: int = 4) -> int:
        """Return a number in memory."""
        return int.from_bytes(self.read(address, size), "little")

    def write_word(self, address: int, value: int) -> None:
        """Write 32 bits of memory."""
        self.ask(f"M{address:x},4:{value.to_bytes(4, 'little').hex()}")

    def set_breakpoint(self, address: int) -> None:
        """Stop before this instruction from now on."""
        self.ask(f"Z1,{address:x},1")

    def clear_breakpoint(self, address: int) -> None:
        """Stop there no more."""
        self.ask(f"z1,{address:x},1")

    def registers(self) -> dict[str, int]:
        """Return the general registers of the processor that stopped."""
        raw = bytes.fromhex(self.ask("g").replace("x", "0"))
        words = (raw[place : place + 8] for place in range(0, len(raw), 8))
        return {
            name: int.from_bytes(word, "little")
            for name, word in zip(REGISTERS, words, strict=False)
        }

    def set_register(self, name: str, value: int) -> None:
        """Set one register."""
        raw = bytearray(bytes.fromhex(self.ask("g").replace("x", "0")))
        place = REGISTERS.index(name) * 8
        raw[place : place + 8] = value.to_bytes(8, "little")
        self.ask(f"G{raw.hex()}")

    def detach(self) -> None:
        """Let the machine run on alone."""
        self.ask("D")
        self._socket.close()


def help_kernel(debugger: Debugger, symbols: Mapping[str, list[int]]) -> None:
    """Run the paused machine until its kernel has found the feature; raise `LookupError` if not."""
    if not all(symbols.values()):
        raise LookupError(f"the kernel has no symbol {[k for k, v in symbols.items() if not v]}")
    (entry,), (ready,), (data,) = symbols[ENTRY], symbols[READY], symbols[CPU_DATA]
    debugger.ask("?")
    debugger.set_breakpoint(entry)
    debugger.ask("c")
    debugger.clear_breakpoint(entry)
    _set_features(debugger, data)
    for address in (*symbols[CPUID], ready):
        debugger.set_breakpoint(address)
    while True:
        debugger.ask("c")
        registers = debugger.registers()
        if registers["rip"] == ready:
            break
        _answer_cpuid(debugger, registers)
    for address in (*symbols[CPUID], ready):
        debugger.clear_breakpoint(address)
    debugger.detach()


def _set_features(debugger: Debugger, data: int) -> None:
    for word, bit in (RDT_A, *ALLOCATION, *MONITORING):
        place = data + FEATURE_WORDS + 4 * word
        debugger.write_word(place, debugger.read_word(place) | 1 << bit)
    vendor = debugger.read(data, 512).find(VENDOR)
    if vendor < 0:
        raise LookupError("the kernel's processor is not Intel's")
    cache = data + vendor + CACHE_AFTER_VENDOR  # size, alignment, RMIDs, bytes of a count, width
    for place, value in ((8, MAX_RMID), (12, OCCUPANCY_BYTES), (16, 0)):
        debugger.write_word(cache + place, value)


def _answer_cpuid(debugger: Debugger, registers: Mapping[str, int]) -> None:
    """Answer the kernel's wrapper of the instruction: pointers to eax, ebx, ecx and edx."""
    leaf = debugger.read_word(registers["rdi"])
    subleaf = debugger.read_word(registers["rdx"])
    values = LEAVES.get((leaf, subleaf))
    if values is None:
        debugger.clear_breakpoint(registers["rip"])
        debugger.ask("s")
        debugger.set_breakpoint(registers["rip"])
        return
    for name, value in zip(("rdi", "rsi", "rdx", "rcx"), values, strict=True):
        debugger.write_word(registers[name], value)
    debugger.set_register("rip", debugger.read_word(registers["rsp"], 8))
    debugger.set_register("rsp", registers["rsp"] + 8)
