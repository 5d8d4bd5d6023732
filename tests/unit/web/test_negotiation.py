from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.web.negotiation import (
    MAX_HEADER,
    accepts_gzip,
    accepts_openmetrics,
    scrape_timeout_s,
)

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;escaping=allow-utf-8;version=1.0.0;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;escaping=allow-utf-8;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; Version=1.0.0", True),
        ('application/openmetrics-text; version="1.0.0"; q=0.1', True),
        ("application/openmetrics-text, text/plain", True),
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/*", False),
        ("application/openmetrics-text;version=0.0.1,text/plain;q=0.5", False),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.4,text/plain;q=0.5", False),
        ("application/openmetrics-text;q=0.4,text/plain;q=0.3,*/*", True),
        ("application/openmetrics-text;q=0.4,text/*;q=0.5", False),
        ("application/openmetrics-text;q=0.4,*/*", False),
        ("application/openmetrics-text;q=x", False),
        ("application/openmetrics-text;q=2", False),
        ("application/openmetrics-text;q=nan", False),
        ("application/openmetrics-text-not", False),
        ("x," * MAX_HEADER + "application/openmetrics-text", False),
    ],
)
def test_openmetrics_is_sent_to_those_who_name_and_prefer_it(accept: str, wanted: bool) -> None:
    assert accepts_openmetrics(accept) is wanted


@pytest.mark.parametrize(
    ("accept_encoding", "wanted"),
    [
        *(("gzip", True), ("gzip, deflate, br", True), ("GZIP;q=0.001", True), ("x-gzip", True)),
        *(("*", True), ("*;q=0", False), ("deflate, *;q=0.5", True), ("gzip;q=0, *", False)),
        *(("", False), ("identity", False), ("gzip;q=0", False), ("gzip;q=0.0", False)),
        *(("gzip;q=0.5, identity", False), ("gzip, identity;q=0.5", True), ("br", False)),
        *(("gzip, identity", True), ("notgzip", False), ("gzip;q=-1", False)),
    ],
)
def test_gzip_is_sent_to_those_who_accept_and_prefer_it(accept_encoding: str, wanted: bool) -> None:
    assert accepts_gzip(accept_encoding) is wanted


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        *(("10", 10.0), ("0.5", 0.5), ("999999", 3600.0), ("1.", 1.0)),
        *(("", None), ("0", None), ("-1", None), ("nan", None), ("inf", None), ("1e3", None)),
    ],
)
def test_the_timeout_of_a_scraper_is_a_positive_number(header: str, wanted: float | None) -> None:
    assert scrape_timeout_s(header) == wanted


@given(st.text())
def test_any_header_is_answered(text: str) -> None:
    assert accepts_openmetrics(text) in (True, False)
    assert accepts_gzip(text) in (True, False)
    scrape_timeout_s(text)
