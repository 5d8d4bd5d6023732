"""Chromium without a screen, spoken to by its DevTools protocol over loopback."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.patience import PATIENCE_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DEADLINE_S = PATIENCE_S
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.problems: list[str] = []  # what the console said of errors

    async def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        await self._socket.send_json(message)
        while True:
            answer = await self._socket.receive_json(timeout=DEADLINE_S)
            if answer.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.problems.append(str(answer["params"]))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    async def open(
        self, url: str, width: int, height: int, *, scripts: bool = False, scheme: str = "light"
    ) -> None:
        """Load a page in a window of that size; its scripts are off, unless they are wanted."""
        await self.call("Log.enable")
        await self.call("Runtime.enable")
        await self.call("Page.enable")
        await self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", media="", features=features)
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        await self.call("Page.navigate", url=url)
        until = asyncio.get_running_loop().time() + DEADLINE_S
        while await self.value("document.readyState") != "complete":
            assert asyncio.get_running_loop().time() < until, "the page does not load"

    async def value(self, expression: str) -> Any:
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    async def wait_for(self, expression: str) -> None:
        """Wait until an expression is true."""
        until = asyncio.get_running_loop().time() + DEADLINE_S
        while not await self.value(expression):
            assert asyncio.get_running_loop().time() < until, f"not in time: {expression}"
            await asyncio.sleep(0.02)

    async def press(self, key: str) -> None:
        """Press and release a key, such as Tab or Enter."""
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text)

    async def picture(self) -> bytes:
        """Return what is on the screen as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot"))["data"])


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """Start Chromium with a profile of its own; it is ended by its own process id."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "HOME": profile},
        )
        try:
            assert process.stderr is not None
            async with asyncio.timeout(DEADLINE_S):
                port = await _port(process.stderr)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    tabs = await answer.json()
                url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
                async with session.ws_connect(url, max_msg_size=64 << 20) as socket:
                    yield Page(socket)
        finally:
            process.kill()
            await process.wait()


async def _port(stderr: asyncio.StreamReader) -> int:
    while line := (await stderr.readline()).decode():
        if result := re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)/", line):
            return int(result[1])
    raise AssertionError("Chromium ended before it listened")
