"""The products of NVIDIA's own mock, played on the stub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.model.quantity import binary
from tests.captures import SHARED, needs_shared
from tests.fault.nvml_stub import Stub, gpu, on_tree
from tests.unit.nvidia.conftest import BUSES

ARCHITECTURES = {"turing": 6, "ampere": 7, "hopper": 9, "blackwell": 10}


def profile(name: str) -> dict[str, Any]:
    path = SHARED / "captures" / "nvml" / f"profile-{name}.yaml"
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


@needs_shared
@pytest.mark.parametrize(
    ("name", "label"),
    [("h100", "H100-80GB-HBM3"), ("a100", "A100-SXM4-40GB"), ("b200", "B200"), ("t4", "T4")],
)
def test_a_product_is_labelled_and_granted(name: str, label: str, stub: Stub, tree: Path) -> None:
    told = profile(name)
    card = told["device_defaults"]
    total = int(card["memory"]["total_bytes"])
    capability = "{major}.{minor}".format(**card["compute_capability"])
    stub.play(
        f"system driver={told['system']['driver_version']} cuda=12040",
        gpu(
            0,
            BUSES[0],
            name=f'"{card["name"]}"',
            mem=total,
            cc=capability,
            arch=ARCHITECTURES[card["architecture"]],
            serial=card["serial"],
            vbios=card["vbios_version"],
        ),
    )
    with on_tree(stub, tree) as child:
        found = child.discover()
    labels, facts = dict(found.devices[0].labels), dict(found.devices[0].facts)
    assert labels["xpu-agent.io/model"] == label
    assert labels["xpu-agent.io/architecture"] == card["architecture"].capitalize()
    assert labels["xpu-agent.io/compute-capability"] == capability
    assert dict(found.devices[0].resources)["koordinator.sh/gpu-memory"] == binary(total)
    assert facts["serial"] == card["serial"]
    assert found.driver_version == told["system"]["driver_version"]
