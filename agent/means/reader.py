"""Everything the host has for containers, vendor by vendor, read before anybody asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from agent.cgroup.locate import KubeletRoot, nowhere
from agent.clock import Clock
from agent.errors import HostFileError
from agent.host.files import HostFiles, text
from agent.means.functions import FunctionReader
from agent.means.handler import HandlerReader
from agent.means.kernel import KernelReader
from agent.means.nodes import NodeFinder, read_majors
from agent.means.specs import SpecReader
from agent.model.device import VendorDevice
from agent.model.grant.host import CdiSpec, HostMeans, HostNeeds
from agent.model.grant.means import MeansView
from agent.model.grant.owners import devices_by_vendor
from agent.model.snapshot import NodeSnapshot
from plugins.injection.cdi import stale

RESCTRL = "/sys/fs/resctrl"
_NO_GROUPS = ("info", "mon_data", "mon_groups")
MAX_GROUPS = 256
MAX_LISTED = 128  # paths of a mount list, as its own reader takes
MAX_LIST_BYTES = 16 * 1024
MAX_PATH = 1024
STALE = "CdiSpecStale"


class MeansReader:
    """Reads one host. Belongs to one thread; what did not change is not read again."""

    def __init__(
        self,
        host: HostFiles,
        needs: Mapping[str, HostNeeds],
        settings: Mapping[str, Mapping[str, object]],
        clock: Clock,
        kubelet_root: KubeletRoot = nowhere,
    ) -> None:
        """Begin without a look. By the vendors' names: what each needs, and its own settings."""
        self._host = host
        self._needs = needs
        self._settings = settings
        self._clock = clock
        self._nodes = NodeFinder(host, clock.wall)
        self._specs = SpecReader(host, clock.wall)
        self._handler = HandlerReader(host, clock.wall)
        self._functions = FunctionReader(host)
        self._kernel = KernelReader(host, kubelet_root)
        self._last = MeansView()

    def read(self, snapshot: NodeSnapshot) -> MeansView:
        """Return what there is for each vendor that is here; an equal view is the same object.

        A file that cannot be read costs what is in it: it is told as a problem, and never raises.
        """
        self._nodes.begin()
        specs, problems = self._specs.read()
        mounts = frozenset(self._existing(chain.from_iterable(spec.mounts for spec in specs)))
        common = HostMeans(
            majors=read_majors(self._host),
            paths=mounts,
            cdi=specs,
            default_handler=self._handler.read(snapshot.runtime.value.runtime),
        )
        drivers = {
            state.vendor: state.inventory.value.driver_version if state.inventory.value else None
            for state in snapshot.vendors
        }
        own = devices_by_vendor(snapshot)
        vendors = {
            name: self._vendor(common, name, own.get(name, ()), drivers[name], snapshot)
            for name in drivers
            if name in self._needs
        }
        view = MeansView(
            vendors=vendors,
            resctrl_groups=self._resctrl(),
            kernel=self._kernel.read(self._clock.monotonic()),
            problems=(*problems, *_stale(specs, mounts, drivers.get("nvidia"))),
        )
        if view != self._last:
            self._last = view
        return self._last

    def _vendor(
        self,
        common: HostMeans,
        name: str,
        devices: tuple[VendorDevice, ...],
        driver: str | None,
        snapshot: NodeSnapshot,
    ) -> HostMeans:
        needs = self._needs[name]
        listed = self._mount_list(needs.mount_list)
        paths = (*needs.paths, *(listed or ()))
        now_s = self._clock.monotonic()
        return HostMeans(
            nodes=self._nodes.find(needs.nodes, _paths_of(devices)),
            paths=common.paths.union(self._existing(paths)),
            majors=common.majors,
            cdi=common.cdi,
            default_handler=common.default_handler,
            driver_version=driver,
            functions=self._functions.read(devices, now_s) if needs.functions else (),
            mps=snapshot.sharing.value.mps if needs.mps else (),
            mount_list=listed,
            settings=self._settings.get(name, {}),
        )

    def _existing(self, paths: Iterable[str]) -> Iterator[str]:
        return (path for path in dict.fromkeys(paths) if _plain(path) and self._host.exists(path))

    def _mount_list(self, path: str) -> tuple[str, ...] | None:
        """Return the plain paths of a list; `None` if there is none."""
        content = text(self._host, path, MAX_LIST_BYTES) if path else None
        if content is None:
            return None
        lines = (line.strip() for line in content.splitlines()[:MAX_LISTED])
        return tuple(line for line in lines if _plain(line))

    def _resctrl(self) -> tuple[str, ...]:
        try:
            names = self._host.names(RESCTRL)
        except HostFileError:
            return ()
        groups = (name for name in names if name not in _NO_GROUPS)
        found = (name for name in groups if self._host.exists(f"{RESCTRL}/{name}/schemata"))
        return tuple(found)[:MAX_GROUPS]


def _plain(path: str) -> bool:
    absolute = path.startswith("/") and len(path) <= MAX_PATH and "\0" not in path
    return absolute and ".." not in path.split("/")


def _paths_of(devices: Iterable[VendorDevice]) -> Iterator[str]:
    for device in devices:
        yield from (node.path for node in device.nodes if _plain(node.path))
        for part in device.partitions:
            yield from (node.path for node in part.nodes if _plain(node.path))


def _stale(
    specs: Iterable[CdiSpec], mounts: frozenset[str], driver: str | None
) -> Iterator[tuple[str, str]]:
    """Tell of NVIDIA's specs that are of another driver than the loaded one."""
    for spec in specs:
        if spec.kind.partition("/")[0].endswith("nvidia.com"):
            why = stale(spec, mounts, driver)
            if why:
                yield STALE, why
