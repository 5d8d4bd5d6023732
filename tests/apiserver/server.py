"""The server as tests hold it: it runs in a thread, and has thread-safe levers."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.apiserver.access import AGENT, Access
from tests.apiserver.admin import Object, Objects, namespace, node
from tests.apiserver.faults import Faults
from tests.apiserver.log import Logged
from tests.apiserver.rbac import ALL, Rule, read_roles
from tests.apiserver.running import Running
from tests.apiserver.schema.kinds import builtin_kinds, custom_kind, custom_kinds
from tests.apiserver.serve.app import App
from tests.apiserver.serve.route import ServedRequest
from tests.apiserver.store.objects import Store
from tests.apiserver.store.registry import Registry
from tests.patience import PATIENCE_S

NAMESPACES = ("default", "kube-system", "xpu-agent")


class ApiServer(Objects):
    """A strict API server on loopback; the package's docstring is its manual."""

    def __init__(
        self,
        *,
        nodes: Iterable[str] = (),
        objects: Iterable[Object] = (),
        roles: Path | None = None,
        validation: bool = True,
        server_side_apply: bool = True,
        topology_versions: Iterable[str] = ("v1alpha1", "v1alpha2"),
        garbage_collection: bool = True,
        bookmark_interval_s: float | None = None,
        max_body_bytes: int = 3 << 20,
        host: str = "127.0.0.1",
        port: int = 0,
        directory: Path | None = None,
    ) -> None:
        self._temporary = None if directory else tempfile.mkdtemp(prefix="apiserver-")
        self._topology_versions = tuple(topology_versions)
        kinds = (*builtin_kinds(), *custom_kinds(self._topology_versions))
        store = Store(kinds, collects_garbage=garbage_collection)
        registry = Registry(store, validation=validation)
        super().__init__(store, registry)
        self.access = Access(directory or Path(self._temporary or ""), host)
        self.faults = Faults()
        self.app = App(
            store=store,
            registry=registry,
            access=self.access,
            faults=self.faults,
            rules=list(read_roles(roles)) if roles else [ALL],
            server_side_apply=server_side_apply,
            bookmark_interval_s=bookmark_interval_s,
            max_body_bytes=max_body_bytes,
            notes=self._tick,
            put=self.put,
        )
        self._running = Running(host, port)
        self._ticks = 0
        self._ticked = threading.Condition()
        for name in NAMESPACES:
            self.put(namespace(name))
        for name in nodes:
            self.put(node(name))
        for body in objects:
            self.put(body)
        store.changed = self._changed

    # running

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is None and self.app.bugs:
            raise self.app.bugs[0]

    def start(self, *, wrong_ca: bool = False) -> None:
        """Serve; after a stop, on the same port. `wrong_ca`: by another authority."""
        context = self.access.wrong_ssl if wrong_ca else self.access.ssl
        self._running.start(self.app.handle, context)
        self.access.write_kubeconfigs(self.url)

    def stop(self) -> None:
        """Be gone: connections are dropped and refused. What is stored and logged stays."""
        self._running.stop()

    def close(self) -> None:
        """Stop, and remove the files if the folder is the server's own."""
        self.stop()
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    # where it is, and how to get in

    @property
    def url(self) -> str:
        """Return where it serves; the port is known after the first start."""
        host = self._running.host
        return f"https://{f'[{host}]' if ':' in host else host}:{self._running.port}"

    @property
    def port(self) -> int:
        """Return the port; 0 before the first start, unless it was given."""
        return self._running.port

    @property
    def ca_file(self) -> Path:
        """Return the authority to trust."""
        return self.access.ca_file

    @property
    def wrong_ca_file(self) -> Path:
        """Return an authority that did not sign the server's certificate."""
        return self.access.wrong_ca_file

    @property
    def token_file(self) -> Path:
        """Return the file with the service account's token."""
        return self.access.token_file

    @property
    def serviceaccount_dir(self) -> Path:
        """Return the folder that a pod has: token, ca.crt, namespace."""
        return self.access.serviceaccount_dir

    @property
    def kubeconfig(self) -> Path:
        """Return an administrator's kubeconfig."""
        return self.access.kubeconfig

    @property
    def agent_kubeconfig(self) -> Path:
        """Return a kubeconfig with the service account's token, limited by RBAC."""
        return self.access.agent_kubeconfig

    def rotate_token(self, *, keep_old: bool = False) -> str:
        """Write a new service account token; the old one is refused, unless it is kept."""
        return self.access.rotate_token(keep_old=keep_old)

    def admit(self, token: str, user: str = AGENT, audiences: Iterable[str] = ()) -> None:
        """Know a token from elsewhere (a credential plug-in) as this user's."""
        self.access.users[token] = user
        if audiences:
            self.access.audiences[token] = tuple(audiences)

    def forget(self, token: str) -> None:
        """Know a token no more, as after its account was deleted."""
        del self.access.users[token]

    def permit(self, user: str, rule: Rule) -> None:
        """Allow a user or group something, for SubjectAccessReviews about it."""
        self.app.user_rules.setdefault(user, []).append(rule)

    # what was asked

    def requests(self, **wanted: object) -> list[Logged]:
        """Return what was asked, oldest first; `wanted` are fields that must be equal."""
        entries = list(self.app.log)
        return [
            entry
            for entry in entries
            if all(getattr(entry, name) == value for name, value in wanted.items())
        ]

    def clear_requests(self) -> None:
        """Forget what was asked."""
        self.app.log.clear()

    def watches(self) -> list[ServedRequest]:
        """Return what the open watches ask for."""
        return [watch.asked for watch in list(self.app.watches)]

    def wait_until(self, holds: Callable[[], Any], timeout_s: float = PATIENCE_S) -> None:
        """Return once it holds; look again after each request and each change.

        Raise `TimeoutError` after `timeout_s`. In a coroutine, call it by `asyncio.to_thread`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            ticks = self._ticks
            if holds():
                return
            with self._ticked:
                remaining = deadline - time.monotonic()
                if self._ticks == ticks and not self._ticked.wait(max(0.0, remaining)):
                    raise TimeoutError(f"it did not come to hold within {timeout_s} s")

    # levers

    def grant(self, rule: Rule) -> None:
        """Allow the service account more."""
        self.app.rules.append(rule)

    def revoke(self, rule: Rule | None = None) -> None:
        """Take a rule away; without one, all of them."""
        self.app.rules = [
            records for records in self.app.rules if rule is not None and records != rule
        ]

    def remove_crd(self, plural: str) -> None:
        """Remove a resource with all its objects; it is answered 404, and its watches end."""
        self._store.remove_kind(plural)

    def add_crd(self, plural: str, *, without: Iterable[str] = ()) -> None:
        """Serve a resource (again); `without` fields that an older release did not have.

        Fields are named by their path: `spec.devices.conditions`. Objects that are there stay.
        """
        if plural == "noderesourcetopologies":
            kinds = custom_kinds(self._topology_versions)
            self._store.add_kind(next(kind for kind in kinds if kind.plural == plural))
        else:
            self._store.add_kind(custom_kind(plural, tuple(without)))

    def pass_time(self, seconds: float) -> None:
        """Let what is written from now on be written so much later: times are whole seconds."""
        self._registry.ahead_s += seconds

    def compact(self) -> None:
        """Let all earlier resourceVersions and continue tokens be too old."""
        with self._store.lock:
            self._store.history.compact()

    def close_watches(self) -> None:
        """End all open watches in order."""
        self._on_loop(self.app.close_watches)

    def _changed(self) -> None:
        self._on_loop(self.app.wake_watches)
        self._tick()

    def _on_loop(self, call: Callable[[], Any]) -> None:
        loop = self._running.loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it was stopped meanwhile
                loop.call_soon_threadsafe(call)

    def _tick(self) -> None:
        with self._ticked:
            self._ticks += 1
            self._ticked.notify_all()
