"""Statements about cards, as people write them in tests, to the lines of the stub's scenario.

They are described in `tests/fault/nvml_stub.py`. Later statements add to earlier ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

_RENAMED = {"sm": "clock.1", "memclock": "clock.2", "uncorrected": "ecc.1.0"}
_PROC = ("pid", "mem", "sm", "ts", "gi", "ci", "list")
_EVENT = ("type", "data", "gi", "ci", "at")
_SIGNAL = 11  # of a crash


class Translator:
    """Turns statements into lines; numbers what has no number of its own."""

    def __init__(self) -> None:
        self._faults: list[str] = []
        self._procs = count()
        self._events = count()
        self._bindings = count()

    def lines(self, statements: Iterable[str]) -> Iterator[str]:
        """Yield the lines. Of faults the first statement that fits counts: they come reversed."""
        for statement in statements:
            words = _words(statement)
            if words:
                yield from self._lines(words)
        yield from reversed(self._faults)

    def _lines(self, words: Sequence[str]) -> Iterator[str]:
        what, *rest = words
        if what in ("error", "delay", "hang", "crash", "fill"):
            self._faults.append(_fault(what, rest))
        elif what == "lost":
            self._faults.append(f"call.*.{rest[0]}.ret 15")
        elif what == "system":
            yield from _members("system", rest)
        elif what == "binding":
            yield f"binding.{next(self._bindings)} {_named(rest).get('type', '0')}"
        else:
            yield from self._of_card(what, int(rest[0]), rest[1:])

    def _of_card(self, what: str, card: int, rest: Sequence[str]) -> Iterator[str]:
        named = _named(rest)
        if what in ("gpu", "fabric"):
            yield f"{what}.{card} 1"
            yield from _members(f"{what}.{card}", rest)
        elif what in ("mig", "profile", "link"):
            yield f"{what}.{card}.{rest[0]} 1"
            # an instance that has no compute instance says so: -1
            reports = [word.replace("=na", "=-1") for word in rest[1:]]
            yield from _members(f"{what}.{card}.{rest[0]}", reports)
        elif what == "proc":
            yield f"proc.{card}.{next(self._procs)} {_joined(named, _PROC)}"
        elif what == "field":
            number, _, scope = rest[0].partition(":")
            yield f"field.{card}.{int(number)}.{int(scope or '0', 0)} {rest[1]};{rest[-1]}"
        elif what == "gpm":
            yield f"gpm.{card} 1"
            yield f"gpm.{card}.{named.get('gi', '-1')}.{rest[0]} {rest[-1]}"
        elif what == "event":
            yield f"event.{next(self._events)} {card};{_joined(named, _EVENT)}"
        elif what == "ancestor":
            yield f"ancestor.{card}.{rest[0]} {rest[1]}"
            yield f"ancestor.{rest[0]}.{card} {rest[1]}"
        else:
            raise ValueError(f"no statement: {what}")


def _words(statement: str) -> list[str]:
    lexer = shlex.shlex(statement, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "#", ""
    return list(lexer)


def _named(words: Iterable[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words)
    return {key: "" if value == "na" else value for key, equals, value in pairs if equals}


def _members(path: str, words: Iterable[str]) -> Iterator[str]:
    for key, value in _named(words).items():
        yield f"{path}.{_RENAMED.get(key, key) if path.startswith('gpu') else key} {value}"


def _joined(named: dict[str, str], keys: Iterable[str]) -> str:
    return ";".join(named.get(key, "") for key in keys)


def _fault(what: str, words: Sequence[str]) -> str:
    symbol, *rest = words
    limit = f" {rest.pop()}" if rest and rest[-1].startswith("x") else ""
    if what == "delay":
        return f"call.{symbol}.sleep_ms {rest[0]}{limit}"
    value = str(_SIGNAL) if what == "crash" else "1" if what == "hang" else rest.pop()
    scope = f".{rest[0]}" if rest else ""
    behaviour = {"error": "ret", "hang": "hang", "crash": "abort", "fill": "fill"}[what]
    return f"call.{symbol}{scope}.{behaviour} {value}{limit}"
