"""The ground that all else here stands on: a real runtime, a real pod, a command inside it."""

from __future__ import annotations

from tests.containerd.runtime.pods import Pod
from tests.containerd.runtime.running import Containerd


def test_a_pod_runs_and_a_command_inside_it_answers(runtime: Containerd) -> None:
    pod = Pod(runtime).run()
    container = pod.start(env={"GREETING": "hello"})
    said = runtime.cri.inside(container, "sh", "-c", "echo $GREETING")
    assert (said.out, said.status) == ("hello\n", 0)
    assert runtime.cri.version().runtime_version.startswith("1.7.")
