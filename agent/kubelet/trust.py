"""Whom the agent takes for the kubelet: its CA, read anew when the file changed, or anybody."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent.kube.errors import Unreachable

if TYPE_CHECKING:
    import ssl


class KubeletTrust:
    """Makes TLS contexts. Without a CA file every certificate is taken: kubelets sign their own."""

    def __init__(self, ca_file: str) -> None:
        self._ca_file = ca_file
        self._seen: tuple[int, int, int] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context; the same one while the file is. Raises `Unreachable`."""
        seen = self._stamp()
        if self._context is None or seen != self._seen:
            self._context, self._seen = self._make(), seen
        return self._context

    def _stamp(self) -> tuple[int, int, int] | None:
        if not self._ca_file:
            return None
        try:
            found = os.stat(self._ca_file)
        except OSError as error:
            raise self._bad(error.strerror or "unreadable") from error
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _make(self) -> ssl.SSLContext:
        import ssl  # noqa: PLC0415 - not before the first object is published

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if not self._ca_file:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return context
        try:
            context.load_verify_locations(self._ca_file)
        except OSError as error:  # an `SSLError` is one
            raise self._bad(str(error)) from error
        return context

    def _bad(self, detail: str) -> Unreachable:
        return Unreachable("kubelet", f"CA {self._ca_file}: {detail}; see kubelet.ca_file")
