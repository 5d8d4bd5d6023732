"""From a command's options to the parts it works with."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from agent.cli.options import settings_of
from agent.clock import Clock, ManualClock, SystemClock
from agent.errors import BadConfig
from agent.log import configure
from agent.model.pod import PodView
from agent.node.parts import Parts, build_parts
from agent.recording.open import OpenedHost, open_host


def pods_of(arguments: argparse.Namespace) -> Callable[[], tuple[PodView, ...]] | None:
    """Return where known pods come from: the file of `--pods`; `None` without one."""
    if not getattr(arguments, "pods", None) or arguments.pods is True:
        return None
    from agent.collect.pod_list import PodListFile  # noqa: PLC0415 - only where it is asked for

    known = PodListFile(arguments.pods)
    known()
    if known.error:
        raise BadConfig(f"--pods {known.error}")
    return known


def clock_of(opened: OpenedHost) -> Clock:
    """Return the machine's clock; on a recorded host one that stands at the recording's time.

    So that a command's answer about a recording is the same whenever it is asked.
    """
    if opened.spec is None:
        return SystemClock()
    return ManualClock() if opened.wall_s is None else ManualClock(wall_s=opened.wall_s)


def parts_of(arguments: argparse.Namespace) -> Parts:
    """Return the parts of a command that looks once."""
    settings = settings_of(arguments)
    configure(settings.log.level)
    opened = open_host(arguments.host)
    return build_parts(settings, opened, clock_of(opened), pods_of(arguments))
