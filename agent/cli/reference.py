"""Commands that read no host: settings, metrics, versions, completion."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from agent.access.agent_settings import check_access
from agent.cli.output import print_rows
from agent.cli.parser import build_parser
from agent.config.address import listen_addresses
from agent.config.reference import effective_rows, reference_rows
from agent.config.sources import choose_file, load_settings
from agent.deviceplugin.allocator import Allocator
from agent.devices.joiner import numa_overrides
from agent.errors import BadConfig
from agent.metrics.exposition import MetricsRenderer
from agent.metrics.families import PROCESS_FAMILIES, ExportedFamily
from agent.metrics.families import reference_rows as rows_of
from agent.metrics.hami import HAMI_ALIAS, HAMI_LEGACY_ALIAS
from agent.metrics.infiniband import NODE_EXPORTER_ALIAS
from agent.metrics.koordlet import KOORDLET_ALIAS
from agent.snapshot.vendor import AliasTable
from agent.version import VERSION
from agent.workers.load import load_enabled_vendors, load_vendors, vendor_descriptions

NOT_INSTALLED = "not installed"
DISTRIBUTION = "xpu-node-agent"
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)[^;]*(?:;.*extra == [\"']([\w-]+)[\"'])?")
PROTOCOLS = (
    ("Device", "scheduling.koordinator.sh/v1alpha1"),
    ("NodeMetric", "slo.koordinator.sh/v1alpha1"),
    ("NodeSLO", "slo.koordinator.sh/v1alpha1"),
    ("NodeResourceTopology", "topology.node.k8s.io/v1alpha1"),
    ("NRI", "v1alpha1"),
    ("kubelet device plug-in", "v1beta1"),
    ("kubelet pod-resources", "v1"),
    ("CDI", "0.3.0 to 0.6.0"),
)


def config(arguments: argparse.Namespace) -> int:
    """Check a settings file, print the settings in force, or print the reference."""
    if arguments.action == "check":
        return _check_settings_file(Path(arguments.file))
    if arguments.action == "show":
        file = choose_file(arguments.config)
        print_rows(
            effective_rows(load_settings(file, os.environ, {}, vendor_descriptions())),
            arguments.output,
            "settings",
        )
    else:
        print_rows(reference_rows(vendor_descriptions()), arguments.output, "settings")
    return 0


def _check_settings_file(file: Path) -> int:
    try:
        settings = load_settings(file, {}, {}, vendor_descriptions()).settings
        vendors = load_enabled_vendors(settings)
        Allocator(settings.device_plugin, vendors)
        listen_addresses(settings.metrics)
        check_access(settings.metrics)
        numa_overrides(settings)
    except BadConfig as error:
        if not file.exists():
            raise
        print(f"xpu-agent: {error}", file=sys.stderr)
        return 1
    print(f"{file}: valid")
    return 0


def metrics(arguments: argparse.Namespace) -> int:
    """Print every metric, those of vendors as well: name, type, labels, unit, stability, alias."""
    renderer = _renderer()
    print_rows(rows_of((*renderer.families, *PROCESS_FAMILIES)), arguments.output, "metrics")
    for error in renderer.errors:
        print(f"xpu-agent: {error}", file=sys.stderr)
    return 0


def exported_families() -> tuple[ExportedFamily, ...]:
    """Return every family that the agent may export, with all aliases."""
    return (*_renderer().families, *PROCESS_FAMILIES)


def exported_alias_tables() -> tuple[AliasTable, ...]:
    """Return the tables of other exporters' names that vendors declare."""
    return tuple(table for vendor in vendor_descriptions() for table in vendor.aliases)


def _renderer() -> MetricsRenderer:
    vendors = load_vendors()
    families = {name: vendor.description.families for name, vendor in vendors.items()}
    tables = exported_alias_tables()
    own_names = (HAMI_ALIAS, HAMI_LEGACY_ALIAS, KOORDLET_ALIAS, NODE_EXPORTER_ALIAS)
    names = (*own_names, *(table.name for table in tables))
    return MetricsRenderer(families, aliases=names, alias_tables=tables)


def _library_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def _libraries() -> Iterator[str]:
    """Yield the requirements of the distribution, and the installed ones of its extras."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from a source tree
        requirements = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None or match[2] == "dev":
            continue
        if match[2] is None or _library_version(match[1]) != NOT_INSTALLED:
            yield match[1]


def _vendors() -> Iterator[tuple[str, str]]:
    """Yield each vendor with its module and its distribution."""
    try:
        vendors = load_vendors()
    except BadConfig as error:  # an installed plug-in that cannot be loaded
        yield "plug-ins", str(error)
        return
    owners = metadata.packages_distributions()
    for name, vendor in vendors.items():
        module = type(vendor).__module__
        owner = next(iter(owners.get(module.partition(".")[0], [])), DISTRIBUTION)
        yield name, f"{module} of {owner} {_library_version(owner)}"


def version(arguments: argparse.Namespace) -> int:
    """Print versions of the agent, Python, libraries, vendor plug-ins and protocols."""
    rows = [
        {"what": "xpu-agent", "version": VERSION},
        {"what": "Python", "version": platform.python_version()},
        *({"what": name, "version": _library_version(name)} for name in _libraries()),
        *({"what": f"vendor {name}", "version": origin} for name, origin in _vendors()),
        *({"what": name, "version": number} for name, number in PROTOCOLS),
    ]
    print_rows(rows, arguments.output, "versions")
    return 0


def completion(arguments: argparse.Namespace) -> int:
    """Print a shell's completion script."""
    import shtab  # noqa: PLC0415 - only here

    print(shtab.complete(build_parser(), shell=arguments.shell))
    return 0
