"""A client of the runtime's own interface: what a kubelet asks for, and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from proto.gen import cri_config_v1_pb2 as config_pb
from proto.gen import cri_runtime_v1_pb2 as pb
from tests.patience import PATIENCE_S

M = TypeVar("M", bound=Message)
CALL_S = PATIENCE_S
ANSWER_S = 1.0
EXEC_S = int(PATIENCE_S)


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command inside a container printed and returned."""

    out: str
    err: str
    status: int

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Cri:
    """All calls have a deadline; an error is grpc's, with the runtime's words in `details`."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(
            f"unix://{socket}",
            options=(
                ("grpc.default_authority", "localhost"),
                ("grpc.enable_http_proxy", 0),
                ("grpc.use_local_subchannel_pool", 1),
                # it is killed and started again: the next call is to try at once
                ("grpc.min_reconnect_backoff_ms", 20),
                ("grpc.initial_reconnect_backoff_ms", 20),
                ("grpc.max_reconnect_backoff_ms", 100),
            ),
        )

    def close(self) -> None:
        self._channel.close()

    def answers(self) -> bool:
        """Say whether the runtime is there."""
        try:
            self._call("Status", pb.StatusRequest(), pb.StatusResponse, ANSWER_S)
        except grpc.RpcError:
            return False
        return True

    def version(self) -> pb.VersionResponse:
        return self._call("Version", pb.VersionRequest(), pb.VersionResponse)

    def run_pod(self, config: config_pb.PodSandboxConfig, handler: str = "") -> str:
        request = pb.RunPodSandboxRequest(config=config, runtime_handler=handler)
        return self._call("RunPodSandbox", request, pb.RunPodSandboxResponse).pod_sandbox_id

    def stop_pod(self, pod_id: str) -> None:
        """Stop a pod with all its containers."""
        stop = pb.StopPodSandboxRequest(pod_sandbox_id=pod_id)
        self._call("StopPodSandbox", stop, pb.StopPodSandboxResponse)

    def remove_pod(self, pod_id: str) -> None:
        """Stop and remove a pod with all its containers."""
        self.stop_pod(pod_id)
        remove = pb.RemovePodSandboxRequest(pod_sandbox_id=pod_id)
        self._call("RemovePodSandbox", remove, pb.RemovePodSandboxResponse)

    def create(
        self,
        pod_id: str,
        config: config_pb.ContainerConfig,
        sandbox: config_pb.PodSandboxConfig,
    ) -> str:
        request = pb.CreateContainerRequest(
            pod_sandbox_id=pod_id, config=config, sandbox_config=sandbox
        )
        return self._call("CreateContainer", request, pb.CreateContainerResponse).container_id

    def start(self, container_id: str) -> None:
        request = pb.StartContainerRequest(container_id=container_id)
        self._call("StartContainer", request, pb.StartContainerResponse)

    def stop(self, container_id: str) -> None:
        """End a container at once."""
        request = pb.StopContainerRequest(container_id=container_id, timeout=0)
        self._call("StopContainer", request, pb.StopContainerResponse)

    def remove(self, container_id: str) -> None:
        request = pb.RemoveContainerRequest(container_id=container_id)
        self._call("RemoveContainer", request, pb.RemoveContainerResponse)

    def update(self, container_id: str, resources: config_pb.LinuxContainerResources) -> None:
        request = pb.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        self._call("UpdateContainerResources", request, pb.UpdateContainerResourcesResponse)

    def status(self, container_id: str) -> pb.ContainerStatusResponse:
        """Return a container's status, with the runtime's own record of it in `info`."""
        request = pb.ContainerStatusRequest(container_id=container_id, verbose=True)
        return self._call("ContainerStatus", request, pb.ContainerStatusResponse)

    def containers(self, pod_id: str = "") -> list[pb.Container]:
        request = pb.ListContainersRequest(filter=pb.ContainerFilter(pod_sandbox_id=pod_id))
        return list(self._call("ListContainers", request, pb.ListContainersResponse).containers)

    def pods(self) -> list[pb.PodSandbox]:
        listed = self._call("ListPodSandbox", pb.ListPodSandboxRequest(), pb.ListPodSandboxResponse)
        return list(listed.items)

    def remove_all(self) -> None:
        """Remove every pod."""
        for pod in self.pods():
            self.remove_pod(pod.id)

    def inside(self, container_id: str, *command: str) -> CommandOutput:
        """Run a command inside a container."""
        request = pb.ExecSyncRequest(container_id=container_id, cmd=command, timeout=EXEC_S)
        output = self._call("ExecSync", request, pb.ExecSyncResponse)
        return CommandOutput(output.stdout.decode(), output.stderr.decode(), output.exit_code)

    def _call(
        self, name: str, request: Message, answer: Callable[[], M], limit_s: float = CALL_S
    ) -> M:
        call: grpc.UnaryUnaryMultiCallable[Message, M] = self._channel.unary_unary(
            f"/runtime.v1.RuntimeService/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=lambda data: _parsed(answer, data),
        )
        output: M = call(request, timeout=limit_s, wait_for_ready=limit_s > ANSWER_S)
        return output


def _parsed(answer: Callable[[], M], data: bytes) -> M:
    message = answer()
    message.ParseFromString(data)
    return message
