"""The ground that all else here stands on: a real runtime, a real pod, a command inside it."""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from proto.gen import cri_config_v1_pb2, cri_runtime_v1_pb2
from tests.containerd.agent_side.process import begun
from tests.containerd.agent_side.scene import PF, grant
from tests.containerd.runtime.inside import tell
from tests.containerd.runtime.pods import Pod
from tests.containerd.runtime.programs import programs
from tests.containerd.runtime.running import Containerd


def test_a_pod_runs_and_a_command_inside_it_answers(runtime: Containerd) -> None:
    pod = Pod(runtime).run()
    container = pod.start(env={"GREETING": "hello"})
    output = runtime.cri.inside(container, "sh", "-c", "echo $GREETING")
    assert (output.out, output.status) == ("hello\n", 0)
    assert runtime.cri.version().runtime_version.startswith("1.7.")


def test_a_container_with_rdma_is_made_with_memory_that_may_be_locked_without_limit(
    runtime: Containerd,
) -> None:
    device = {"minor": 0, "id": PF, "resources": {"koordinator.sh/rdma": 1}}
    with begun(runtime, "memlock"):  # the start itself is for whoever has CAP_SYS_RESOURCE
        container = Pod(runtime, grant(rdma=[device])).run().create()
    process = json.loads(runtime.cri.status(container).info["info"])["runtimeSpec"]["process"]
    tell("limits of a container with RDMA", process["rlimits"])
    everything = (1 << 64) - 1
    assert process["rlimits"] == [
        {"type": "RLIMIT_MEMLOCK", "soft": everything, "hard": everything},
    ]


def test_the_messages_are_those_that_this_runtime_was_built_with(runtime: Containerd) -> None:
    assert runtime.cri.answers()
    own = {
        name: message
        for module in (cri_config_v1_pb2, cri_runtime_v1_pb2)
        for name, message in module.DESCRIPTOR.message_types_by_name.items()
    }
    theirs = {message.name: message for message in built_in(programs()["containerd"]).message_type}
    for name, message in own.items():
        entries = {(field.name, field.number, field.type) for field in theirs[name].field}
        own_values = {(field.name, field.number, field.type) for field in message.fields}
        assert own_values <= entries, name


def built_in(program: Path) -> descriptor_pb2.FileDescriptorProto:
    """Return the description of the interface that Go programs carry, compressed."""
    data = program.read_bytes()
    for at in re.finditer(rb"\x1f\x8b\x08\x00\x00\x00\x00\x00[\x02\x04\x00]\xff", data):
        with contextlib.suppress(zlib.error, DecodeError):
            text = zlib.decompressobj(31).decompress(data[at.start() : at.start() + (1 << 18)])
            described = descriptor_pb2.FileDescriptorProto.FromString(text)
            if described.package == "runtime.v1":
                return described
    raise AssertionError(f"{program} describes no such interface")
