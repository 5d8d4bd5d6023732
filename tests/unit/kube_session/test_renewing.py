"""Credentials of a kubeconfig over time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.kube.credentials import TlsFiles
from agent.kube.endpoint import KubeconfigTarget
from agent.kube.errors import NoApiServer, Unauthorized
from agent.kube.kubeconfig import KubeconfigAccount, KubeconfigCredentials
from tests.patience import PATIENCE_S

TARGET = KubeconfigTarget(paths="/k")


class File:
    """A kubeconfig that a test rewrites; counts who reads it."""

    def __init__(self, account: KubeconfigAccount | None = None) -> None:
        self.account = account or KubeconfigAccount(
            url="https://x", tls=TlsFiles(), authorization="one"
        )
        self.reads = 0
        self.error: NoApiServer | None = None
        self.waits_for: threading.Event | None = None

    def read(self, _: KubeconfigTarget) -> KubeconfigAccount:
        self.reads += 1
        if self.waits_for is not None:
            self.waits_for.wait()
        if self.error is not None:
            raise self.error
        return self.account

    def credentials(self, clock: ManualClock, deadline_s: float = 20) -> KubeconfigCredentials:
        return KubeconfigCredentials(TARGET, clock, self.read, deadline_s)

    def write(self, authorization: str) -> None:
        self.account = replace(self.account, authorization=authorization)


def test_it_is_read_again_each_minute() -> None:
    async def run() -> None:
        file, clock = File(), ManualClock()
        credentials = file.credentials(clock)
        await credentials.open()
        file.write("two")
        clock.advance(59)
        assert await credentials.authorization() == "one"
        clock.advance(1)
        assert await credentials.authorization() == "two"
        assert file.reads == 2

    asyncio.run(run())


def test_after_a_401_it_is_read_again_sooner_but_not_for_every_401() -> None:
    async def run() -> None:
        file, clock = File(), ManualClock()
        credentials = file.credentials(clock)
        await credentials.open()
        clock.advance(10)
        file.write("two")
        credentials.expire()
        assert await credentials.authorization() == "two"
        file.write("three")
        credentials.expire()
        assert await credentials.authorization() == "two"
        clock.advance(10)
        assert await credentials.authorization() == "three"

    asyncio.run(run())


def test_an_expired_token_runs_the_plug_in_and_so_does_a_401() -> None:
    async def run() -> None:
        calls = []

        def renewed() -> str:
            calls.append(1)
            return f"renewed {len(calls)}"

        account = KubeconfigAccount(
            url="https://x", tls=TlsFiles(), authorization="one", renew_token=renewed
        )
        file, clock = File(account), ManualClock()
        credentials = file.credentials(clock)
        await credentials.open()
        clock.advance(60)
        assert await credentials.authorization() == "renewed 1"
        assert file.reads == 1
        clock.advance(10)
        credentials.expire()
        assert await credentials.authorization() == "one"
        assert file.reads == 2

    asyncio.run(run())


def test_what_fails_leaves_the_credentials_before() -> None:
    async def run() -> None:
        file, clock = File(), ManualClock()
        credentials = file.credentials(clock)
        await credentials.open()
        file.error = NoApiServer("/k: broken")
        for errors in (1, 2):
            clock.advance(60)
            assert await credentials.authorization() == "one"
            assert (credentials.read_errors, credentials.problem) == (errors, "/k: broken")
        file.error = None
        file.write("two")
        clock.advance(60)
        assert await credentials.authorization() == "two"
        assert credentials.problem == ""

    asyncio.run(run())


def test_a_plug_in_that_hangs_is_not_waited_for_and_not_started_twice() -> None:
    async def run() -> None:
        file, clock = File(), ManualClock()
        credentials = file.credentials(clock, deadline_s=0.05)
        await credentials.open()
        file.waits_for = threading.Event()
        for _ in range(3):
            clock.advance(60)
            assert await credentials.authorization() == "one"
        assert (file.reads, credentials.read_errors) == (2, 3)
        assert "does its plug-in wait for somebody" in credentials.problem
        file.write("two")
        file.waits_for.set()
        while await credentials.authorization() != "two":  # the thread ends when it ends
            clock.advance(60)
            await asyncio.sleep(0)

    asyncio.run(run())


def test_the_first_time_an_error_is_the_callers() -> None:
    async def run() -> None:
        file = File()
        file.error = NoApiServer("/k: broken")
        credentials = file.credentials(ManualClock())
        with pytest.raises(Unauthorized):
            await credentials.authorization()
        with pytest.raises(NoApiServer, match="broken"):
            await credentials.open()

    asyncio.run(run())


def test_a_token_file_is_read_as_a_pods_is(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "token").write_text("one")
        account = KubeconfigAccount(
            url="https://x", tls=TlsFiles(), token_file=str(tmp_path / "token")
        )
        clock = ManualClock()
        credentials = File(account).credentials(clock)
        await credentials.open()
        assert await credentials.authorization() == "Bearer one"
        (tmp_path / "token").write_text("two")
        credentials.expire()
        assert await credentials.authorization() == "Bearer two"
        (tmp_path / "token").unlink()
        credentials.expire()
        assert await credentials.authorization() == "Bearer two"
        assert credentials.read_errors == 1
        assert "ENOENT" in credentials.problem

    asyncio.run(run())


def test_new_certificates_of_a_plug_in_are_reported() -> None:
    async def run() -> None:
        file, clock = File(), ManualClock()
        credentials = file.credentials(clock)
        assert credentials.tls == TlsFiles()
        await credentials.open()
        file.account = replace(file.account, tls=TlsFiles(cert_file="/new"))
        clock.advance(60)
        await credentials.authorization()
        assert credentials.tls.cert_file == "/new"

    asyncio.run(run())


def test_believing_anybody_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        insecure = KubeconfigAccount(
            url="https://x", tls=TlsFiles(insecure=True), authorization="one"
        )
        clock = ManualClock()
        credentials = File(insecure).credentials(clock)
        await credentials.open()
        clock.advance(60)
        await credentials.authorization()

    asyncio.run(run())
    assert [record.message for record in caplog.records] == ["api_server_not_verified"]


def test_a_slow_plug_ins_credentials_are_used_although_the_call_has_timed_out() -> None:
    async def run() -> None:
        file, clock = File(), ManualClock()
        credentials = file.credentials(clock)
        await credentials.open()
        file.waits_for = threading.Event()
        file.write("two")
        clock.advance(60)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await credentials.authorization()
        file.waits_for.set()
        while await credentials.authorization() != "two":  # the thread ends when it ends
            await asyncio.sleep(0)
        assert file.reads == 2

    asyncio.run(run())


def test_an_error_that_nobody_thought_of_is_an_answer_too() -> None:
    def read(_: KubeconfigTarget) -> KubeconfigAccount:
        raise ZeroDivisionError("with a token in it")

    async def run() -> None:
        credentials = KubeconfigCredentials(TARGET, ManualClock(), read, deadline_s=PATIENCE_S)
        with pytest.raises(NoApiServer, match=r"/k: ZeroDivisionError$"):
            await credentials.open()

    asyncio.run(run())
