"""The generated modules are those of the .proto files, and of the released wire format."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.message import Message

from proto.gen import podresources_v1_pb2 as pb
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]


def test_generated_modules_are_what_the_proto_files_give_now(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="`make proto` and `make unit` install it")
    sources = sorted((ROOT / "proto").glob("*.proto"))
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto/gen=proto", *outputs]
    names = [str(path.relative_to(ROOT)) for path in sources]
    subprocess.run([*command, *names], cwd=ROOT, check=True, timeout=PATIENCE_S)
    created = {path.name: path.read_text() for path in (tmp_path / "proto" / "gen").iterdir()}
    records = {path.name: path.read_text() for path in (ROOT / "proto" / "gen").glob("*.py*")}
    assert records == created


def test_methods_have_the_paths_that_the_kubelet_serves() -> None:
    service = pb.DESCRIPTOR.services_by_name["PodResourcesLister"]
    assert service.full_name == "v1.PodResourcesLister"
    assert [method.name for method in service.methods] == ["List", "GetAllocatableResources", "Get"]


def test_a_message_of_a_newer_kubelet_keeps_what_we_know() -> None:
    container_devices = pb.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-1"])
    newer = container_devices.SerializeToString() + b"\x82\x7d\x03new"  # field 2000, a string
    assert pb.ContainerDevices.FromString(newer).device_ids == ["GPU-1"]
    assert pb.ContainerDevices.FromString(newer).SerializeToString() == newer


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (pb.NUMANode(ID=1), b"\x08\x01"),
        (pb.DynamicResource(claim_name="c", claim_namespace="n"), b"\x12\x01c\x1a\x01n"),
        (pb.ClaimResource(share_id=""), b"\x2a\x00"),
        (pb.ContainerMemory(memory_type="memory", size=1), b"\x0a\x06memory\x10\x01"),
    ],
)
def test_field_numbers_are_those_of_the_wire(message: Message, wire: bytes) -> None:
    assert message.SerializeToString() == wire
