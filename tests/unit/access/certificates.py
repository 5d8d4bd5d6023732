"""Certificates of tests, in files as Kubernetes mounts a Secret."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import trustme

HOST = "127.0.0.1"


def write_pair(folder: Path, authority: trustme.CA, *names: str) -> None:
    """Write tls.crt and tls.key for these names."""
    certificate = authority.issue_cert(*(names or (HOST, "localhost")))
    (folder / "tls.crt").write_bytes(b"".join(b.bytes() for b in certificate.cert_chain_pems))
    (folder / "tls.key").write_bytes(certificate.private_key_pem.bytes())


class SecretVolume:
    """A folder whose files are links through `..data`, which the kubelet exchanges at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._version = 0
        folder.mkdir()

    def mount(self, authority: trustme.CA, **files: bytes) -> None:
        """Exchange all files: a new pair of this authority, and others by name."""
        self._version += 1
        version = self.folder / f"..2026_{self._version}"
        version.mkdir()
        write_pair(version, authority)
        for name, content in files.items():
            (version / name.replace("_", ".")).write_bytes(content)
        link = self.folder / "..data_tmp"
        link.symlink_to(version.name)
        os.replace(link, self.folder / "..data")
        for path in version.iterdir():
            target = self.folder / path.name
            if not target.is_symlink():
                target.symlink_to(f"..data/{path.name}")


def client_context(
    server_authority: trustme.CA, authority: trustme.CA | None = None, *names: str
) -> ssl.SSLContext:
    """Return the context of a client; with `authority` it has a certificate with these names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server_authority.configure_trust(context)
    if authority is not None:
        authority.issue_cert(*names).configure_cert(context)
    return context
