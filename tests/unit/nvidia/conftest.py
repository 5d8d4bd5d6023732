from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.nvml_stub import Stub, add_function

BUSES = tuple(f"0000:{b}:00.0" for b in ("23", "24", "53", "54", "83", "84", "b3", "b4"))


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    """A stub without a scenario yet."""
    return Stub(tmp_path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A machine's root with eight cards bound to the driver."""
    root = tmp_path / "root"
    for minor, bus in enumerate(BUSES):
        uuid = f"GPU-00000000-0000-4000-8000-00000000000{minor}"
        add_function(
            root, bus, Model="NVIDIA H100 80GB HBM3", GPU_UUID=uuid, Device_Minor=f"{minor}"
        )
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/meminfo").write_text("MemTotal:       131072000 kB\n")
    return root
