"""`xpu-agent cgroup dump`: the control groups of this host and what their files hold."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping

import msgspec

from agent.cgroup.dump import MAX_GROUPS, CannotDump, GroupDump, dump
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.locate import LayoutLocator
from agent.cgroup.values.keys import V1_NO_LIMIT
from agent.cli import output
from agent.cli.terminal import standard_output, write_document
from agent.errors import BadConfig
from agent.recording.open import open_host

DONE, BAD_NEWS = 0, 1
MAX_DIGITS = 20  # of a number of 64 bits
# columns of the table: name, file of version 1, file of version 2
COLUMNS = (
    ("cpus", "cpuset.cpus", "cpuset.cpus"),
    ("weight", "cpu.shares", "cpu.weight"),
    ("quota", "cpu.cfs_quota_us", "cpu.max"),
    ("memory", "memory.usage_in_bytes", "memory.current"),
    ("memory_limit", "memory.limit_in_bytes", "memory.max"),
)


def cgroup(arguments: argparse.Namespace) -> int:
    """Print the groups below a path; status 1 if there are more than are printed."""
    host = open_host(arguments.host).files
    layout = LayoutLocator(host).look(time.monotonic())
    if layout is None:
        raise CannotDump("no control groups are mounted here")
    groups = list(dump(host, layout, _path(layout, arguments.path)))
    more = len(groups) > MAX_GROUPS
    shown = groups[:MAX_GROUPS]
    if arguments.output == "table":
        rows = [_row(layout, shown[0], one) for one in shown]
        sys.stdout.write(output.table(rows, standard_output()) + "\n")
    else:
        data = {
            "version": layout.version,
            "driver": layout.driver,
            "complete": not more,
            "groups": msgspec.to_builtins(shown),
        }
        write_document(output.dump(data, arguments.output))
    if more:
        print(f"xpu-agent: only the first {MAX_GROUPS} groups: name a PATH", file=sys.stderr)
    return BAD_NEWS if more else DONE


def _path(layout: CgroupLayout, path: str | None) -> str:
    """Return the cgroup that `path` names; raise `BadConfig` if it names none."""
    if path is None:
        return layout.root or "/"
    mounts = (layout.unified, *(point for _, point in layout.mounts))
    for mount in mounts:
        if mount and (path == mount or path.startswith(f"{mount}/")):
            path = path.removeprefix(mount) or "/"
            break
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise BadConfig(f"{path!r}: not the path of a group, as /kubepods")
    return path.rstrip("/") or "/"


def _row(layout: CgroupLayout, first: GroupDump, one: GroupDump) -> Mapping[str, object]:
    """Return one line; groups are indented below the first, which is named by its path."""
    depth = one.path.rstrip("/").count("/") - first.path.rstrip("/").count("/")
    name = one.path if one is first else "  " * depth + one.path.rpartition("/")[2]
    row: dict[str, object] = {"group": name, "processes": one.processes}
    for column, version_1, version_2 in COLUMNS:
        row[column] = one.files.get(version_1 if layout.version == 1 else version_2)
    limit = str(row["memory_limit"])
    if limit.isdigit() and int(limit[:MAX_DIGITS]) >= V1_NO_LIMIT:
        row["memory_limit"] = "max"  # the word of version 2
    return row
