"""`xpu-agent cgroup dump`: the control groups of this host with the contents of their files."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping

import msgspec

from agent.cgroup.dump import MAX_GROUPS, CgroupDump, DumpError, dump_cgroups
from agent.cgroup.keys import V1_NO_LIMIT
from agent.cgroup.layout import CgroupLayout, LayoutLocator
from agent.cli import output
from agent.cli.options import command_settings
from agent.cli.terminal import standard_output, write_document
from agent.command_line import ExitStatus
from agent.errors import BadConfig
from agent.recording.host_source import open_host

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
    root = command_settings(arguments).kubelet.cgroup_root
    host = open_host(arguments.host).files
    layout = LayoutLocator(host, lambda: root).refresh(time.monotonic())
    if layout is None:
        raise DumpError("no control groups are mounted here")
    groups = list(dump_cgroups(host, layout, _cgroup_path(layout, arguments.path)))
    more = len(groups) > MAX_GROUPS
    listed = groups[:MAX_GROUPS]
    if arguments.output == "table":
        rows = [_group_row(layout, listed[0], one) for one in listed]
        sys.stdout.write(output.format_table(rows, standard_output()) + "\n")
    else:
        data = {
            "version": layout.version,
            "driver": layout.driver,
            "complete": not more,
            "groups": msgspec.to_builtins(listed),
        }
        write_document(output.format_document(data, arguments.output))
    if more:
        print(f"xpu-agent: only the first {MAX_GROUPS} groups: name a PATH", file=sys.stderr)
    return ExitStatus.PROBLEM_FOUND if more else ExitStatus.OK


def _cgroup_path(layout: CgroupLayout, path: str | None) -> str:
    """Return the cgroup of `path`; raises `BadConfig` if there is none."""
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


def _group_row(layout: CgroupLayout, first: CgroupDump, one: CgroupDump) -> Mapping[str, object]:
    """Return one line; groups are indented below the first one, which has its whole path."""
    depth = one.path.rstrip("/").count("/") - first.path.rstrip("/").count("/")
    name = one.path if one is first else "  " * depth + one.path.rpartition("/")[2]
    row: dict[str, object] = {"group": name, "processes": one.processes}
    for column, version_1, version_2 in COLUMNS:
        row[column] = one.files.get(version_1 if layout.version == 1 else version_2)
    limit = str(row["memory_limit"])
    if limit.isdigit() and int(limit[:MAX_DIGITS]) >= V1_NO_LIMIT:
        row["memory_limit"] = "max"  # the word of version 2
    return row
