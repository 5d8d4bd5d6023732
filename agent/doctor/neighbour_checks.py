"""Checks of other programs on the node: agents for the same devices, exporters, ports."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.check import (
    NO_DEVICE,
    PROCESSES_HIDDEN,
    RECORDED,
    Check,
    CheckGroup,
    CheckInputs,
    CheckResult,
    fail,
    join_names,
    ok,
    skip,
    warn,
)
from agent.doctor.facts import ABSENT, ANSWERS, HANGS

KOORDLET = "koordlet"
HAMI_PROGRAMS = ("vGPUmonitor", "nvidia-device-plugin-hami", "hami-device-plugin")
# programs that export under names of `metrics.aliases`, besides those of vendors
EXPORTERS = (
    ("koordlet", "koordlet"),
    ("node_exporter", "node_exporter"),
    ("vGPUmonitor", "hami"),
    ("vGPUmonitor", "hami_legacy"),
)
_OTHER_RESCTRL_USERS = ("pqos", "rdtset", "rmd", "goresctrl")


def _hidden(facts: CheckInputs) -> str:
    """Return why processes are not visible; empty if they are."""
    if not facts.is_live:
        return RECORDED
    return PROCESSES_HIDDEN if facts.processes is None else ""


def check_koordlet(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether koordlet runs beside the agent."""
    if reason := _hidden(facts):
        yield skip("koordlet", reason)
    elif (pid := facts.runs(KOORDLET)) is not None:
        yield warn(
            "koordlet",
            f"koordlet runs as process {pid}",
            impact="both write files of pods, and the objects Device and NodeMetric: limits and "
            "devices change to and fro",
            remedy="keep koordlet off nodes with this agent by a nodeSelector of its DaemonSet; "
            "docs/ says how to move over",
        )
    else:
        yield ok("koordlet", "does not run")


def check_device_plugins(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether another program offers the same devices to the kubelet."""
    if not facts.vendors:
        return
    rivals = [
        f"{program} (process {pid})"
        for vendor in facts.vendors.values()
        for program in vendor.requirements.device_plugins
        if (pid := facts.runs(program)) is not None
    ]
    sockets = [
        name
        for name in facts.plugin_sockets or ()
        for vendor in facts.vendors.values()
        if vendor.socket_prefixes and name.startswith(vendor.socket_prefixes)
    ]
    if facts.processes is None and facts.plugin_sockets is None:
        yield skip("device-plugins", RECORDED if not facts.is_live else PROCESSES_HIDDEN)
    elif rivals or sockets:
        served = facts.settings.device_plugin.vendors
        report = fail if served and rivals else warn
        yield report(
            "device-plugins",
            join_names([*rivals, *(f"socket {name}" for name in sockets)]),
            impact="the kubelet and the scheduler hand out the same cards twice"
            if not served
            else "the kubelet knows the resource of the one that registered last",
            remedy="keep the other device plug-in off nodes with this agent, or let only it serve "
            "these devices (device_plugin.vendors) and schedule no pod by allocations",
        )
    else:
        yield ok("device-plugins", "no other one")


def check_hami(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether HAMi's own agent runs beside this one."""
    if reason := _hidden(facts):
        yield skip("hami", reason)
        return
    found = [name for name in HAMI_PROGRAMS if facts.runs(name) is not None]
    if found:
        yield warn(
            "hami",
            f"{join_names(found)} runs",
            impact="HAMi's scheduler and this agent's count shares of the same cards separately",
            remedy="keep HAMi's DaemonSet off these nodes; pods keep their library "
            "(daemonset/components/hami-core)",
        )
    else:
        yield ok("hami", "does not run")


def check_resctrl_users(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether another program divides the cache."""
    if reason := _hidden(facts):
        yield skip("resctrl-users", reason)
        return
    found = [name for name in _OTHER_RESCTRL_USERS if facts.runs(name) is not None]
    if found:
        yield warn(
            "resctrl-users",
            f"{join_names(found)} runs",
            impact="two programs write schemata: classes get masks that nobody asked for",
            remedy="stop it, or set enforce.strategies.resctrl: off",
        )
    else:
        yield ok("resctrl-users", "none")


def check_exporters(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether another exporter has the names that aliases switch on."""
    aliases = facts.settings.metrics.aliases
    if not aliases:
        yield skip("metrics-aliases", "metrics.aliases is empty")
        return
    if reason := _hidden(facts):
        yield skip("metrics-aliases", reason)
        return
    programs = [*EXPORTERS]
    for vendor in facts.vendors.values():
        programs += vendor.requirements.exporters
    doubled = sorted(
        {
            f"{program} ({alias})"
            for program, alias in programs
            if alias in aliases and facts.runs(program) is not None
        }
    )
    if doubled:
        yield warn(
            "metrics-aliases",
            f"{join_names(doubled)} runs, and metrics.aliases has its names",
            impact="sums over nodes count devices twice",
            remedy="remove that exporter from these nodes, or the name from metrics.aliases",
        )
    else:
        yield ok("metrics-aliases", join_names(list(aliases)))


def check_metrics_port(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the agent answers at the address of its metrics."""
    port = facts.metrics_port
    if port is None:
        yield skip("metrics-port", RECORDED if not facts.is_live else "no address to ask")
    elif port.state == ANSWERS:
        yield ok("metrics-port", f"{port.address} answers")
    elif port.state == ABSENT and facts.agent is None:
        yield skip("metrics-port", f"nobody listens at {port.address}, and no agent answers")
    elif port.state == ABSENT:
        yield fail(
            "metrics-port",
            f"the agent answers, and nobody listens at {port.address}",
            impact="Prometheus and the probes of the pod reach nothing",
            remedy="set metrics.listen to an address of this machine; see the agent's log",
        )
    elif port.state == HANGS:
        yield warn(
            "metrics-port",
            f"{port.address} does not answer in time",
            impact="scrapes fail, and the liveness probe restarts the pod",
            remedy="see the loops in /healthz?verbose and the agent's log",
        )
    else:
        yield fail(
            "metrics-port",
            f"another program listens at {port.address}: {port.detail}",
            impact="the agent cannot listen: with hostNetwork its pod does not become ready",
            remedy="give one of the two another port (metrics.listen, hostPort)",
        )


def check_series(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether all series of pods and containers are exported."""
    if facts.cut_series is None:
        return
    if facts.cut_series:
        yield warn(
            "metrics-series",
            f"{facts.cut_series:.0f} series were left out",
            impact="pods and containers are missing in dashboards",
            remedy="raise metrics.max_series, or set metrics.pods: false",
        )
    else:
        yield ok("metrics-series", "none was left out")


CHECKS = (
    Check(
        id="koordlet",
        group=CheckGroup.OTHER_AGENTS,
        question="Is koordlet off this node?",
        run=check_koordlet,
    ),
    Check(
        id="device-plugins",
        group=CheckGroup.OTHER_AGENTS,
        question="Does no other program offer these devices to the kubelet?",
        run=check_device_plugins,
        absence=NO_DEVICE,
    ),
    Check(
        id="hami",
        group=CheckGroup.OTHER_AGENTS,
        question="Is HAMi's agent off this node?",
        run=check_hami,
    ),
    Check(
        id="resctrl-users",
        group=CheckGroup.OTHER_AGENTS,
        question="Does no other program divide the cache?",
        run=check_resctrl_users,
    ),
    Check(
        id="metrics-port",
        group=CheckGroup.METRICS,
        question="Does the agent answer at the address of its metrics?",
        run=check_metrics_port,
    ),
    Check(
        id="metrics-aliases",
        group=CheckGroup.METRICS,
        question="Does no other exporter export the names of metrics.aliases?",
        run=check_exporters,
    ),
    Check(
        id="metrics-series",
        group=CheckGroup.METRICS,
        question="Are all series of pods and containers exported?",
        run=check_series,
        absence="the agent's metrics cannot be read",
    ),
)
