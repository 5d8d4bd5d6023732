"""How many connections a process may hold follows from how many descriptors it may have."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator

import pytest

from agent.access.connections import MAX_CONNECTIONS, MIN_CONNECTIONS, max_connections

Limit = Callable[[int], None]


@pytest.fixture
def limit() -> Iterator[Limit]:
    """Set how many descriptors this process may have, until the end of the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda descriptors: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("descriptors", "connections"),
    [(16, MIN_CONNECTIONS), (160, 20), (1024, MAX_CONNECTIONS)],
)
def test_each_connection_needs_its_share_of_the_descriptors(
    descriptors: int, connections: int, limit: Limit
) -> None:
    limit(descriptors)
    assert max_connections() == connections
