"""CEL, the language of admission policies, by an implementation of its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import cel


class CelError(Exception):
    """The expression cannot be parsed or evaluated."""


_ERRORS = (KeyError, RuntimeError, TypeError, ValueError)


@cache
def _program(expression: str) -> Any:
    try:
        return cel.compile(expression)
    except _ERRORS as error:
        raise CelError(str(error)) from error


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression; raises `CelError`."""
    try:
        return _program(expression).execute(dict(names))
    except _ERRORS as error:
        raise CelError(str(error)) from error
