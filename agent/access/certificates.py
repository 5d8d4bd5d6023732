"""The TLS of a server: what settings name, and the context that is built from it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from agent.durable import read_file
from agent.errors import BadConfig

MAX_FILE_BYTES = 1 << 20
TLS_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
# whether a client certificate is asked for, and what it counts for
NO_CERTIFICATES = "none"
CHECK_IF_SENT = "check"  # one that is sent must be valid; it grants nothing
ACCEPT = "accept"  # a valid one is enough, and so is any other credential
REQUIRE = "require"  # needed beside all other credentials

_ANY_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, for which Python has no name
MAX_FLIGHTS = 4  # of a handshake

FileSignatures = tuple[tuple[str, int, int, int, int], ...]


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The certificates of a server, each as a file or as PEM text, and its clients'."""

    cert_file: str = ""
    key_file: str = ""  # empty: in `cert_file`
    cert: str = ""
    key: str = ""
    client_ca_file: str = ""
    client_ca: str = ""
    client_auth: str = NO_CERTIFICATES
    client_names: tuple[str, ...] = ()  # of them a certificate must have one; empty: any
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    ciphers: tuple[str, ...] = ()  # OpenSSL's names, up to TLS 1.2; empty: OpenSSL's choice
    curve: str = ""

    @property
    def is_on(self) -> bool:
        """Return whether the server speaks TLS."""
        return bool(self.cert_file or self.cert)

    @property
    def files(self) -> tuple[str, ...]:
        """Return the paths of all files."""
        return tuple(path for path in (self.cert_file, self.key_file, self.client_ca_file) if path)


def check_tls(tls: TlsConfig, where: str) -> None:
    """Check that the settings fit together; raise `BadConfig`."""
    has_authority = bool(tls.client_ca_file or tls.client_ca)
    if not tls.is_on:
        if tls.key_file or tls.key or has_authority or tls.client_auth != NO_CERTIFICATES:
            raise BadConfig(f"{where}: needs a certificate: cert_file and key_file")
        return
    if has_authority and tls.client_auth == NO_CERTIFICATES:
        raise BadConfig(f"{where}: has a CA of clients, but asks clients for no certificate")
    if not has_authority and tls.client_auth != NO_CERTIFICATES:
        raise BadConfig(f"{where}: needs the CA of clients: client_ca_file")
    if tls.client_names and tls.client_auth not in (ACCEPT, REQUIRE):
        raise BadConfig(f"{where}: names of clients need a certificate that counts")
    if list(TLS_VERSIONS).index(tls.min_version) > list(TLS_VERSIONS).index(tls.max_version):
        raise BadConfig(f"{where}: min_version is above max_version")


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return the context of a server; raise `BadConfig` that names the file.

    Clients may connect without a certificate also where one is required: a probe of the kubelet
    has none. `AccessGate` refuses them the paths that need one.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = TLS_VERSIONS[tls.min_version]
    context.maximum_version = TLS_VERSIONS[tls.max_version]
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could make us compute for ever
    context.set_alpn_protocols(["http/1.1"])
    with _naming(tls.cert_file or "cert"):
        if tls.ciphers:
            context.set_ciphers(":".join(tls.ciphers))
        if tls.curve:
            context.set_ecdh_curve(tls.curve)
        certificate = _content(tls.cert_file, tls.cert)
        key = _content(tls.key_file, tls.key) if tls.key_file or tls.key else None
        _load_chain(context, certificate, key)
    if tls.client_auth != NO_CERTIFICATES:
        context.verify_mode = ssl.CERT_OPTIONAL
        with _naming(tls.client_ca_file or "client_ca"):
            authority = _content(tls.client_ca_file, tls.client_ca)
            context.load_verify_locations(cadata=authority.decode("ascii"))
    return context


def certificate_end_s(context: ssl.SSLContext, tls: TlsConfig) -> float | None:
    """Return the Unix time until which a server's certificate is valid; `None` if unknown.

    Python reads certificates of the other side of a connection only, so this connects to the
    server in memory, as a client that trusts this certificate at any time.
    """
    try:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.load_verify_locations(cadata=_content(tls.cert_file, tls.cert).decode("ascii"))
        client.verify_flags |= ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | _ANY_TIME)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        sides = (
            client.wrap_bio(to_client, to_server),
            context.wrap_bio(to_server, to_client, server_side=True),
        )
        for _ in range(MAX_FLIGHTS):
            for side in sides:
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        certificate = sides[0].getpeercert() or {}
        return float(ssl.cert_time_to_seconds(str(certificate["notAfter"])))
    except (OSError, ValueError, KeyError):  # ssl.SSLError is an OSError
        return None


def file_signatures(paths: Sequence[str]) -> FileSignatures:
    """Return a value that differs for changed files; links are followed. Raise `OSError`.

    Kubernetes exchanges all files of a volume at once by the link `..data`: names, times and sizes
    may be equal then, but not the inodes.
    """
    signatures = []
    for path in paths:
        stat = os.stat(path)
        signatures.append((path, stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return tuple(signatures)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Turn errors into a `BadConfig` that names the file or setting, and never its content."""
    try:
        yield
    except ssl.SSLError as error:
        reason = (error.reason or "not a certificate that can be used").lower().replace("_", " ")
        raise BadConfig(f"{what}: {reason}") from error
    except OSError as error:
        raise BadConfig(f"{error.filename or what}: {error.strerror or 'not readable'}") from error
    except ValueError as error:
        raise BadConfig(f"{what}: not PEM text") from error


def _content(path: str, text: str) -> bytes:
    if not path:
        return text.encode()
    data = read_file(path, MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise BadConfig(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    return data


def _load_chain(context: ssl.SSLContext, certificate: bytes, key: bytes | None) -> None:
    """Load a certificate and its key from memory: both are read once, and belong together.

    Python loads them from files only; these files have no name and end with this call.
    """
    with ExitStack() as stack:
        chain = stack.enter_context(_unnamed_file(certificate))
        key_file = stack.enter_context(_unnamed_file(key)) if key is not None else None
        # an empty password: an encrypted key is an error instead of a prompt at the terminal
        context.load_cert_chain(chain, key_file, password="")


@contextmanager
def _unnamed_file(content: bytes) -> Iterator[str]:
    """Yield the path of a file in memory."""
    with os.fdopen(os.memfd_create("pem", os.MFD_CLOEXEC), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def certificate_of(ssl_object: ssl.SSLObject | ssl.SSLSocket | None) -> dict[str, object] | None:
    """Return the verified certificate of the other side; `None` without one."""
    if ssl_object is None:
        return None
    return dict(ssl_object.getpeercert() or {}) or None
