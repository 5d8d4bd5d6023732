"""`xpu-agent doctor`: problems of this node, their effect, and remedies."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable

from msgspec.structs import replace

from agent.app.oneshot import build_host_device_reader, inspect_host
from agent.cli.bundle import BundleSource, bundle_files, write_bundle
from agent.cli.context import command_inputs, read_host_with_tapes
from agent.cli.output import format_document
from agent.cli.parser import ExitStatus
from agent.cli.terminal import (
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
from agent.config.reference import effective_rows
from agent.config.sources import choose_file, load_settings
from agent.doctor.check import CheckResult, CheckStatus
from agent.doctor.inputs import fetch_agent_snapshot, silent_vendors
from agent.doctor.inputs import read_inputs as look_around
from agent.doctor.report import is_bad_news, result_rows, run_checks
from agent.errors import AgentError, BadConfig
from agent.snapshot.part import SnapshotPart
from agent.workers.abilities import build_runbook
from agent.workers.load import load_vendors, vendor_descriptions

_STYLES = {
    CheckStatus.OK: GREEN,
    CheckStatus.WARN: YELLOW,
    CheckStatus.FAIL: RED,
    CheckStatus.SKIP: DIM,
}
_INDENT = " " * 6


class BundleWriteError(AgentError):
    """The archive cannot be written; the message names it."""


def results_text(results: Iterable[CheckResult], terminal: Terminal = PLAIN_TERMINAL) -> str:
    """Return results for people: one line each, and the remedy below a warning or failure."""
    lines: list[str] = []
    for one in results:
        result = one.status.value
        first, *more = fit_lines([f"{result:<5} {one.id}: {one.observation}"], terminal, _INDENT)
        lines += [terminal.paint(result, _STYLES[one.status]) + first[len(result) :], *more]
        if one.status in (CheckStatus.WARN, CheckStatus.FAIL):
            texts = (_INDENT + text for text in (one.impact, one.remedy) if text)
            lines += fit_lines(texts, terminal)
    return "\n".join(lines) + "\n"


def doctor(arguments: argparse.Namespace) -> int:
    """Run all checks once; status 1 if a check failed, or with --strict warns."""
    if arguments.pseudonymise and not arguments.bundle:
        raise BadConfig("doctor: --pseudonymise is about what --bundle FILE writes")
    inputs = command_inputs(arguments)
    live = inputs.is_live
    vendors = inputs.vendors
    answer = fetch_agent_snapshot(inputs.settings) if live else (None, "a recorded host")
    silent = silent_vendors(answer, inputs.host_source.source)
    inputs = replace(inputs, vendors={n: one for n, one in vendors.items() if n not in silent})
    tapes: dict[str, bytes] = {}
    if arguments.bundle:
        snapshot, tapes = read_host_with_tapes(inputs, usage=True)
    else:
        snapshot = inspect_host(inputs, samples=1)
    host_devices = build_host_device_reader(inputs).read(snapshot)
    snapshot = inputs.store.put(host_devices=SnapshotPart(host_devices, inputs.clock.monotonic()))
    own = inputs.host_source.files

    check_inputs = look_around(
        inputs.settings,
        snapshot,
        inputs.node_files,
        live=live,
        own=own,
        vendors=load_vendors(),
        answer=answer,
        runbook=build_runbook(vendors),
    )
    results = run_checks(check_inputs)
    if arguments.output == "table":
        sys.stdout.write(results_text(results, standard_output()))
    else:
        write_document(format_document({"checks": result_rows(results)}, arguments.output))
    if arguments.bundle:
        source = BundleSource(
            inputs=inputs,
            snapshot=snapshot,
            tapes=tapes,
            check_inputs=check_inputs,
            results=results,
            settings=effective_rows(
                load_settings(choose_file(arguments.config), os.environ, {}, vendor_descriptions())
            ),
        )
        files = bundle_files(source, pseudonymise=arguments.pseudonymise)
        try:
            write_bundle(arguments.bundle, files, time.time())
        except OSError as error:
            raise BundleWriteError(f"{arguments.bundle}: {error.strerror}") from error
    return (
        ExitStatus.PROBLEM_FOUND if is_bad_news(results, strict=arguments.strict) else ExitStatus.OK
    )
