"""A person's kubeconfig, read by the `kubernetes` package in a thread with a deadline."""

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

Untyped = Any  # values of the package, which has no types


class KubeconfigAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One context of a kubeconfig, as files and values that a session can use."""

    url: str
    tls: TlsFiles
    server_name: str = ""
    proxy: str = ""  # `proxy-url`; empty: the proxy of the environment
    authorization: str | None = None
    token_file: str = ""  # another program renews the token in this file
    # runs the credential plug-in if its token has expired; blocks until the plug-in ends
    renew_token: Callable[[], str | None] | None = None


def read_account(target: KubeconfigTarget) -> KubeconfigAccount:
    """Read a kubeconfig; raise `NoApiServer` with the reason if it cannot be used.

    Blocks: reads files, runs the plug-in or calls the OIDC issuer, however long they take.
    """
    try:
        # imported here: it takes 45 MB and half a second, and only a person's kubeconfig needs it
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
    """Turn errors of the package, and of the libraries it uses, into `NoApiServer`."""
    own_error = library.ConfigException
    library_errors = (
        library.yaml.YAMLError,
        library.urllib3.exceptions.HTTPError,
        library.oauthlib.oauth2.OAuth2Error,
    )
    try:
        yield
    except (own_error, *library_errors, *_PYTHON_ERRORS) as error:
        # only the package's own text: an issuer's or a YAML extract may contain a token
        message = str(error)[:200] if isinstance(error, own_error) else type(error).__name__
        raise NoApiServer(f"{target}: cannot be used: {message}") from None


def _load_account(
    library: Untyped, configuration: Untyped, target: KubeconfigTarget
) -> KubeconfigAccount:
    files = library.KubeConfigMerger(target.paths)
    if files.config is None:
        raise NoApiServer(f"{target}: no such file, or it is empty")

    def save() -> None:
        # an OIDC refresh token is valid once: the next one must be saved for later processes
        try:
            files.save_changes()
        except OSError as error:
            log.warning("kubeconfig_not_written", extra={"error": str(error)})

    loader = library.KubeConfigLoader(
        config_dict=files.config,
        active_context=target.context or None,
        config_base_path=None,
        config_persister=save,
    )
    loader.load_and_set(configuration)
    context = loader.current_context["context"]
    cluster = files.config["clusters"].get_with_name(context["cluster"])["cluster"]
    user = _user(files.config, context.get("user", ""))
    authorization = configuration.api_key.get("BearerToken")
    if "exec" in user and authorization is None and not configuration.cert_file:
        raise NoApiServer(
            f"{target}: the plug-in {user['exec'].safe_get('command')!r} gave no credentials; "
            "run it by hand to see why"
        )
    return KubeconfigAccount(
        url=server_url(cluster["server"], f"{target}: server"),
        tls=TlsFiles(
            ca_file=configuration.ssl_ca_cert or "",
            cert_file=configuration.cert_file or "",
            key_file=configuration.key_file or "",
            insecure=not configuration.verify_ssl,
        ),
        server_name=configuration.tls_server_name or "",
        proxy=cluster.safe_get("proxy-url") or "",
        authorization=authorization,
        token_file=_token_file(user),
        renew_token=functools.partial(_renewed_token, library, configuration, target)
        if "exec" in user
        else None,
    )


def _renewed_token(
    library: Untyped, configuration: Untyped, target: KubeconfigTarget
) -> str | None:
    with _translate_errors(library, target):
        if configuration.refresh_api_key_hook is not None:
            configuration.refresh_api_key_hook(configuration)
        token: str | None = configuration.api_key.get("BearerToken")
    return token


def _user(config: Untyped, name: str) -> Untyped:
    users = config.safe_get("users")
    entry = config["users"].get_with_name(name, safe=True) if users and name else None
    return entry["user"] if entry is not None and entry.safe_get("user") else {}


def _token_file(user: Untyped) -> str:
    if not user or "tokenFile" not in user or "token" in user:
        return ""
    return str(Path(user.path or "").parent / user["tokenFile"])


RETRY_AFTER_401_S = 10.0  # not for every 401: a plug-in may start a browser

DEADLINE_S = 30.0  # of a plug-in or an issuer

ReadAccount = Callable[[KubeconfigTarget], KubeconfigAccount]


class KubeconfigCredentials:
    """The credentials of a kubeconfig, read again every minute, and after a 401.

    The plug-in runs again after its token has expired, and after a 401, but not too soon after the
    one before. After a failure the previous credentials stay in use. Reading may block for ever, so
    it has a thread of its own, and callers wait at most `deadline_s`.
    """

    def __init__(
        self,
        target: KubeconfigTarget,
        clock: Clock,
        read: ReadAccount = read_account,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Take the target; nothing is read until `open`."""
        self._target = target
        self._clock = clock
        self._read = read
        self._deadline_s = deadline_s
        self._account: KubeconfigAccount | None = None
        self._token_file: TokenFile | None = None
        self._read_s = 0.0
        self._is_refused = False
        self._reading: asyncio.Future[KubeconfigAccount] | None = None
        self._read_errors = 0
        self._problem = ""

    @property
    def read_errors(self) -> int:
        """Return the number of failed reads or renewals."""
        return self._read_errors + (self._token_file.read_errors if self._token_file else 0)

    @property
    def problem(self) -> str:
        """Return why the last read failed; empty after a success."""
        return self._problem or (self._token_file.problem if self._token_file else "")

    async def open(self) -> KubeconfigAccount:
        """Read it for the first time; raise `NoApiServer` if it cannot be used."""
        return await self._in_thread(functools.partial(self._read, self._target))

    @property
    def tls(self) -> TlsFiles:
        """Return the files of certificates; a plug-in may have written others meanwhile."""
        return self._account.tls if self._account is not None else TlsFiles()

    async def authorization(self) -> str | None:
        """Return the header's value; `None` for a client certificate or no account."""
        account = self._account
        if account is None:
            raise Unauthorized(str(self._target), "has not been read yet")
        if self._token_file is not None:
            return await self._token_file.authorization()
        wait_s = RETRY_AFTER_401_S if self._is_refused else REREAD_S
        if self._clock.monotonic() - self._read_s >= wait_s:
            account = await self._renew(account)
        return account.authorization

    def expire(self) -> None:
        """Read the file again soon, and run its plug-in."""
        self._is_refused = True
        if self._token_file is not None:
            self._token_file.expire()

    async def _renew(self, account: KubeconfigAccount) -> KubeconfigAccount:
        self._read_s = self._clock.monotonic()
        work = functools.partial(_renew_token, account)
        if self._is_refused or account.renew_token is None:
            work = functools.partial(self._read, self._target)
        try:
            return await self._in_thread(work)
        except AgentError as error:
            self._read_errors += 1
            self._problem = str(error)
            log.warning("kubeconfig_not_renewed", extra={"error": self._problem})
        return self._account or account

    def _on_read(self, reading: asyncio.Future[KubeconfigAccount]) -> None:
        """Take the account that was read, even if the call that started the read gave up."""
        if not reading.cancelled() and reading.exception() is None:
            self._take(reading.result())

    def _take(self, account: KubeconfigAccount) -> None:
        if account.tls.insecure and (self._account is None or not self._account.tls.insecure):
            log.warning("api_server_not_verified", extra={"server": account.url})
        if account.token_file and self._token_file is None:
            self._token_file = TokenFile(account.token_file, self._clock)
        self._account, self._is_refused, self._problem = account, False, ""
        self._read_s = self._clock.monotonic()

    async def _in_thread(self, work: Callable[[], KubeconfigAccount]) -> KubeconfigAccount:
        """Return the account that the work returns; one read runs at a time."""
        if self._reading is None or self._reading.done():
            self._reading = _run_in_daemon_thread(work, str(self._target))
            self._reading.add_done_callback(
                self._on_read
            )  # this callback runs before those of waiting calls
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.shield(self._reading)
        except TimeoutError as error:
            raise NoApiServer(
                f"{self._target}: not read within {self._deadline_s:g} s; does its plug-in wait "
                "for somebody?"
            ) from error


def _run_in_daemon_thread(
    work: Callable[[], KubeconfigAccount], description: str
) -> asyncio.Future[KubeconfigAccount]:
    """Run the work in a thread that the end of the process does not wait for."""
    event_loop = asyncio.get_running_loop()
    future: asyncio.Future[KubeconfigAccount] = event_loop.create_future()

    def settle(account: KubeconfigAccount | None, error: AgentError | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
            future.exception()  # mark as retrieved: perhaps no call waits any more
        elif account is not None:
            future.set_result(account)

    def run() -> None:
        account: KubeconfigAccount | None = None
        failed: AgentError | None = None
        try:
            account = work()
        except AgentError as error:
            failed = error
        except Exception as error:  # noqa: BLE001 - of a foreign package; the future must be resolved
            failed = NoApiServer(f"{description}: {type(error).__name__}")
        with contextlib.suppress(RuntimeError):  # the loop ended before the work did
            event_loop.call_soon_threadsafe(settle, account, failed)

    threading.Thread(target=run, name="kubeconfig", daemon=True).start()
    return future


def _renew_token(account: KubeconfigAccount) -> KubeconfigAccount:
    if account.renew_token is None:
        return account
    return replace(account, authorization=account.renew_token())
