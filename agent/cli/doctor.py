"""`xpu-agent doctor`: problems of this node, their effect, and remedies."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from msgspec.structs import replace

from agent.app.composition import AgentInputs
from agent.app.identity import cluster_name, read_machine
from agent.app.lock import LOCK_FILE, read_holder
from agent.app.oneshot import build_host_device_reader, inspect_host
from agent.cli.bundle import BundleSource, bundle_files, write_bundle
from agent.cli.context import command_inputs, read_host_with_tapes
from agent.cli.output import format_document, format_table
from agent.cli.terminal import (
    BOLD,
    DIM,
    GREEN,
    PLAIN_TERMINAL,
    RED,
    YELLOW,
    Terminal,
    fit_lines,
    standard_output,
    write_document,
)
from agent.command_line import ExitStatus
from agent.config.address import parse_listen_address
from agent.config.reference import effective_rows
from agent.config.settings import Settings
from agent.config.sources import choose_file, load_settings
from agent.doctor.api_reader import ApiReader
from agent.doctor.check import CheckStatus
from agent.doctor.facts import HANGS, ApiFacts, EndpointFacts, LockFacts
from agent.doctor.host_facts import is_file_locked
from agent.doctor.inputs import (
    NO_SOURCES,
    AgentAnswer,
    OtherSources,
    fetch_agent_snapshot,
    fetch_page,
    is_encrypted,
    silent_vendors,
)
from agent.doctor.inputs import read_inputs as look_around
from agent.doctor.probes import Source, probe_http, probe_pod_resources
from agent.doctor.report import (
    Finding,
    by_group,
    check_rows,
    count_results,
    find_all,
    is_bad_news,
    result_rows,
)
from agent.errors import AgentError, BadConfig
from agent.kube.endpoint import find_api_target
from agent.kube.errors import NoApiServer
from agent.snapshot.part import SnapshotPart
from agent.workers.abilities import build_runbook
from agent.workers.load import load_vendors, vendor_descriptions

_STYLES = {
    CheckStatus.OK: GREEN,
    CheckStatus.WARN: YELLOW,
    CheckStatus.FAIL: RED,
    CheckStatus.SKIP: DIM,
}
_COUNT_WORDS = {
    CheckStatus.FAIL: "failed",
    CheckStatus.WARN: "warnings",
    CheckStatus.OK: "ok",
    CheckStatus.SKIP: "skipped",
}
_INDENT = " " * 6
SKIPPED_HEADING = "NOT CHECKED HERE"

# part of `--timeout-s` for the running agent, before drivers are called: both and the start of the
# interpreter take less than five seconds by default; all other sources are asked meanwhile
AGENT_SHARE = 0.4
KUBELET_HEALTH_PORT = 10248
KUBELET_HEALTH_ADDRESS = f"127.0.0.1:{KUBELET_HEALTH_PORT}"
HEALTH_PAGE, METRICS_PAGE = "/healthz?verbose", "/metrics"


class BundleWriteError(AgentError):
    """The archive cannot be written; the message names it."""


def results_text(findings: Iterable[Finding], terminal: Terminal = PLAIN_TERMINAL) -> str:
    """Return findings for people: by group, one line each, and remedies below what is bad.

    Checks that were skipped come last, by their reason.
    """
    findings = tuple(findings)
    skipped: dict[str, list[str]] = {}
    lines: list[str] = []
    for group, members in by_group(findings).items():
        done = [one for one in members if one.result.status is not CheckStatus.SKIP]
        if done:
            lines.append(terminal.paint(group.value.upper(), BOLD))
            lines += (line for one in done for line in _finding_lines(one, terminal))
            lines.append("")
        for one in members:
            if one.result.status is CheckStatus.SKIP:
                skipped.setdefault(one.result.observation, []).append(one.result.id)
    if skipped:
        lines.append(terminal.paint(SKIPPED_HEADING, BOLD))
        texts = (_printable(f"{reason}: {', '.join(names)}") for reason, names in skipped.items())
        lines += [*fit_lines(texts, terminal, _INDENT), ""]
    return "\n".join([*lines, *fit_lines([_summary(findings)], terminal)]) + "\n"


def _finding_lines(finding: Finding, terminal: Terminal) -> Iterator[str]:
    result = finding.result
    word = result.status.value
    text = _printable(f"{word:<5} {result.id}: {result.observation}")
    first, *more = fit_lines([text], terminal, _INDENT)
    yield terminal.paint(word, _STYLES[result.status]) + first[len(word) :]
    yield from more
    if result.status in (CheckStatus.WARN, CheckStatus.FAIL):
        runbook = f"runbook: docs/runbook.md#{finding.anchor}" if finding.anchor else ""
        details = filter(None, (result.impact, result.remedy, runbook))
        yield from fit_lines((_INDENT + _printable(detail) for detail in details), terminal)


def _printable(text: str) -> str:
    """Return a text without control characters, which would act on the terminal.

    Values of containers' variables and messages of servers are written by anybody.
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _summary(findings: Iterable[Finding]) -> str:
    """Return the number of results: 1 failed, 2 warnings, 40 ok, 9 skipped."""
    counts = count_results(findings)
    words = {**_COUNT_WORDS, CheckStatus.WARN: "warning"}
    return ", ".join(
        f"{number} {(words if number == 1 else _COUNT_WORDS)[status]}"
        for status, number in counts.items()
    )


def list_checks(output: str) -> int:
    """Print all checks."""
    rows = check_rows()
    if output == "table":
        sys.stdout.write(format_table(rows, standard_output()))
    else:
        write_document(format_document({"checks": rows}, output))
    return ExitStatus.OK


def doctor(arguments: argparse.Namespace) -> int:
    """Run all checks once; status 1 if a check failed, or with --strict warns."""
    if arguments.list:
        return list_checks(arguments.output)
    if arguments.pseudonymise and not arguments.bundle:
        raise BadConfig("doctor: --pseudonymise is about what --bundle FILE writes")
    inputs = command_inputs(arguments)
    live, settings = inputs.is_live, inputs.settings
    vendors = inputs.vendors
    sources = _Sources(inputs, arguments.timeout_s) if live else None
    answer: AgentAnswer = (None, "a recorded host")
    if sources is not None:
        answer = sources.agent_answer()
    silent = silent_vendors(answer, inputs.host_source.source)
    inputs = replace(inputs, vendors={n: one for n, one in vendors.items() if n not in silent})
    tapes: dict[str, bytes] = {}
    if arguments.bundle:
        snapshot, tapes = read_host_with_tapes(inputs, usage=True)
    else:
        snapshot = inspect_host(inputs, samples=1, within_s=arguments.timeout_s if live else None)
    host_devices = build_host_device_reader(inputs).read(snapshot)
    snapshot = inputs.store.put(host_devices=SnapshotPart(host_devices, inputs.clock.monotonic()))

    check_inputs = look_around(
        settings,
        snapshot,
        inputs.node_files,
        live=live,
        own=inputs.host_source.files,
        vendors=load_vendors(),
        answer=answer,
        runbook=build_runbook(vendors),
        sources=sources.take() if sources is not None else NO_SOURCES,
    )
    findings = find_all(check_inputs)
    if arguments.output == "table":
        sys.stdout.write(results_text(findings, standard_output()))
    else:
        write_document(format_document({"checks": result_rows(findings)}, arguments.output))
    if arguments.bundle:
        source = BundleSource(
            inputs=inputs,
            snapshot=snapshot,
            tapes=tapes,
            check_inputs=check_inputs,
            findings=findings,
            settings=effective_rows(
                load_settings(choose_file(arguments.config), os.environ, {}, vendor_descriptions())
            ),
        )
        files = bundle_files(source, pseudonymise=arguments.pseudonymise)
        try:
            write_bundle(arguments.bundle, files, time.time())
        except OSError as error:
            remedy = "name a file that can be written with --bundle"
            raise BundleWriteError(f"{arguments.bundle}: {error.strerror}; {remedy}") from error
    results = [finding.result for finding in findings]
    status = (
        ExitStatus.PROBLEM_FOUND if is_bad_news(results, strict=arguments.strict) else ExitStatus.OK
    )
    if sources is not None and sources.are_running:
        # the interpreter would wait for threads of libraries, which wait for a source that hangs
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


class _Sources:
    """All sources that may hang, asked at the same time on threads of their own."""

    def __init__(self, inputs: AgentInputs, timeout_s: float) -> None:
        """Begin to ask all of them."""
        self._inputs = inputs
        self._timeout_s = timeout_s
        settings = inputs.settings
        self._begun_s = time.monotonic()
        self._agent = Source(partial(fetch_agent_snapshot, settings), "agent")
        self._api_reader, self._api_absence = self._open_api()
        self._api = (
            None
            if self._api_reader is None
            else Source(partial(_run_reader, self._api_reader, timeout_s), "api-server")
        )
        self._pages = {
            path: Source(partial(fetch_page, settings, path, statuses), "page")
            for path, statuses in ((HEALTH_PAGE, (200, 503)), (METRICS_PAGE, (200,)))
        }
        deadline_s = max(0.2, timeout_s - 0.5)  # so that a source can say itself that it is late
        self._metrics_port = Source(partial(_probe_metrics, settings, deadline_s), "metrics")
        health = partial(
            probe_http, "127.0.0.1", KUBELET_HEALTH_PORT, "/healthz", deadline_s, b"ok"
        )
        self._kubelet_health = Source(health, "kubelet")
        self._socket = f"{settings.kubelet.root_dir.rstrip('/')}/pod-resources/kubelet.sock"
        self._pod_resources = Source(
            partial(probe_pod_resources, self._socket, deadline_s), "pod-resources"
        )

    def _open_api(self) -> tuple[ApiReader | None, str]:
        """Return a reader of the API server, or the reason why there is none."""
        inputs, settings = self._inputs, self._inputs.settings
        try:
            target = find_api_target(os.environ, settings.api.kubeconfig, settings.api.context)
            name = cluster_name(inputs.host_source, settings)
        except (NoApiServer, BadConfig) as error:
            return None, str(error)
        return ApiReader(target, settings, name, inputs.clock), ""

    def agent_answer(self) -> AgentAnswer:
        """Return the running agent's answer, within its deadline."""
        deadline_s = AGENT_SHARE * self._timeout_s
        answer = self._agent.result(self._begun_s + deadline_s)
        return answer or (None, f"the agent does not answer within {deadline_s:g} s")

    def take(self) -> OtherSources:
        """Return the answers of the other sources; those that are late are missing."""
        until_s = self._begun_s + self._timeout_s
        if self._api is not None:
            self._api.result(until_s)
        api = ApiFacts(absence=self._api_absence)
        if self._api_reader is not None:
            api = self._api_reader.facts
        pages: Mapping[str, bytes | None] = {
            path: (source.result(until_s) or (None, ""))[0] for path, source in self._pages.items()
        }
        files = self._inputs.host_source.files
        return OtherSources(
            api=api,
            lock=_lock_facts(self._inputs.settings.node.run_dir),
            machine_id=read_machine(files).machine_id,
            health_page=pages[HEALTH_PAGE],
            metrics_page=pages[METRICS_PAGE],
            metrics_port=self._metrics_port.result(until_s),
            kubelet_health=self._kubelet_health.result(until_s) or _late(KUBELET_HEALTH_ADDRESS),
            pod_resources=self._pod_resources.result(until_s) or _late(self._socket),
        )

    @property
    def are_running(self) -> bool:
        """Return whether a source hangs."""
        sources = [self._agent, self._api, *self._pages.values(), self._metrics_port,
                   self._kubelet_health, self._pod_resources]  # fmt: skip
        return any(source is not None and source.is_running for source in sources)


def _late(address: str) -> EndpointFacts:
    """Return that a source did not answer in time."""
    return EndpointFacts(address=address, state=HANGS, detail="no answer in time")


def _run_reader(reader: ApiReader, deadline_s: float) -> bool:
    asyncio.run(reader.read(os.environ, deadline_s))
    return True


def _probe_metrics(settings: Settings, deadline_s: float) -> EndpointFacts | None:
    try:
        address = parse_listen_address(settings.metrics.listen)
    except BadConfig:
        return None
    encrypted = is_encrypted(settings.metrics)
    return probe_http(
        address.local_host, address.port, "/livez", deadline_s, b"ok\n", encrypted=encrypted
    )


def _lock_facts(folder: str) -> LockFacts | None:
    """Return facts about the lock of this node; `None` if there is none."""
    path = os.path.join(folder, LOCK_FILE)
    if not os.path.exists(path):
        return None
    holder = read_holder(folder)
    return LockFacts(
        path=path,
        holder="" if holder is None else str(holder),
        version="" if holder is None else holder.version,
        has_left=holder is not None and holder.state == "leaving",
        is_locked=is_file_locked(path),
    )
