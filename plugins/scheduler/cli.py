"""`xpu-scheduler`: decisions offline, and the configuration that attaches the extender."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from agent.command_line import EXIT_STATUS, ExitStatus, OneLineParser, run_command_line
from agent.errors import BadConfig, ParseError
from agent.log import configure_logging
from agent.version import VERSION
from plugins.scheduler.decision_text import decision_lines
from plugins.scheduler.devices.allocator import NodeRefused
from plugins.scheduler.devices.requests import InvalidRequest
from plugins.scheduler.gangs import gang_of
from plugins.scheduler.reasons import explain_reason
from plugins.scheduler.server.service import serve
from plugins.scheduler.server.settings import MAX_PORT, load_settings, scheduler_configuration
from plugins.scheduler.simulation import (
    ClusterFilesError,
    SimulatedCluster,
    SimulatedPod,
    load_cluster,
    load_documents,
    simulated_pod,
)

FREE_SIZES = (1, 2, 4, 8)  # GPUs of one pod, in the report on fragmentation


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""

    def command() -> int:
        arguments = build_parser().parse_args(argv)
        return COMMANDS[arguments.command](arguments)

    arguments = sys.argv[1:] if argv is None else argv
    return run_command_line("xpu-scheduler", command, discard=arguments[:1] == ["run"])


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = OneLineParser(
        prog="xpu-scheduler",
        description="Chooses devices for pods beside kube-scheduler.",
        epilog=EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"xpu-scheduler {VERSION}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=OneLineParser
    )
    simulate = commands.add_parser("simulate", help="one scheduling decision, nothing is bound")
    _add_cluster(simulate)
    simulate.add_argument(
        "--pod", type=Path, required=True, help="file with pods; each is decided on alone"
    )
    replay = commands.add_parser("replay", help="bind a stream of pods, one after another")
    _add_cluster(replay)
    replay.add_argument("--pods", type=Path, required=True, help="file with pods, in their order")
    run = commands.add_parser("run", help="the HTTP extender of kube-scheduler")
    run.add_argument("--config", default="", help="YAML file with settings")
    run.add_argument("--listen", default="", metavar="HOST:PORT", help="overrides the setting")
    run.add_argument("--kubeconfig", default="", help="default: the pod's own account")
    config = commands.add_parser("config", help="configuration of others")
    config.add_argument("what", choices=("scheduler",), help="the fragment for kube-scheduler")
    config.add_argument("--url", default="https://xpu-scheduler.kube-system.svc:8443")
    commands.add_parser("version", help="print the version")
    return parser


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster",
        type=Path,
        required=True,
        help="folder of YAML files with Nodes, Devices and Pods",
    )
    parser.add_argument("--config", default="", help="YAML file with settings, as for `run`")
    parser.add_argument(
        "--designated",
        action="store_true",
        help="give pods the devices of their annotation device-allocated, or refuse them",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")


def simulate(arguments: argparse.Namespace) -> int:
    """Print the decision for each pod of a file, nothing is bound; 1 if no node fits one of them.

    JSON is an object for one pod, and a list for several.
    """
    cluster = _cluster(arguments)
    pods = list(_pods(arguments.pod))
    if not pods:
        raise ClusterFilesError(f"{arguments.pod}: 0 pods in it instead of one")
    decisions = [cluster.decide(pod) for pod in pods]
    if arguments.output == "json":
        answer = decisions[0] if len(decisions) == 1 else decisions
        print(msgspec.json.format(msgspec.json.encode(answer)).decode())
    else:
        print("\n\n".join("\n".join(decision_lines(decision)) for decision in decisions))
    is_placed = all(decision.chosen is not None for decision in decisions)
    return ExitStatus.OK if is_placed else ExitStatus.PROBLEM_FOUND


def replay(arguments: argparse.Namespace) -> int:
    """Bind each pod to its best node; print placements, refusals and fragmentation.

    Pods of a gang are bound together, or none of them, once the last one of the stream has come.
    """
    cluster = _cluster(arguments)
    before = fragmentation(cluster.free_gpus().values())
    pods = list(_pods(arguments.pods))
    nodes, refusals = _place_all(cluster, pods)
    placements = [(pod.name, node) for pod, node in zip(pods, nodes, strict=True)]
    report = {
        "placements": [{"pod": pod, "node": node} for pod, node in placements],
        "refused": sum(node is None for _, node in placements),
        "refusals": dict(refusals.most_common()),
        "fragmentation": {
            "before": before,
            "after": fragmentation(cluster.free_gpus().values()),
        },
        "notes": cluster.notes,
    }
    if arguments.output == "json":
        print(json.dumps(report, indent=2))
    else:
        _print_report(report)
    return ExitStatus.PROBLEM_FOUND if report["refused"] else ExitStatus.OK


def _cluster(arguments: argparse.Namespace) -> SimulatedCluster:
    settings = load_settings(arguments.config)
    cluster = SimulatedCluster(settings, honors_designations=arguments.designated)
    load_cluster(arguments.cluster, cluster)
    return cluster


def _place_all(
    cluster: SimulatedCluster, pods: Sequence[SimulatedPod]
) -> tuple[list[str | None], Counter[str]]:
    """Return the node of each pod, and how often nodes were refused for each reason."""
    nodes: list[str | None] = [None] * len(pods)
    refusals = Counter[str]()
    gangs = [gang_of(one.pod) for one in pods]
    members: dict[tuple[str, str], list[int]] = {}
    for index, gang in enumerate(gangs):
        if gang is not None:
            members.setdefault((gang.namespace, gang.name), []).append(index)
    for index, (pod, gang) in enumerate(zip(pods, gangs, strict=True)):
        if gang is None:
            nodes[index], reasons = _place(cluster, pod)
            refusals.update(reasons)
            continue
        together = members[gang.namespace, gang.name]
        if index == together[-1]:
            placement = cluster.bind_together(gang, [pods[one] for one in together])
            refusals.update(placement.reasons)
            for one in together:
                nodes[one] = placement.nodes.get(pods[one].pod.key.uid)
    return nodes, refusals


def _place(cluster: SimulatedCluster, pod: SimulatedPod) -> tuple[str | None, tuple[str, ...]]:
    """Bind a pod to the first node that has the devices; else return the reasons of all nodes."""
    decision = cluster.decide(pod)
    if decision.chosen is not None:
        with contextlib.suppress(NodeRefused, InvalidRequest):
            cluster.bind(pod, decision.chosen)
            return decision.chosen, ()
    return None, tuple(reason for node in decision.nodes for reason in node.reasons)


def fragmentation(free_gpus: Iterable[int]) -> Mapping[str, object]:
    """Return the free whole GPUs, and for each size of a pod the part of them it cannot use.

    0.0: all free GPUs serve pods of that size; 1.0: none does; `None` without free GPUs.
    """
    free = tuple(free_gpus)
    total = sum(free)
    return {
        "freeGPUs": total,
        "unusableBySize": {
            str(size): round(1 - sum(one // size * size for one in free) / total, 4)
            if total
            else None
            for size in FREE_SIZES
        },
    }


def _pods(path: Path) -> Iterable[SimulatedPod]:
    for document in load_documents(path):
        if document.get("kind") == "Pod":
            try:
                yield simulated_pod(document)
            except ParseError as error:
                raise ClusterFilesError(f"{path}: {error}") from error


def _print_report(report: Mapping[str, object]) -> None:
    placements, refusals, by_moment, notes = (
        report[name] for name in ("placements", "refusals", "fragmentation", "notes")
    )
    if isinstance(placements, list):
        for placement in placements:
            print(f"{placement['pod']}  {placement['node'] or '-'}")
    if isinstance(refusals, dict):
        for reason, count in refusals.items():
            print(f"refused {count} x {reason}")
            if meaning := explain_reason(reason):
                print(f"  {meaning}")
    if isinstance(by_moment, dict):
        for moment, figures in by_moment.items():
            print(f"fragmentation {moment}: {json.dumps(figures)}")
    if isinstance(notes, list):
        for note in notes:
            print(f"note: {note}")


def version(_: argparse.Namespace) -> int:
    """Print the version."""
    print(f"xpu-scheduler {VERSION}")
    return ExitStatus.OK


def run(arguments: argparse.Namespace) -> int:
    """Serve kube-scheduler until a signal or the loss of the lease, which is status 1."""
    settings = load_settings(arguments.config)
    host, colon, port = (arguments.listen or settings.listen).rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= MAX_PORT
    if not colon or not is_port:
        raise BadConfig(f"listen: {arguments.listen or settings.listen!r} is not HOST:PORT")
    configure_logging(settings.log_level)
    return asyncio.run(serve(settings, (host, int(port)), arguments.kubeconfig))


def config(arguments: argparse.Namespace) -> int:
    """Print the part of KubeSchedulerConfiguration that attaches the extender."""
    print(scheduler_configuration(arguments.url), end="")
    return ExitStatus.OK


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "simulate": simulate,
    "replay": replay,
    "run": run,
    "config": config,
    "version": version,
}


if __name__ == "__main__":
    sys.exit(main())
