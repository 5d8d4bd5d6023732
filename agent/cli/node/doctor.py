"""`xpu-agent doctor`: what is wrong on this node, why it matters, what to do."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable

from msgspec.structs import replace

from agent.cli.context import parts_of
from agent.cli.node.bundle import BundleSource, bundle_files
from agent.cli.output import dump
from agent.cli.record import look_with_tapes
from agent.cli.terminal import (
    DIM,
    GREEN,
    PLAIN,
    RED,
    YELLOW,
    Terminal,
    fit_lines,
    standard_output,
    write_document,
)
from agent.config.load import chosen_file, load
from agent.config.reference import effective_rows
from agent.daemon.containers.looking import means_reader
from agent.doctor.base import Finding, Result
from agent.doctor.looking import ask_agent, silent_vendors
from agent.doctor.looking import look as look_around
from agent.doctor.report import bad, bundle, findings, rows
from agent.errors import AgentError, BadConfig
from agent.model.part import Part
from agent.node.look import look
from agent.probe.base import remedy_of

DONE, BAD_NEWS = 0, 1
_STYLES = {Result.OK: GREEN, Result.WARN: YELLOW, Result.FAIL: RED, Result.SKIP: DIM}
_INDENT = " " * 6


class NoBundle(AgentError):
    """The archive cannot be written; names it."""


def findings_text(found: Iterable[Finding], terminal: Terminal = PLAIN) -> str:
    """Return findings for people: one line each, and below a warning or failure what to do."""
    lines: list[str] = []
    for one in found:
        result = one.result.value
        first, *more = fit_lines([f"{result:<5} {one.id}: {one.seen}"], terminal, _INDENT)
        lines += [terminal.paint(result, _STYLES[one.result]) + first[len(result) :], *more]
        if one.result in (Result.WARN, Result.FAIL):
            words = (_INDENT + text for text in (one.why, one.do) if text)
            lines += fit_lines(words, terminal)
    return "\n".join(lines) + "\n"


def doctor(arguments: argparse.Namespace) -> int:
    """Check everything once; status 1 if a check failed, or warns with --strict."""
    if arguments.pseudonymise and not arguments.bundle:
        raise BadConfig("doctor: --pseudonymise is about what --bundle FILE writes")
    parts = parts_of(arguments)
    live = parts.opened.spec is None
    plugins = parts.vendors
    answer = ask_agent(parts.settings) if live else (None, "a recorded host")
    silent = silent_vendors(answer, parts.opened.source)
    parts = replace(parts, vendors={n: one for n, one in plugins.items() if n not in silent})
    tapes: dict[str, bytes] = {}
    if arguments.bundle:
        snapshot, tapes = look_with_tapes(parts, usage=True)
    else:
        snapshot = look(parts, samples=1)
    means = Part(means_reader(parts).read(snapshot), parts.clock.monotonic())
    snapshot = parts.store.put(means=means)
    own = parts.opened.files

    def remedy(vendor: str, reason: str, message: str) -> str:
        plugin = plugins.get(vendor)
        return "" if plugin is None else remedy_of(plugin, reason, message)

    facts = look_around(
        parts.settings,
        snapshot,
        parts.host(),
        live=live,
        own=own,
        answer=answer,
        remedy=remedy,
    )
    found = findings(facts)
    if arguments.output == "table":
        sys.stdout.write(findings_text(found, standard_output()))
    else:
        write_document(dump({"checks": rows(found)}, arguments.output))
    if arguments.bundle:
        source = BundleSource(
            parts=parts,
            snapshot=snapshot,
            tapes=tapes,
            facts=facts,
            findings=found,
            settings=effective_rows(load(chosen_file(arguments.config), os.environ, {})),
        )
        files = bundle_files(source, pseudonymise=arguments.pseudonymise)
        try:
            bundle(arguments.bundle, files, time.time())
        except OSError as error:
            raise NoBundle(f"{arguments.bundle}: {error.strerror}") from error
    return BAD_NEWS if bad(found, strict=arguments.strict) else DONE
