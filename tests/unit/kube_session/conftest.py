"""An authority and what it signed, made once: keys take long."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kube_session.servers import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return the authority that the test servers are believed by."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return another one, which nobody believes."""
    return Authority(tmp_path_factory.mktemp("other"))


@pytest.fixture
def account(tmp_path: Path, authority: Authority) -> Path:
    """Return a folder as a pod has it: a token, and the authority's certificate."""
    (tmp_path / "token").write_text("token-1\n")
    (tmp_path / "ca.crt").write_bytes(authority.ca_file.read_bytes())
    return tmp_path


@pytest.fixture
def no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no name resolve, without asking anybody; addresses do."""
    real: Any = socket.getaddrinfo

    def fail(host: str, *arguments: Any, **options: Any) -> Any:
        if not any(mark in host for mark in (":", "127.")):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", fail)
