"""What all tests of the runtime's faults have."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: a socket's address has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="nri-") as name:
        yield Path(name)
