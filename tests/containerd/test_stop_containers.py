"""StopContainer of the agent at a real runtime."""

from __future__ import annotations

import asyncio
import time

from agent.kubelet.container_runtime import ContainerRuntime
from proto.gen import cri_runtime_v1_pb2 as pb
from tests.containerd.runtime.pods import Pod
from tests.containerd.runtime.running import Containerd


def stop(runtime: Containerd, *ids: str, grace_s: int = 1) -> str:
    own = ContainerRuntime(str(runtime.folder / "c.sock"))
    return asyncio.run(own.stop_containers(ids, grace_s))


def states(runtime: Containerd, *ids: str) -> list[int]:
    return [runtime.cri.status(one).status.state for one in ids]


def test_all_containers_of_a_pod_end_within_their_grace_period(runtime: Containerd) -> None:
    pod = Pod(runtime).run()
    ids = (pod.start("one"), pod.start("two"))
    began_s = time.monotonic()
    assert stop(runtime, *ids) == ""
    assert time.monotonic() - began_s < 1 + 5
    assert states(runtime, *ids) == [pb.CONTAINER_EXITED] * 2


def test_containers_that_have_ended_or_are_unknown_are_no_error(runtime: Containerd) -> None:
    pod = Pod(runtime).run()
    container = pod.start("one")
    assert stop(runtime, container) == ""
    assert stop(runtime, container, "0" * 64) == ""
