"""From a change of the devices to the objects that show it; the first thing that a start needs."""

from __future__ import annotations

from agent.daemon.telling.outlet import BoundedApplier, Outlet, Run
from agent.daemon.telling.publishing import PublisherRun
from agent.node.host_facts import HostFacts
from agent.node.parts import Parts
from agent.node.publishers import REPORT, wanted_publishers
from agent.state_writer import StateWriter


class DeviceChanges:
    """Joins the devices and publishes what they are in. Belongs to the devices' thread.

    Except for `facts.read`, which may hang in the kernel and is for the collector thread.
    """

    def __init__(self, parts: Parts, outlet: Outlet, facts: HostFacts) -> None:
        self.facts = facts
        wanted = wanted_publishers(parts.settings)
        runs = [outlet.run(item) for name, item in wanted.items() if name != REPORT]
        if parts.settings.publish.device_info_files:
            runs.append(info_file_run(parts))
        self.runs: tuple[Run, ...] = tuple(runs)

    def publish(self) -> None:
        """Join the vendors' answers with the places and publish the result."""
        self.facts.join()
        for run in self.runs:
            run.run_once()


def info_file_run(parts: Parts) -> PublisherRun:
    """Return the run that keeps our device-info file, which has a folder of its own."""
    # imported here: few nodes have a koordlet that reads it
    from agent.publish.infofiles.keep import InfoFileApplier  # noqa: PLC0415 - see above
    from agent.publish.infofiles.render import InfoFilePublisher  # noqa: PLC0415 - see above

    settings = parts.settings.publish
    writer = StateWriter("device-info files")
    applier = BoundedApplier(InfoFileApplier(settings.device_info_directory), writer)
    publisher = InfoFilePublisher(interval_s=settings.interval_s)
    return PublisherRun(publisher, applier, parts.store, parts.clock)
