"""How clients get in: authorities, tokens, a kubeconfig, a pod's service account folder."""

from __future__ import annotations

import base64
import json
import os
import ssl
import uuid
from pathlib import Path

import trustme
import yaml

NAMESPACE = "xpu-agent"
AGENT = f"system:serviceaccount:{NAMESPACE}:xpu-agent"
ADMIN = "kubernetes-admin"


class Access:
    """Files in one folder, and whose token is whose. Nothing in it outlives the folder."""

    def __init__(self, directory: Path, host: str) -> None:
        self._directory = directory
        self._host = host
        authority, other = trustme.CA(), trustme.CA()
        self.ca_file = directory / "ca.crt"
        self.wrong_ca_file = directory / "wrong-ca.crt"
        self.ca_file.write_bytes(authority.cert_pem.bytes())
        self.wrong_ca_file.write_bytes(other.cert_pem.bytes())
        self.ssl = self._context(authority)
        self.wrong_ssl = self._context(other)
        self.users: dict[str, str] = {}
        self.audiences: dict[str, tuple[str, ...]] = {}  # of tokens that are for somebody else
        self.serviceaccount_dir = directory / "serviceaccount"
        self.serviceaccount_dir.mkdir(exist_ok=True)
        (self.serviceaccount_dir / "ca.crt").write_bytes(authority.cert_pem.bytes())
        (self.serviceaccount_dir / "namespace").write_text(NAMESPACE)
        self.token_file = self.serviceaccount_dir / "token"
        self.admin_token = self._new_token(ADMIN)
        self.rotate_token()
        self.kubeconfig = directory / "kubeconfig"
        self.agent_kubeconfig = directory / "agent.kubeconfig"

    def rotate_token(self, *, keep_old: bool = False) -> str:
        """Write a new token of the service account; the old one is unknown from now on."""
        if not keep_old:
            for token in [token for token, user in self.users.items() if user == AGENT]:
                del self.users[token]
        token = self._new_token(AGENT)
        replacement = self.token_file.with_name(".token")
        replacement.write_text(token)
        os.replace(replacement, self.token_file)
        return token

    def user(self, authorization: str) -> str:
        """Return whose token an Authorization header carries; empty if nobody's."""
        scheme, _, token = authorization.partition(" ")
        return self.users.get(token.strip(), "") if scheme.lower() == "bearer" else ""

    def write_kubeconfigs(self, url: str) -> None:
        """Write the kubeconfigs, once the port is known."""
        agent_user = {"tokenFile": str(self.token_file)}
        self._write_kubeconfig(self.kubeconfig, url, {"token": self.admin_token})
        self._write_kubeconfig(self.agent_kubeconfig, url, agent_user)

    def _write_kubeconfig(self, path: Path, url: str, user: dict[str, str]) -> None:
        name = "apiserver"
        cluster = {"server": url, "certificate-authority": str(self.ca_file)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
        path.write_text(yaml.safe_dump(config))

    def _context(self, authority: trustme.CA) -> ssl.SSLContext:
        certificate = authority.issue_cert(self._host, "localhost", "127.0.0.1", "::1")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        certificate.configure_cert(context)
        return context

    def _new_token(self, user: str) -> str:
        """Return a token that looks like one: three parts, the middle one JSON."""
        claims = json.dumps({"sub": user, "jti": str(uuid.uuid4())}).encode()
        middle = base64.urlsafe_b64encode(claims).decode().rstrip("=")
        token = f"e30.{middle}.{uuid.uuid4().hex}"
        self.users[token] = user
        return token
