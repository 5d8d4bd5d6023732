"""CDI specs are somebody else's files: each may be anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocation.cdi_spec_reader import (
    MAX_SPEC_BYTES,
    CdiSpecError,
    CdiSpecReader,
    decode_plain_data,
)
from agent.clock import ManualClock
from agent.snapshot.host_devices import CdiDevice, CdiSpec
from tests.unit.allocation_host_devices.made import Living, here, reader, recorded
from tests.unit.vendors_injection.made import gpu

YAML = """
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
containerEdits:
  mounts:
  - hostPath: /usr/lib64/libcuda.so.570.1.2
    containerPath: /usr/lib64/libcuda.so.570.1.2
"""
JSON = '{"kind": "xpu-agent.io/npu", "devices": [{"name": "1"}]}'


def test_specs_are_in_the_order_of_their_folders_including_the_agents() -> None:
    files = {
        "/var/run/cdi/xpu-agent-npu.json": JSON,
        "/etc/cdi/nvidia.yaml": YAML,
        "/etc/cdi/README.md": "no spec",
        "/etc/cdi/nvidia.yml": "kind: a.b/c",  # which runtimes pass over
    }
    specs, problems = CdiSpecReader(recorded(files), ManualClock(wall_s=0.0)).read()
    assert [(spec.path, spec.kind) for spec in specs] == [
        ("/etc/cdi/nvidia.yaml", "nvidia.com/gpu"),
        ("/var/run/cdi/xpu-agent-npu.json", "xpu-agent.io/npu"),
    ]
    assert specs[0] == CdiSpec(
        path="/etc/cdi/nvidia.yaml",
        kind="nvidia.com/gpu",
        devices=(CdiDevice(name="0", nodes=("/dev/nvidia0",)),),
        mounts=("/usr/lib64/libcuda.so.570.1.2",),
    )
    assert problems == ()


BAD = [
    "",
    "[]",
    "kind: 7",
    "kind: nvidia.com",
    "a: b: c",
    "{",
    "\x00",
    "[" * 100_000,
    "- " * 100_000,
    '{"a":' * 100_000,
    "kind: a.b/c\nx: &x [1]\ny: *x",
    "kind: " + "a" * MAX_SPEC_BYTES,
    "kind: !!python/object/apply:os.system [id]",
]


@pytest.mark.parametrize("text", BAD, ids=[text[:12] for text in BAD])
def test_a_file_that_is_no_spec_is_a_problem_and_costs_itself_only(text: str) -> None:
    files = {"/etc/cdi/bad.yaml": text, "/etc/cdi/good.yaml": YAML}
    specs, problems = CdiSpecReader(recorded(files), ManualClock(wall_s=0.0)).read()
    assert [spec.path for spec in specs] == ["/etc/cdi/good.yaml"]
    assert [(reason, "/etc/cdi/bad.yaml" in why) for reason, why in problems] == [
        ("CdiSpecUnreadable", True)
    ]


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_data_or_unfit(data: bytes) -> None:
    try:
        decode_plain_data(data)
    except CdiSpecError:
        return


def test_a_spec_is_decoded_again_only_when_it_was_written(tmp_path: Path) -> None:
    host = Living(tmp_path)
    host.write("/etc/cdi/nvidia.yaml", YAML)
    specs = CdiSpecReader(host, ManualClock(wall_s=0.0))
    first = specs.read()
    host.reads.clear()
    assert specs.read() == first
    assert host.reads == []
    host.write("/etc/cdi/nvidia.yaml", YAML.replace('"0"', '"gpu0"'))
    assert specs.read()[0][0].devices[0].name == "gpu0"
    Path(host.path("/etc/cdi/nvidia.yaml")).unlink()
    assert specs.read() == ((), ())


def test_mounts_of_specs_are_checked_and_an_old_spec_is_reported() -> None:
    library = "/usr/lib64/libcuda.so.570.1.2"
    files = {"/etc/cdi/nvidia.yaml": YAML, library: ""}
    view = reader(recorded(files)).read(here([gpu(0)], "570.1.2"))
    assert library in view.vendors["nvidia"].paths
    assert view.problems == ()
    upgraded = reader(recorded(files)).read(here([gpu(0)], "580.0.0"))
    assert [reason for reason, _ in upgraded.problems] == ["CdiSpecStale"]
    host_view = reader(recorded({"/etc/cdi/nvidia.yaml": YAML})).read(here([gpu(0)], "570.1.2"))
    assert "is gone" in host_view.problems[0][1]
