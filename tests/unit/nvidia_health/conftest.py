from __future__ import annotations

from tests.unit.nvidia.conftest import stub, tree

__all__ = ["stub", "tree"]
