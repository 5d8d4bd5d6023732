"""The argument parser: every command with its options, examples and exit status.

It imports no module of a command.
"""

from __future__ import annotations

import argparse

from agent.command_line import EXIT_STATUS, OneLineParser
from agent.version import VERSION
from agent.web.admin_socket import MAX_RELEASE_S, MIN_RELEASE_S

DOCTOR_TIMEOUT_S = 2.5
DOCTOR_TIMEOUT_BOUNDS_S = (0.5, 600.0)
FORMATS = ("table", "json", "yaml")
MAX_WAIT_S = 86400


def _command(
    commands: argparse._SubParsersAction[OneLineParser],
    name: str,
    about: str,
    *examples: str,
) -> OneLineParser:
    lines = "\n".join(f"  {example}" for example in examples)
    return commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=f"examples:\n{lines}\n\n{EXIT_STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        metavar="PATH",
        help="a recorded host instead of this machine: a recording, or a folder or tar archive "
        "with sys/ and proc/ in it",
    )
    _add_config(parser)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="settings (YAML); default: /etc/xpu-agent/config.yaml if it is there",
    )


def _add_output(parser: argparse.ArgumentParser, formats: tuple[str, ...] = FORMATS) -> None:
    parser.add_argument(
        "-o", "--output", choices=formats, default=formats[0], help=f"default: {formats[0]}"
    )


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pods", metavar="FILE", help="a kubelet's PodList (JSON or YAML)")
    parser.add_argument("--node-name", metavar="N", help="name of the Node object")


def _add_run(commands: argparse._SubParsersAction[OneLineParser]) -> None:
    run = _command(
        commands,
        "run",
        "run the agent",
        "xpu-agent run --standalone",
        "xpu-agent run --standalone --host fixtures/hosts/qemu-4numa-8xh100",
        "xpu-agent run --standalone --once --out /tmp/objects",
        "xpu-agent run --kubeconfig ~/.kube/config --node-name worker-3",
    )
    run.add_argument(
        "--standalone", action="store_true", help="no cluster: write the objects to --out"
    )
    run.add_argument("--out", metavar="DIR", default="./xpu-agent-out", help="default: %(default)s")
    run.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="the cluster to publish to; default: the pod's own account, else KUBECONFIG",
    )
    run.add_argument("--listen", metavar="HOST:PORT", help="default: 127.0.0.1:9316")
    run.add_argument("--once", action="store_true", help="one cycle of everything, then exit")
    run.add_argument(
        "--demo-host",
        metavar="PATH",
        help="the recorded host to show when this machine has no accelerator and no RDMA device",
    )
    _add_host(run)
    _add_inputs(run)


def _add_host_commands(commands: argparse._SubParsersAction[OneLineParser]) -> None:
    devices = _command(
        commands,
        "devices",
        "list accelerators and RDMA devices, with health and where they sit",
        "xpu-agent devices",
        "xpu-agent devices -o json | jq '.devices[] | select(.health.state != \"healthy\")'",
        "xpu-agent devices --host host.tar.xz",
    )
    _add_host(devices)
    _add_output(devices)

    topology = _command(
        commands,
        "topology",
        "show sockets, NUMA nodes, the PCIe tree and the distance of each pair of devices",
        "xpu-agent topology",
        "xpu-agent topology -o matrix",
        "xpu-agent topology -o svg > topology.svg",
    )
    _add_host(topology)
    _add_output(topology, ("tree", "matrix", "json", "svg"))

    snapshot = _command(
        commands,
        "snapshot",
        "print all that the agent knows of this node, with the age of each part",
        "xpu-agent snapshot | jq .parts.devices.age_s",
    )
    _add_host(snapshot)
    _add_inputs(snapshot)
    _add_output(snapshot, ("json", "yaml"))

    render = _command(
        commands,
        "render",
        "print exactly what run would publish",
        "xpu-agent render device",
        "xpu-agent render nodemetric --pods pods.json -o json",
        "xpu-agent render metrics",
    )
    render.add_argument("what", choices=("device", "nodemetric", "topology", "metrics", "cdi"))
    _add_host(render)
    _add_inputs(render)
    _add_output(render, ("yaml", "json"))

    plan = _command(
        commands,
        "plan",
        "print what hooks and strategies would change now, and why; change nothing",
        "xpu-agent plan",
        "xpu-agent plan --slo nodeslo.yaml --pods pods.json -o json",
        "xpu-agent plan --host node-17.tar.gz --slo nodeslo.yaml --pods pods.json",
    )
    plan.add_argument(
        "--slo",
        metavar="FILE",
        help="a NodeSLO (JSON or YAML); default: that of the agent that runs here",
    )
    _add_host(plan)
    _add_inputs(plan)
    _add_output(plan)

    cgroup = _command(
        commands,
        "cgroup",
        "show the control groups of this host",
        "xpu-agent cgroup dump",
        "xpu-agent cgroup dump /kubepods.slice/kubepods-burstable.slice -o json",
    )
    actions = cgroup.add_subparsers(dest="action", required=True, metavar="ACTION")
    dump = actions.add_parser(
        "dump",
        help="print groups with what their files hold; version 1 needs the extra v1-tools",
    )
    dump.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="a group, or its directory; default: the kubelet's root, else all groups",
    )
    _add_host(dump)
    _add_output(dump)

    record = _command(
        commands,
        "record",
        "record this host: the files the agent reads and the vendor libraries' answers",
        "xpu-agent record /tmp/node-17",
        "xpu-agent record /tmp/node-17.tar.gz --pseudonymise",
    )
    record.add_argument("out", metavar="OUT", help="a new folder, or a file that ends in .tar.gz")
    record.add_argument(
        "--pseudonymise",
        action="store_true",
        help="replace serials, UUIDs, MACs, GUIDs and host names, each always by the same other",
    )
    record.add_argument("--pods", action="store_true", help="also the pods' cgroups")
    _add_host(record)


def _positive_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_WAIT_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds up to {MAX_WAIT_S}")
    return seconds


def _release_s(text: str) -> float:
    """Return the seconds of a release; raise as `_seconds`."""
    return _seconds(text, MIN_RELEASE_S, MAX_RELEASE_S)


def _timeout_s(text: str) -> float:
    """Return the seconds that the doctor waits; raise as `_seconds`."""
    return _seconds(text, *DOCTOR_TIMEOUT_BOUNDS_S)


def _seconds(text: str, low: float, high: float) -> float:
    """Return a number of seconds.

    Raises an error that `argparse` reports with the flag's name.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not low <= seconds <= high:
        allowed = f"from {low:g} to {high:g}"
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds {allowed}")
    return seconds


def _add_agent_commands(commands: argparse._SubParsersAction[OneLineParser]) -> None:
    rescan = _command(
        commands,
        "rescan",
        "have the running agent look at this machine now, and ask every vendor",
        "xpu-agent rescan",
    )
    release = _command(
        commands,
        "release",
        "have the running agent let go of a vendor's driver, so that it can be unloaded",
        "xpu-agent release nvidia",
        "xpu-agent release nvidia --for-s 1800",
    )
    release.add_argument("vendor", metavar="VENDOR", help="nvidia, ascend and so on")
    release.add_argument(
        "--for-s",
        metavar="N",
        type=_release_s,
        default=600.0,
        help="seconds, from 1 to 3600; rescan ends it early; default: %(default)g",
    )
    clear = _command(
        commands,
        "clear",
        "have the running agent forget a fault that lasts until a person looked at the device",
        "xpu-agent clear 0000:3b:00.0",
    )
    clear.add_argument("device", metavar="DEVICE", help="its bus id or uuid")
    explain = _command(
        commands,
        "explain",
        "say of a pod, device or file what the running agent gave, set and wrote, and why",
        "xpu-agent explain pod default/training-0",
        "xpu-agent explain device 0000:3b:00.0 -o json",
        "xpu-agent explain file /sys/fs/cgroup/kubepods.slice/cpuset.cpus",
    )
    explain.add_argument("subject", choices=("pod", "device", "file"))
    explain.add_argument(
        "name",
        metavar="NAME",
        help="NAMESPACE/NAME of a pod; bus id, uuid or minor of a device; path of a file",
    )
    _add_output(explain)
    for command in (rescan, release, clear, explain):
        command.add_argument(
            "--socket",
            metavar="PATH",
            help="the agent's admin socket; default: admin.socket of the settings, else "
            "/run/xpu-agent/admin.sock, else ./xpu-agent-out/admin.sock",
        )
        _add_config(command)
    doctor = _command(
        commands,
        "doctor",
        "check this node: what is wrong, why it matters, what to do",
        "xpu-agent doctor",
        "xpu-agent doctor --bundle /tmp/node-17.tar.gz --pseudonymise",
        "xpu-agent doctor --list",
    )
    doctor.add_argument(
        "--list", action="store_true", help="print the checks with their groups; check nothing"
    )
    doctor.add_argument(
        "--bundle", metavar="FILE", help="also write all that was seen into a .tar.gz"
    )
    doctor.add_argument(
        "--pseudonymise",
        action="store_true",
        help="in the bundle: replace names of pods and hosts, serials, UUIDs and addresses",
    )
    doctor.add_argument("--strict", action="store_true", help="warnings are bad news as well")
    doctor.add_argument(
        "--timeout-s",
        metavar="N",
        type=_timeout_s,
        default=DOCTOR_TIMEOUT_S,
        help="seconds for drivers and for the API server, from 0.5 to 600; default: %(default)g, "
        "with which all takes less than five",
    )
    _add_host(doctor)
    _add_output(doctor)
    restore = _command(
        commands,
        "restore",
        "put back what the agent found in files of pods before it wrote them; stop it first",
        "xpu-agent restore --dry-run --config /etc/xpu-agent/config.yaml",
        "xpu-agent restore --config /etc/xpu-agent/config.yaml",
        "xpu-agent restore --all-nodes xpu-agent/xpu-agent",
        "xpu-agent restore --purge --config /etc/xpu-agent/config.yaml",
    )
    restore.add_argument(
        "--dry-run", action="store_true", help="say what would be put back, and change nothing"
    )
    restore.add_argument(
        "--force", action="store_true", help="also where somebody else has written since"
    )
    restore.add_argument(
        "--purge",
        action="store_true",
        help="then remove the agent's own state as well, to leave this node for good",
    )
    restore.add_argument(
        "--stay",
        action="store_true",
        help="if all is restored, wait for a stop signal: for the pods of a DaemonSet",
    )
    restore.add_argument(
        "--all-nodes",
        metavar="NAMESPACE/NAME",
        help="let the pods of this DaemonSet of the agent restore their nodes, and wait for them",
    )
    restore.add_argument(
        "--timeout-s",
        type=_positive_seconds,
        default=300.0,
        metavar="SECONDS",
        help="how long to wait for all nodes (300)",
    )
    _add_config(restore)


def _add_reference_commands(commands: argparse._SubParsersAction[OneLineParser]) -> None:
    config = _command(
        commands,
        "config",
        "check, show or explain settings",
        "xpu-agent config check config.yaml",
        "xpu-agent config show --config config.yaml",
        "xpu-agent config reference | less",
    )
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="say whether a settings file is valid")
    check.add_argument("file", metavar="FILE")
    show = actions.add_parser("show", help="print the settings in force and where each comes from")
    _add_config(show)
    _add_output(show)
    _add_output(actions.add_parser("reference", help="print every setting there is"))

    metrics = _command(
        commands, "metrics", "explain metrics", "xpu-agent metrics reference -o json"
    )
    actions = metrics.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_output(actions.add_parser("reference", help="print every metric there is"))

    version = _command(commands, "version", "print versions", "xpu-agent version -o json")
    _add_output(version)

    completion = _command(
        commands,
        "completion",
        "print the completion script of a shell",
        'eval "$(xpu-agent completion bash)"',
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def build_parser(*, only_run: bool = False) -> argparse.ArgumentParser:
    """Return the parser of `xpu-agent`; with `only_run` that of the command `run` alone."""
    parser = OneLineParser(
        prog="xpu-agent",
        description="Node agent for GPUs, NPUs and RDMA devices.",
        epilog=EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"xpu-agent {VERSION}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=OneLineParser
    )
    _add_run(commands)
    if not only_run:
        _add_host_commands(commands)
        _add_agent_commands(commands)
        _add_reference_commands(commands)
    return parser
