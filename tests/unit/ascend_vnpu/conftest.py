"""The machine for tests of vNPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stubs.dcmi.machines import b3x8
from tests.unit.ascend.conftest import Machine


@pytest.fixture
def b3(tmp_path: Path) -> Machine:
    """Eight 910B3."""
    return Machine(tmp_path, "910b3x8", b3x8())
