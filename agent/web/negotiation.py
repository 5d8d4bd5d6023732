"""Which format and which coding of a page a client accepts (RFC 9110, sections 12.5.1 and 12.5.3).

A header that cannot be parsed accepts what every client can read: the text format, uncompressed.
"""

from __future__ import annotations

import re

OPENMETRICS, OPENMETRICS_VERSION = "application/openmetrics-text", "1.0.0"
TEXT_RANGES = ("text/plain", "text/*", "*/*")  # the most specific one decides
MAX_HEADER = 4096  # characters; a longer header is not read
MAX_SCRAPE_S = 3600.0

_WEIGHT = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
_SECONDS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{0,9})?")

_Choice = tuple[str, dict[str, str], float]  # name, parameters without q, weight


def _parse_choices(header: str) -> list[_Choice]:
    """Return the elements of an `Accept` or `Accept-Encoding` header; invalid ones are left out."""
    choices = []
    for element in header.split(",") if len(header) <= MAX_HEADER else ():
        name, *parts = (part.strip() for part in element.split(";"))
        pairs = (part.partition("=") for part in parts if part)
        parameters = {key.strip().lower(): value.strip(' "') for key, _, value in pairs}
        weight = parameters.pop("q", "1")
        if name and _WEIGHT.fullmatch(weight):
            choices.append((name.lower(), parameters, float(weight)))
    return choices


def accepts_openmetrics(accept: str) -> bool:
    """Return whether the client names OpenMetrics 1.0.0 and does not prefer the text format."""
    choices = _parse_choices(accept)
    openmetrics = max(
        (
            weight
            for name, parameters, weight in choices
            if name == OPENMETRICS
            and parameters.get("version", OPENMETRICS_VERSION) == OPENMETRICS_VERSION
        ),
        default=0.0,
    )
    if openmetrics == 0:
        return False
    for media_range in TEXT_RANGES:
        weights = [weight for name, _, weight in choices if name == media_range]
        if weights:
            return openmetrics >= max(weights)
    return True


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the client accepts gzip and does not prefer the uncompressed page."""
    weights = {name: weight for name, _, weight in _parse_choices(accept_encoding)}
    gzip = weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0)))
    return gzip > 0 and gzip >= weights.get("identity", 0.0)


def scrape_timeout_s(header: str) -> float | None:
    """Return the seconds of `X-Prometheus-Scrape-Timeout-Seconds`; `None` if there are none."""
    if not _SECONDS.fullmatch(header):
        return None
    seconds = float(header)
    return min(seconds, MAX_SCRAPE_S) if seconds > 0 else None
