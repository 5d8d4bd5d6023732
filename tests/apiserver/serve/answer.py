"""Answers, before they are put on the wire."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.apiserver.refusal import Refusal

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class Answer(msgspec.Struct, kw_only=True):
    """A whole answer; `body` is encoded as late as possible, so that faults can change it."""

    status: int = 200
    body: Any = None
    raw: bytes | None = None
    content_type: str = JSON
    headers: dict[str, str] = {}

    def encoded(self) -> bytes:
        """Return the bytes of the body."""
        if self.raw is not None:
            return self.raw
        return msgspec.json.encode(self.body) + b"\n"


def refused(refusal: Refusal) -> Answer:
    """Return the answer that says no."""
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(int(refusal.retry_after_s))
    if refusal.plain:
        raw = f"{refusal.message}\n".encode()
        return Answer(status=refusal.code, raw=raw, content_type=TEXT, headers=headers)
    return Answer(status=refusal.code, body=refusal.body(), headers=headers)
