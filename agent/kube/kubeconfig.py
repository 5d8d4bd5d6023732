"""A person's kubeconfig, read by the `kubernetes` package and renewed in a thread with a deadline.

Credentials of a kubeconfig that stay good: read again, renewed, never waited for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from agent.clock import Clock
from agent.errors import AgentError
from agent.kube.credentials import REREAD_S, TlsFiles, TokenFile
from agent.kube.endpoint import KubeconfigTarget, server_url
from agent.kube.errors import NoApiServer, Unauthorized

log = logging.getLogger(__name__)

EXTRA = "xpu-node-agent[kubeconfig]"

Untyped = Any  # what the package hands out: it has no types


class KubeconfigAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What one context of a kubeconfig leads to, as files and words that a session can use."""

    url: str
    tls: TlsFiles
    server_name: str = ""
    proxy: str = ""  # `proxy-url`; empty: what the environment says
    authorization: str | None = None
    token_file: str = ""  # whoever renews the token writes it there
    # asks a plug-in again when what it gave has expired; blocks as long as that takes
    renew_token: Callable[[], str | None] | None = None


def read_account(target: KubeconfigTarget) -> KubeconfigAccount:
    """Return what a kubeconfig says; raise `NoApiServer` that says what is wrong with it.

    Blocks: reads files, runs the plug-in or asks the OIDC issuer, however long they take.
    """
    try:
        # imported here: 45 MB and half a second that only a person's kubeconfig needs
        from kubernetes import client, config  # noqa: PLC0415 - see above
    except ImportError as error:
        raise NoApiServer(
            f"{target}: the package `kubernetes` is missing, which reads kubeconfig files; "
            f"install {EXTRA}"
        ) from error
    library: Untyped = config.kube_config  # its functions have no types
    with _translate_errors(library, target):
        return _load_account(library, client.Configuration(), target)


# what the package raises for a file of an unexpected form
_PYTHON_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


@contextlib.contextmanager
def _translate_errors(library: Untyped, target: KubeconfigTarget) -> Iterator[None]:
    """Make the package's errors ours, and those it lets through from what it is made of."""
    own = library.ConfigException
    passed_on = (
        library.yaml.YAMLError,
        library.urllib3.exceptions.HTTPError,
        library.oauthlib.oauth2.OAuth2Error,
    )
    try:
        yield
    except (own, *passed_on, *_PYTHON_ERRORS) as error:
        # only the package's own words: an issuer's or a YAML extract may hold a token
        said = str(error)[:200] if isinstance(error, own) else type(error).__name__
        raise NoApiServer(f"{target}: cannot be used: {said}") from None


def _load_account(library: Untyped, found: Untyped, target: KubeconfigTarget) -> KubeconfigAccount:
    files = library.KubeConfigMerger(target.paths)
    if files.config is None:
        raise NoApiServer(f"{target}: no such file, or it is empty")

    def keep() -> None:
        # an issuer's refresh token is good for one time: the next one must outlive us
        try:
            files.save_changes()
        except OSError as error:
            log.warning("kubeconfig_not_written", extra={"error": str(error)})

    loader = library.KubeConfigLoader(
        config_dict=files.config,
        active_context=target.context or None,
        config_base_path=None,
        config_persister=keep,
    )
    loader.load_and_set(found)
    context = loader.current_context["context"]
    cluster = files.config["clusters"].get_with_name(context["cluster"])["cluster"]
    user = _user(files.config, context.get("user", ""))
    authorization = found.api_key.get("BearerToken")
    if "exec" in user and authorization is None and not found.cert_file:
        raise NoApiServer(
            f"{target}: the plug-in {user['exec'].safe_get('command')!r} gave no credentials; "
            "run it by hand to see why"
        )
    return KubeconfigAccount(
        url=server_url(cluster["server"], f"{target}: server"),
        tls=TlsFiles(
            ca_file=found.ssl_ca_cert or "",
            cert_file=found.cert_file or "",
            key_file=found.key_file or "",
            insecure=not found.verify_ssl,
        ),
        server_name=found.tls_server_name or "",
        proxy=cluster.safe_get("proxy-url") or "",
        authorization=authorization,
        token_file=_token_file(user),
        renew_token=functools.partial(_renewed_token, library, found, target)
        if "exec" in user
        else None,
    )


def _renewed_token(library: Untyped, found: Untyped, target: KubeconfigTarget) -> str | None:
    with _translate_errors(library, target):
        if found.refresh_api_key_hook is not None:
            found.refresh_api_key_hook(found)
        token: str | None = found.api_key.get("BearerToken")
    return token


def _user(config: Untyped, name: str) -> Untyped:
    users = config.safe_get("users")
    entry = config["users"].get_with_name(name, safe=True) if users and name else None
    return entry["user"] if entry is not None and entry.safe_get("user") else {}


def _token_file(user: Untyped) -> str:
    if not user or "tokenFile" not in user or "token" in user:
        return ""
    return str(Path(user.path or "").parent / user["tokenFile"])


RETRY_AFTER_401_S = 10.0  # a plug-in may start a browser: not for every 401

DEADLINE_S = 30.0  # of a plug-in or an issuer

ReadAccount = Callable[[KubeconfigTarget], KubeconfigAccount]


class KubeconfigCredentials:
    """Who a kubeconfig says we are; it is read again every minute, and after a 401.

    A plug-in runs again when its token has expired, and after a 401 that is not too soon after
    the one before. What fails leaves the credentials before in use. Reading may block for ever,
    so it has a thread of its own that nobody waits for longer than `deadline_s`.
    """

    def __init__(
        self,
        target: KubeconfigTarget,
        clock: Clock,
        read: ReadAccount = read_account,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Take which file; nothing is read until `open`."""
        self._target = target
        self._clock = clock
        self._read = read
        self._deadline_s = deadline_s
        self._account: KubeconfigAccount | None = None
        self._token_file: TokenFile | None = None
        self._looked_s = 0.0
        self._refused = False
        self._looking: asyncio.Future[KubeconfigAccount] | None = None
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

    async def open(self) -> KubeconfigAccount:
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
        wait_s = RETRY_AFTER_401_S if self._refused else REREAD_S
        if self._clock.monotonic() - self._looked_s >= wait_s:
            account = await self._again(account)
        return account.authorization

    def expire(self) -> None:
        """Read it again soon, and run its plug-in."""
        self._refused = True
        if self._token_file is not None:
            self._token_file.expire()

    async def _again(self, account: KubeconfigAccount) -> KubeconfigAccount:
        self._looked_s = self._clock.monotonic()
        work = functools.partial(_renew_token, account)
        if self._refused or account.renew_token is None:
            work = functools.partial(self._read, self._target)
        try:
            return await self._in_thread(work)
        except AgentError as error:
            self._read_errors += 1
            self._problem = str(error)
            log.warning("kubeconfig_not_renewed", extra={"error": self._problem})
        return self._account or account

    def _came(self, looking: asyncio.Future[KubeconfigAccount]) -> None:
        """Take what was read, whether or not the call that asked for it still waits."""
        if not looking.cancelled() and looking.exception() is None:
            self._take(looking.result())

    def _take(self, account: KubeconfigAccount) -> None:
        if account.tls.insecure and (self._account is None or not self._account.tls.insecure):
            log.warning("api_server_not_verified", extra={"server": account.url})
        if account.token_file and self._token_file is None:
            self._token_file = TokenFile(account.token_file, self._clock)
        self._account, self._refused, self._problem = account, False, ""
        self._looked_s = self._clock.monotonic()

    async def _in_thread(self, work: Callable[[], KubeconfigAccount]) -> KubeconfigAccount:
        """Return what the work returns; one runs at a time, and one that hangs stays alone."""
        if self._looking is None or self._looking.done():
            self._looking = _run_in_daemon_thread(work, str(self._target))
            self._looking.add_done_callback(self._came)  # comes before who waits
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.shield(self._looking)
        except TimeoutError as error:
            raise NoApiServer(
                f"{self._target}: not read within {self._deadline_s:g} s; does its plug-in wait "
                "for somebody?"
            ) from error


def _run_in_daemon_thread(
    work: Callable[[], KubeconfigAccount], what: str
) -> asyncio.Future[KubeconfigAccount]:
    """Run something in a thread that the end of the process does not wait for."""
    event_loop = asyncio.get_running_loop()
    future: asyncio.Future[KubeconfigAccount] = event_loop.create_future()

    def settle(account: KubeconfigAccount | None, error: AgentError | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
            future.exception()  # nobody may be waiting any more
        elif account is not None:
            future.set_result(account)

    def run() -> None:
        account: KubeconfigAccount | None = None
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


def _renew_token(account: KubeconfigAccount) -> KubeconfigAccount:
    if account.renew_token is None:
        return account
    return replace(account, authorization=account.renew_token())
