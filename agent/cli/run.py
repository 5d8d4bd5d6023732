"""`xpu-agent run`: which host, which mode, then the daemon."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping

from agent.cli.options import settings_of
from agent.config.sections import Settings
from agent.daemon.listen import Address, parse_address
from agent.daemon.runtime import hurry
from agent.errors import BadConfig
from agent.node.crew import enlist
from agent.node.vendors import has_devices, wanted_vendors
from agent.probe.base import DeviceVendor
from agent.recording.open import OpenedHost, open_host

STILL = "A recording stands still: it has totals, but no rates."
CHOOSE = "Another host: make run HOST=fixtures/hosts/NAME, or --host PATH; HOST=/ is this machine."


def choose_host(
    arguments: argparse.Namespace, vendors: Mapping[str, DeviceVendor]
) -> tuple[OpenedHost, str]:
    """Return the host to show, and in words which it is and why."""
    if arguments.host:
        opened = open_host(arguments.host)
        if opened.spec is None:
            return opened, f"This machine, as asked. {CHOOSE}"
        return opened, f"Recorded host {opened.source}, as asked. {STILL} {CHOOSE}"
    live = open_host(None)
    if not arguments.demo_host or has_devices(live.files, vendors):
        return live, f"This machine. {CHOOSE}"
    opened = open_host(arguments.demo_host)
    reason = "because this machine has no accelerator and no RDMA device"
    return opened, f"Recorded host {opened.source}, {reason}. {STILL} {CHOOSE}"


def addresses(settings: Settings) -> tuple[Address, ...]:
    """Return where to listen; raise `BadConfig`."""
    metrics = settings.metrics
    found = [parse_address(metrics.listen)]
    if metrics.page_listen:
        found.append(parse_address(metrics.page_listen, "metrics.page_listen"))
    return tuple(found)


def run(arguments: argparse.Namespace) -> int:
    """Run the daemon until a signal, or with `--once` one cycle of everything."""
    if not arguments.standalone:
        raise BadConfig("run: this version knows no cluster yet: add --standalone")
    # until the daemon handles it: an exception can be lost in the middle of an import
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    hurry()
    settings = settings_of(arguments)
    listen = addresses(settings)
    vendors = wanted_vendors(settings)
    opened, notice = choose_host(arguments, vendors)
    print(notice, flush=True)
    crew = () if arguments.once else enlist(vendors.values(), opened, settings)
    # what follows loads all the rest; the workers start meanwhile
    from agent.cli.context import pods_of  # noqa: PLC0415 - see above
    from agent.clock import SystemClock  # noqa: PLC0415 - see above
    from agent.log import configure  # noqa: PLC0415 - see above
    from agent.node.parts import build_parts  # noqa: PLC0415 - see above

    configure(settings.log.level)
    parts = build_parts(settings, opened, SystemClock(), pods_of(arguments), vendors)
    if arguments.once:
        from agent.daemon.once import run_once  # noqa: PLC0415 - the daemon does without

        return run_once(parts, arguments.out, sys.stdout)
    from agent.daemon.serve import ServeOptions, serve  # noqa: PLC0415 - see above

    return serve(parts, crew, ServeOptions(listen=listen, out=arguments.out, notice=notice))
