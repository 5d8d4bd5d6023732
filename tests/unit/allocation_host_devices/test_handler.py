"""The handler that pods without a runtime class get, by the runtime's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.allocation.runtime_handler import (
    CONTAINERD_CONFIG,
    CRIO_CONFIG,
    CRIO_CONFIG_FOLDER,
    RuntimeHandlerReader,
)
from agent.clock import ManualClock
from tests.unit.allocation_host_devices.made import Living, recorded

V3 = '[plugins."io.containerd.cri.v1.runtime".containerd]\ndefault_runtime_name = "{}"\n'
V2 = '[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "{}"\n'
V1 = '[plugins.cri.containerd]\ndefault_runtime_name = "{}"\n'
DROP_IN = 'imports = ["/etc/containerd/conf.d/*.toml", "../x", 7]\n'


@pytest.mark.parametrize(
    ("runtime", "files", "expected"),
    [
        ("containerd", {CONTAINERD_CONFIG: V3.format("nvidia")}, "nvidia"),
        ("containerd", {CONTAINERD_CONFIG: V2.format("nvidia")}, "nvidia"),
        ("containerd", {CONTAINERD_CONFIG: V1.format("ascend")}, "ascend"),
        ("", {CONTAINERD_CONFIG: V2.format("nvidia")}, "nvidia"),
        (
            "containerd",
            {
                CONTAINERD_CONFIG: DROP_IN + V3.format("runc"),
                "/etc/containerd/conf.d/99-nvidia.toml": V3.format("nvidia"),
                "/etc/containerd/conf.d/other.yaml": V3.format("other"),
            },
            "nvidia",
        ),
        ("containerd", {CRIO_CONFIG: '[crio.runtime]\ndefault_runtime = "nvidia"\n'}, ""),
        ("cri-o", {CRIO_CONFIG: '[crio.runtime]\ndefault_runtime = "nvidia"\n'}, "nvidia"),
        (
            "cri-o",
            {
                CRIO_CONFIG: '[crio.runtime]\ndefault_runtime = "crun"\n',
                f"{CRIO_CONFIG_FOLDER}/99-nvidia.conf": (
                    '[crio.runtime]\ndefault_runtime = "nvidia"\n'
                ),
            },
            "nvidia",
        ),
        ("containerd", {}, ""),
        ("containerd", {CONTAINERD_CONFIG: ""}, ""),
        ("containerd", {CONTAINERD_CONFIG: "not = [toml"}, ""),
        ("containerd", {CONTAINERD_CONFIG: "a = " + "[" * 5000}, ""),
        ("containerd", {CONTAINERD_CONFIG: "plugins = 7"}, ""),
        ("containerd", {CONTAINERD_CONFIG: V2.format("x").replace('"x"', "7")}, ""),
    ],
)
def test_it_is_read_from_where_each_runtime_keeps_it(
    runtime: str, files: dict[str, str], expected: str
) -> None:
    assert RuntimeHandlerReader(recorded(files), ManualClock(wall_s=0.0)).read(runtime) == expected


def test_a_file_is_read_again_when_it_was_written(tmp_path: Path) -> None:
    host = Living(tmp_path)
    host.write(CONTAINERD_CONFIG, V2.format("runc"))
    handler = RuntimeHandlerReader(host, ManualClock(wall_s=0.0))
    assert handler.read("containerd") == "runc"
    host.reads.clear()
    assert handler.read("containerd") == "runc"
    assert host.reads == []
    host.write(CONTAINERD_CONFIG, V2.format("nvidia"))
    assert handler.read("containerd") == "nvidia"
