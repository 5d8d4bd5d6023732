"""Credentials of a kubeconfig that stay good: read again, renewed, never waited for too long."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable

from msgspec.structs import replace

from agent.clock import Clock
from agent.errors import AgentError
from agent.kube.errors import NoApiServer, Unauthorized
from agent.kube.session.credentials import REREAD_S, TokenFile
from agent.kube.session.kubeconfig import Account, read_account
from agent.kube.session.target import FromKubeconfig
from agent.kube.session.trust import TlsFiles

log = logging.getLogger(__name__)

REFUSED_AGAIN_S = 10.0  # a plug-in may start a browser: not for every 401
DEADLINE_S = 30.0  # of a plug-in or an issuer

Read = Callable[[FromKubeconfig], Account]


class KubeconfigCredentials:
    """Who a kubeconfig says we are; it is read again every minute, and after a 401.

    A plug-in runs again when its token has expired, and after a 401 that is not too soon after
    the one before. What fails leaves the credentials before in use. Reading may block for ever,
    so it has a thread of its own that nobody waits for longer than `deadline_s`.
    """

    def __init__(
        self,
        target: FromKubeconfig,
        clock: Clock,
        read: Read = read_account,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Take which file; nothing is read until `open`."""
        self._target = target
        self._clock = clock
        self._read = read
        self._deadline_s = deadline_s
        self._account: Account | None = None
        self._token_file: TokenFile | None = None
        self._looked_s = 0.0
        self._refused = False
        self._looking: asyncio.Future[Account] | None = None
        self._read_errors = 0
        self._problem = ""

    @property
    def read_errors(self) -> int:
        """Count the attempts to read or renew them that failed."""
        return self._read_errors + (self._token_file.read_errors if self._token_file else 0)

    @property
    def problem(self) -> str:
        """Say why the last attempt failed; empty when it did not."""
        return self._problem or (self._token_file.problem if self._token_file else "")

    async def open(self) -> Account:
        """Read it for the first time; raise `NoApiServer` when it leads nowhere."""
        return await self._in_thread(functools.partial(self._read, self._target))

    @property
    def tls(self) -> TlsFiles:
        """Return the files of certificates; a plug-in may have made others meanwhile."""
        return self._account.tls if self._account is not None else TlsFiles()

    async def authorization(self) -> str | None:
        """Return the header's value; `None`: a certificate says who we are, or nothing does."""
        account = self._account
        if account is None:
            raise Unauthorized(str(self._target), "has not been read yet")
        if self._token_file is not None:
            return await self._token_file.authorization()
        wait_s = REFUSED_AGAIN_S if self._refused else REREAD_S
        if self._clock.monotonic() - self._looked_s >= wait_s:
            account = await self._again(account)
        return account.authorization

    def refused(self) -> None:
        """Read it again soon, and run its plug-in."""
        self._refused = True
        if self._token_file is not None:
            self._token_file.refused()

    async def _again(self, account: Account) -> Account:
        self._looked_s = self._clock.monotonic()
        work = functools.partial(_renew, account)
        if self._refused or account.renewed is None:
            work = functools.partial(self._read, self._target)
        try:
            return await self._in_thread(work)
        except AgentError as error:
            self._read_errors += 1
            self._problem = str(error)
            log.warning("kubeconfig_not_renewed", extra={"error": self._problem})
        return self._account or account

    def _came(self, looking: asyncio.Future[Account]) -> None:
        """Take what was read, whether or not the call that asked for it still waits."""
        if not looking.cancelled() and looking.exception() is None:
            self._take(looking.result())

    def _take(self, account: Account) -> None:
        if account.tls.insecure and (self._account is None or not self._account.tls.insecure):
            log.warning("api_server_not_verified", extra={"server": account.url})
        if account.token_file and self._token_file is None:
            self._token_file = TokenFile(account.token_file, self._clock)
        self._account, self._refused, self._problem = account, False, ""
        self._looked_s = self._clock.monotonic()

    async def _in_thread(self, work: Callable[[], Account]) -> Account:
        """Return what the work returns; one runs at a time, and one that hangs stays alone."""
        if self._looking is None or self._looking.done():
            self._looking = _daemon(work, str(self._target))
            self._looking.add_done_callback(self._came)  # comes before who waits
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.shield(self._looking)
        except TimeoutError as error:
            raise NoApiServer(
                f"{self._target}: not read within {self._deadline_s:g} s; does its plug-in wait "
                "for somebody?"
            ) from error


def _daemon(work: Callable[[], Account], what: str) -> asyncio.Future[Account]:
    """Run something in a thread that the end of the process does not wait for."""
    event_loop = asyncio.get_running_loop()
    future: asyncio.Future[Account] = event_loop.create_future()

    def settle(account: Account | None, error: AgentError | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
            future.exception()  # nobody may be waiting any more
        elif account is not None:
            future.set_result(account)

    def run() -> None:
        account: Account | None = None
        failed: AgentError | None = None
        try:
            account = work()
        except AgentError as error:
            failed = error
        except Exception as error:  # noqa: BLE001 - of a foreign package; somebody waits for it
            failed = NoApiServer(f"{what}: {type(error).__name__}")
        with contextlib.suppress(RuntimeError):  # the loop ended before the work did
            event_loop.call_soon_threadsafe(settle, account, failed)

    threading.Thread(target=run, name="kubeconfig", daemon=True).start()
    return future


def _renew(account: Account) -> Account:
    if account.renewed is None:
        return account
    return replace(account, authorization=account.renewed())
