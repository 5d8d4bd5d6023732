"""Opens a session where the settings and the surroundings say the API server is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, MutableMapping

from agent.clock import Clock
from agent.kube.proxy import proxy_for, proxy_of
from agent.kube.session.client import Session
from agent.kube.session.connections import Endpoint
from agent.kube.session.credentials import TokenFile
from agent.kube.session.target import ApiTarget, FromKubeconfig, InPod
from agent.kube.session.trust import TlsFiles, Trust


def load_http() -> None:
    """Load the HTTP library: 110 ms, and 70 more for the authorities of this machine.

    Whoever starts the agent calls it in a thread while vendors' workers load their libraries.
    """
    import aiohttp  # noqa: F401, PLC0415 - see above


def believe_only_the_given(target: ApiTarget, environ: MutableMapping[str, str]) -> None:
    """Have this process know no authority of the machine's, in a pod, where none is asked for.

    The HTTP library reads them all when it is loaded, for connections that we do not make: an
    image may say where they are. To be called before there are threads that read the environment.
    """
    if isinstance(target, InPod):
        environ["SSL_CERT_FILE"] = os.devnull


async def open_session(target: ApiTarget, clock: Clock, environ: Mapping[str, str]) -> Session:
    """Return a session; nothing is sent yet. Raise `NoApiServer` when there can be none.

    In a pod nothing is read either; a kubeconfig is, which may run a plug-in.
    """
    load = asyncio.get_running_loop().run_in_executor(None, load_http)
    if isinstance(target, InPod):
        session = _in_pod(target, clock, environ)
    else:
        session = await _from_kubeconfig(target, clock, environ)
    await load
    return session


def _in_pod(target: InPod, clock: Clock, environ: Mapping[str, str]) -> Session:
    files = TlsFiles(ca_file=f"{target.folder}/ca.crt")
    return Session(
        Endpoint(url=target.url, proxy=proxy_for(target.url, environ)),
        TokenFile(f"{target.folder}/token", clock),
        Trust(lambda: files, clock),
        clock,
    )


async def _from_kubeconfig(
    target: FromKubeconfig, clock: Clock, environ: Mapping[str, str]
) -> Session:
    # imported here: a pod does without
    from agent.kube.session.renewing import KubeconfigCredentials  # noqa: PLC0415 - see above

    credentials = KubeconfigCredentials(target, clock)
    account = await credentials.open()
    proxy = proxy_for(account.url, environ)
    if account.proxy:
        proxy = proxy_of(account.proxy, f"proxy-url of {target}")
    return Session(
        Endpoint(url=account.url, server_name=account.server_name, proxy=proxy),
        credentials,
        Trust(lambda: credentials.tls, clock),
        clock,
    )
