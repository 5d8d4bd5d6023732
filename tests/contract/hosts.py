"""Hosts that vendors are asked about: recorded machines, and the example hosts of new vendors."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

from agent.recording.format import parse_recording
from agent.recording.host_source import open_host
from agent.recording.tree import TreeBuilder
from agent.snapshot.host_files import HostFiles
from agent.snapshot.vendor import DeviceVendor
from plugins.new import EXAMPLE_HOST, example_of
from plugins.vendors.template.vendor import TemplateVendor

FOLDER = Path(__file__).parents[2] / "fixtures/hosts"
HOSTS = tuple(sorted(i.name for i in FOLDER.iterdir() if (i / "host.txt").is_file()))
EMPTY: HostFiles = TreeBuilder().build("")


@functools.cache
def host_of(name: str) -> HostFiles:
    """Return the files of one of `HOSTS`."""
    return open_host(str(FOLDER / name)).files


def example_host(vendor: DeviceVendor) -> HostFiles | None:
    """Return the example host that `plugins.new` made beside a vendor; `None` if there is none."""
    if isinstance(vendor, TemplateVendor):
        return parse_recording(EXAMPLE_HOST.encode()).files
    module = Path(inspect.getfile(type(vendor))).resolve()
    for folder in module.parents:
        host = folder / example_of(vendor.description.name)
        if (host / "host.txt").is_file():
            return open_host(str(host)).files
    return None
