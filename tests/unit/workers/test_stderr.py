from __future__ import annotations

import logging

import pytest

from agent.workers import worker_process


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(r, "line", "") for r in caplog.records if r.getMessage() == "worker_stderr"]


def test_lines_are_logged_however_they_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        log = worker_process.StderrLog("x")
        for chunk in (b"one\ntw", b"o\n\nthr", b"ee"):
            log.feed(chunk)
        log.end()
    assert _lines(caplog) == ["one", "two", "three"]


def test_an_endless_line_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        log = worker_process.StderrLog("x")
        for _ in range(1000):
            log.feed(b"x" * 1000)
        log.end()
    assert _lines(caplog) == ["x" * worker_process.MAX_STDERR_LINE]


def test_too_many_lines_are_counted_instead(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        log = worker_process.StderrLog("x")
        log.feed(b"again\n" * (worker_process.MAX_STDERR_LINES + 7))
        log.end()
    assert len(_lines(caplog)) == worker_process.MAX_STDERR_LINES
    assert caplog.records[-1].getMessage() == "worker_stderr_cut"
    assert vars(caplog.records[-1])["lines"] == 7
