"""The table of faults: each entry names a file, a text in it, and the tests that should fail."""

from __future__ import annotations

import builtins
import symtable
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("table.toml")

_MODULE_NAMES = {"__file__", "__name__"}


class BadEntry(Exception):
    """An entry does not fit the tree; the message names the entry."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One small fault. `find` occurs exactly once in `file`, and `put` replaces it."""

    name: str
    file: str
    find: str
    put: str
    tests: tuple[str, ...]

    def mutate(self, source: str) -> str:
        """Return the source with the fault; raise `BadEntry` unless the text occurs once."""
        count = source.count(self.find)
        if count != 1:
            raise BadEntry(f"{self.name}: the text occurs {count} times in {self.file}, not once")
        return source.replace(self.find, self.put)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fault: tuple[Fault, ...]


def read_table(path: Path = TABLE) -> tuple[Fault, ...]:
    """Return all entries; raise `BadEntry` for a table that cannot be read or names one twice."""
    try:
        faults = msgspec.toml.decode(path.read_bytes(), type=_Table).fault
    except msgspec.DecodeError as error:
        raise BadEntry(f"{path.name}: {error}") from error
    names = [fault.name for fault in faults]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadEntry(f"{twice[0]}: two entries have this name")
    return faults


def _unbound_names(module: symtable.SymbolTable) -> set[str]:
    """Return the names that the module reads and does not bind; a fault with one proves nothing."""
    bound = {symbol.get_name() for symbol in module.get_symbols() if not _is_only_read(symbol)}
    read: set[str] = set()
    scopes = [module]
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        read |= {
            symbol.get_name()
            for symbol in scope.get_symbols()
            if symbol.is_referenced() and (symbol.is_global() or scope is module)
        }
    return read - bound - set(dir(builtins)) - _MODULE_NAMES


def _is_only_read(symbol: symtable.Symbol) -> bool:
    return not (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace())


def _check_python(fault: Fault, mutated: str) -> None:
    try:
        compile(mutated, fault.file, "exec")
    except SyntaxError as error:
        raise BadEntry(f"{fault.name}: the replacement is not Python: {error.msg}") from error
    if names := _unbound_names(symtable.symtable(mutated, fault.file, "exec")):
        raise BadEntry(f"{fault.name}: nothing is named {sorted(names)[0]}")


def check_entry(fault: Fault, root: Path = ROOT) -> None:
    """Raise `BadEntry` unless the fault fits the tree and leaves Python that can be compiled.

    Other files than those of Python, as manifests, are not compiled.
    """
    path = root / fault.file
    if not path.is_file():
        raise BadEntry(f"{fault.name}: there is no file {fault.file}")
    source = path.read_text(encoding="utf-8")
    mutated = fault.mutate(source)
    if mutated == source:
        raise BadEntry(f"{fault.name}: the replacement is the text that it replaces")
    if path.suffix == ".py":
        _check_python(fault, mutated)
    for test in fault.tests:
        if not (root / test).exists():
            raise BadEntry(f"{fault.name}: there is no test {test}")
    if not fault.tests:
        raise BadEntry(f"{fault.name}: no test is named")


def choose(faults: tuple[Fault, ...], names: list[str]) -> tuple[Fault, ...]:
    """Return the faults whose name is, or begins with, one of `names`; all without names."""
    if not names:
        return faults
    chosen = tuple(f for f in faults if any(f.name.startswith(name) for name in names))
    if unused := [n for n in names if not any(f.name.startswith(n) for f in chosen)]:
        raise BadEntry(f"{unused[0]}: no entry has this name")
    return chosen
