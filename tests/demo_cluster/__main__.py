"""Run the demonstration until Ctrl-C, for `--seconds`, or with `--once` until it was all seen."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import yaml

from tests.apiserver import ApiServer
from tests.apiserver.admin import namespace
from tests.demo_cluster.nodes import (
    FAILING_MINOR,
    FAILING_NODE,
    NODES,
    agent_settings,
    scheduler_settings,
    write_hosts,
)
from tests.demo_cluster.observer import Chapter, Observer
from tests.demo_cluster.processes import ChildFailed, ChildProcess, stop_all
from tests.demo_cluster.workload import (
    EXAMPLE,
    NAMESPACE,
    WAITING,
    PodStream,
    Scheduling,
    pod_object,
)

STEP_S = 0.1
FIRST_FAULT_S, FAULT_PERIOD_S, CLEAN_S = 20.0, 60.0, 6.0  # at the speed 1
START_S = 120.0  # then the start has failed; two idle cores need five seconds
ONCE_S = 300.0  # then the story of `--once` has failed
DESCRIPTION = "Three agents on recorded hosts, xpu-scheduler and an API server, without a cluster."


class Cluster:
    """Everything that runs; `start` prints where."""

    def __init__(self, folder: Path, speed: float) -> None:
        self.folder = folder
        self.own_pod = folder / "pod.yaml"
        self._speed = speed
        self._hosts = write_hosts(folder, FIRST_FAULT_S / speed, FAULT_PERIOD_S / speed)
        self._resources = ExitStack()
        objects = [namespace(NAMESPACE), *(one.as_object() for one in NODES)]
        self.api = self._resources.enter_context(ApiServer(objects=objects, directory=folder))
        self.agents: dict[str, ChildProcess] = {}
        self._children: list[ChildProcess] = []

    def start(self, stop: threading.Event) -> None:
        """Start agents and scheduler; return when all have an address, or at a stop."""
        own_pod = pod_object(EXAMPLE, "mine")
        self.own_pod.write_text(yaml.safe_dump(own_pod, sort_keys=False))
        (self.folder / "agent.yaml").write_text(agent_settings(CLEAN_S / self._speed))
        (self.folder / "scheduler.yaml").write_text(scheduler_settings())
        for one in NODES:
            self.agents[one.name] = self._start_agent(one.name)
        arguments = ("plugins.scheduler.cli", "run", "--listen", "127.0.0.1:0")
        files = ("--config", f"{self.folder}/scheduler.yaml")
        self.scheduler = self._start_child("scheduler", *arguments, *files)
        until_s = time.monotonic() + START_S
        while not all(child.address for child in self._children) and not stop.is_set():
            self.check()
            if time.monotonic() > until_s:
                raise ChildFailed(f"not all processes have an address after {START_S:g} s")
            stop.wait(STEP_S / 2)

    def _start_agent(self, name: str) -> ChildProcess:
        out = self.folder / f"{name}.objects"
        arguments = ("agent", "run", "--node-name", name, "--host", str(self._hosts[name]))
        places = ("--listen", "127.0.0.1:0", "--out", str(out))
        files = ("--config", f"{self.folder}/agent.yaml")
        return self._start_child(f"agent-{name}", *arguments, *places, *files)

    def _start_child(self, name: str, *arguments: str) -> ChildProcess:
        """Start a process that finds the API server as a pod does, by its service account."""
        environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.api.port),
            "XPU_AGENT_SERVICE_ACCOUNT": str(self.api.serviceaccount_dir),
        }
        child = ChildProcess(name, arguments, self.folder, environment)
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raise `ChildFailed` if a process has ended."""
        for child in self._children:
            child.check()

    def stop(self) -> None:
        """End all processes, then the server."""
        stop_all(self._children)
        self._resources.close()


def print_line(text: str) -> None:
    """Print a line of the running log."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)  # noqa: T201 - the terminal's reader


def introduction(cluster: Cluster) -> str:
    """Return addresses, and commands to paste."""
    kubectl = Path(sys.executable).with_name("kubectl")
    with contextlib.suppress(ValueError):
        kubectl = kubectl.relative_to(Path.cwd())
    pages = [f"  {one.name:9} {cluster.agents[one.name].address}/   {one.about}" for one in NODES]
    page = cluster.agents[FAILING_NODE].address
    explain = f"{cluster.scheduler.address}/apis/v1/explain/{NAMESPACE}/{WAITING}-0"
    lines = (
        "",
        "Status pages of the agents (metrics at /metrics):",
        *pages,
        "",
        "In another terminal:",
        f"  export KUBECONFIG={cluster.api.kubeconfig}",
        f"  {kubectl} get nodes,devices,noderesourcetopologies",
        f"  {kubectl} -n {NAMESPACE} get pods -o wide",
        f"  {kubectl} -n {NAMESPACE} describe pod {WAITING}-0",
        f"  {kubectl} get events -A --watch",
        f"  {kubectl} apply -f {cluster.own_pod}   # a pod of your own: half a GPU",
        f"  {kubectl} get device {FAILING_NODE} -o yaml",
        f"  curl -s {explain}",
        f"  curl -s {page}/metrics | grep xpu_device_healthy",
        "",
        f"Card gpu {FAILING_MINOR} of {FAILING_NODE} fails now and then. Ctrl-C ends everything.",
        "",
    )
    return "\n".join(lines)


def tell(
    cluster: Cluster, stop: threading.Event, until_s: float, arguments: argparse.Namespace
) -> set[Chapter]:
    """Let the story run until a stop, the time `until_s`, or with `--once` its end."""
    scheduling = Scheduling(cluster.api, cluster.scheduler.address)
    try:
        pages = {name: child.address for name, child in cluster.agents.items()}
        observer = Observer(cluster.api, pages)
        stream = PodStream(cluster.api, scheduling, time.monotonic(), arguments.speed)
        while not stop.is_set() and time.monotonic() < until_s:
            cluster.check()
            lines = observer.step()
            if Chapter.DEVICES in observer.seen:  # pods come when there is something for them
                lines += stream.step(time.monotonic())
            for name in sorted(observer.pods_on_failed_cards):
                lines.append(stream.replace(name))
            observer.pods_on_failed_cards.clear()
            for line in lines:
                print_line(line)
            if observer.has_changed:
                scheduling.wake()
            if arguments.once and observer.seen == set(Chapter):
                break
            stop.wait(STEP_S)
        return observer.seen
    finally:
        scheduling.stop()


@contextlib.contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C, SIGTERM and the end of the terminal set."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    yield stop


class OneLineParser(argparse.ArgumentParser):
    """Prints errors as one line."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} ARGS=--help)\n")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = OneLineParser(prog="make demo-cluster", description=DESCRIPTION)
    parser.add_argument("--seconds", type=float, help="end after so many seconds")
    parser.add_argument(
        "--once",
        action="store_true",
        help="end when each part of the story was seen; status 1 if one was not",
    )
    parser.add_argument(
        "--speed",
        type=float,
        default=1.0,
        metavar="N",
        help="pods come and end, and the card fails, N times as often (0.1 to 10)",
    )
    arguments = parser.parse_args(argv)
    if not 0.1 <= arguments.speed <= 10:
        parser.error("--speed: 0.1 to 10")
    if arguments.seconds is not None and arguments.seconds <= 0:
        parser.error("--seconds: more than 0")
    return arguments


def main() -> int:
    """Return 0 at the end, 1 if a part of the story is missing or a process has ended."""
    arguments = parse_arguments()
    folder = Path(tempfile.mkdtemp(prefix="xpu-demo-"))
    with stop_signals() as stop:
        try:
            return run(arguments, folder, stop)
        except BrokenPipeError:  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def run(arguments: argparse.Namespace, folder: Path, stop: threading.Event) -> int:
    """Run the demonstration in a folder; return its exit status."""
    print_line("starting an API server, three agents on recorded hosts, and xpu-scheduler")
    began_s = time.monotonic()
    cluster = Cluster(folder, arguments.speed)
    try:
        cluster.start(stop)
        if stop.is_set():
            return 0
        print(introduction(cluster), flush=True)  # noqa: T201 - the terminal's reader
        limit_s = arguments.seconds or (ONCE_S if arguments.once else float("inf"))
        seen = tell(cluster, stop, began_s + limit_s, arguments)
    except ChildFailed as error:
        print_line(str(error))
        return 1
    finally:
        cluster.stop()
    print_line("all processes have ended, nothing is left")
    missing = set(Chapter) - seen if arguments.once else set()
    for chapter in sorted(missing, key=list(Chapter).index):
        print_line(f"not seen: {chapter.value}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
