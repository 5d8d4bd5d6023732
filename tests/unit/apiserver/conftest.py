from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.apiserver import ApiServer
from tests.unit.apiserver.client import Client


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer(nodes=("node-a",)) as server:
        yield server


@pytest.fixture
def client(api: ApiServer) -> Client:
    return Client(api)
