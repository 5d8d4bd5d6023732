"""What a PromQL expression reads: its metrics, the labels that it selects and groups by.

A tokeniser and a few rules about what stands beside a name; promtool checks the grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKENS = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
    |(?P<number>(?:[0-9]+(?:ms|[smhdwy]))+|0x[0-9a-fA-F]+|(?:[0-9]*\.)?[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<variable>\$[A-Za-z_]+)
    |(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
    |(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){}\[\],@:])""",
    re.VERBOSE,
)
_LABEL_LISTS = frozenset(("by", "without", "on", "ignoring", "group_left", "group_right"))
_OUTPUT_LISTS = frozenset(("by", "group_left", "group_right"))
_WORDS = frozenset(("and", "or", "unless", "bool", "offset", "inf", "nan"))


class Token(NamedTuple):
    """One piece of an expression."""

    kind: str
    text: str


class Matcher(NamedTuple):
    """One condition in braces."""

    label: str
    sign: str
    text: str

    @property
    def values(self) -> tuple[str, ...]:
        """Return the values that are listed; `a|b` lists two."""
        return tuple(self.text.split("|")) if "~" in self.sign else (self.text,)


class Selector(NamedTuple):
    """A metric with its matchers."""

    metric: str
    matchers: tuple[Matcher, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels of the matchers."""
        return tuple(matcher.label for matcher in self.matchers)


class Query(NamedTuple):
    """What an expression reads."""

    selectors: tuple[Selector, ...]
    grouped: frozenset[str]  # all labels in lists: by, on, without …
    outputs: frozenset[str]  # those that results can have


class BadQuery(Exception):
    """The text is no expression that this module understands."""


def tokenise(expression: str) -> Iterator[Token]:
    """Yield the pieces of an expression without spaces and comments."""
    place = 0
    while place < len(expression):
        match = _TOKENS.match(expression, place)
        if match is None:
            raise BadQuery(f"{expression[place : place + 20]!r} in {expression!r}")
        place = match.end()
        if match.lastgroup != "space":
            yield Token(str(match.lastgroup), match[0])


def parse(expression: str) -> Query:
    """Return what an expression reads."""
    tokens = [*tokenise(expression), *[Token("end", "")] * 4]
    selectors: list[Selector] = []
    grouped: set[str] = set()
    outputs: set[str] = set()
    place = 0
    while tokens[place].kind != "end":
        token, following = tokens[place], tokens[place + 1]
        place += 1
        if token.text == "{":
            raise BadQuery(f"a selector without a metric in {expression!r}")
        if token.kind != "name":
            continue
        if token.text in _LABEL_LISTS:
            if following.text == "(":
                labels, place = _read_labels(tokens, place + 1)
                grouped |= set(labels)
                outputs |= set(labels) if token.text in _OUTPUT_LISTS else set()
        elif following.text == "{":
            matchers, place = _read_matchers(tokens, place + 1)
            selectors.append(Selector(token.text, matchers))
        elif token.text not in _WORDS and following.text != "(" and not _is_call(tokens, place):
            selectors.append(Selector(token.text))
    return Query(tuple(selectors), frozenset(grouped), frozenset(outputs))


def _is_call(tokens: list[Token], place: int) -> bool:
    """Return whether an aggregation follows, as in `sum by (node) (…)`."""
    return tokens[place].text in ("by", "without")


def _read_labels(tokens: list[Token], place: int) -> tuple[tuple[str, ...], int]:
    """Return the names up to the closing bracket, and the place behind it."""
    labels = []
    while tokens[place].text != ")":
        if tokens[place].kind == "end":
            raise BadQuery("no closing bracket")
        if tokens[place].kind == "name":
            labels.append(tokens[place].text)
        place += 1
    return tuple(labels), place + 1


def _read_matchers(tokens: list[Token], place: int) -> tuple[tuple[Matcher, ...], int]:
    """Return the matchers up to the closing brace, and the place behind it."""
    matchers = []
    while tokens[place].text != "}":
        label, sign, text, comma = tokens[place : place + 4]
        if (label.kind, sign.kind, text.kind) != ("name", "sign", "string"):
            raise BadQuery(f"no matcher: {label.text} {sign.text} {text.text}")
        matchers.append(Matcher(label.text, sign.text, text.text[1:-1]))
        place += 4 if comma.text == "," else 3
    return tuple(matchers), place + 1
