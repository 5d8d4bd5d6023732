"""Small RDMA machines built by hand, in memory or below a directory that a test may change."""

from __future__ import annotations

from pathlib import Path

from agent.host.files import LiveHostFiles
from agent.recording.tree import LinkEntry, TreeEntry, TreeFiles

Entries = dict[str, TreeEntry]

PCI = "/sys/bus/pci/devices"
ACTIVE, DOWN = "4: ACTIVE", "1: DOWN"


def place(address: str, root: str = "pci0000:10") -> str:
    """Return a function's directory."""
    return f"/sys/devices/{root}/{address}"


def function(
    address: str,
    *,
    driver: str | None = "mlx5_core",
    root: str = "pci0000:10",
    ids: tuple[str, str] = ("0x15b3", "0x101b"),
    code: str = "0x020700",
    net: str | None = None,
    physfn: str | None = None,
) -> Entries:
    """Make a PCI function; `net` names a network device on it."""
    base = place(address, root)
    entries: Entries = {
        f"{PCI}/{address}": LinkEntry(f"../../../devices/{root}/{address}"),
        f"{base}/class": f"{code}\n".encode(),
        f"{base}/vendor": f"{ids[0]}\n".encode(),
        f"{base}/device": f"{ids[1]}\n".encode(),
    }
    if driver:
        entries[f"{base}/driver"] = LinkEntry(f"../../../bus/pci/drivers/{driver}")
    if net:
        entries[f"{base}/net/{net}/type"] = b"1\n"
        entries[f"/sys/class/net/{net}"] = LinkEntry(f"../../devices/{root}/{address}/net/{net}")
    if physfn:
        entries[f"{base}/physfn"] = LinkEntry(f"../{physfn}")
    return entries


def port(
    base: str,
    number: int = 1,
    state: str = ACTIVE,
    *,
    physical: str = "5: LinkUp",
    layer: str = "InfiniBand",
    rate: str = "400 Gb/sec (4X NDR)",
    sm_lid: str = "0x1",
    lid: str = "0x12",
) -> Entries:
    """Make a port of a device's directory."""
    files = {
        "state": state,
        "phys_state": physical,
        "link_layer": layer,
        "rate": rate,
        "lid": lid,
        "sm_lid": sm_lid,
        "gids/0": "fe80:0000:0000:0000:0011:7500:0077:cfc8",
        "gid_attrs/types/0": "IB/RoCE v1",
    }
    return {f"{base}/ports/{number}/{name}": f"{text}\n".encode() for name, text in files.items()}


def device(
    address: str,
    name: str,
    *,
    root: str = "pci0000:10",
    uverbs: int | None = 0,
    states: tuple[str, ...] = (ACTIVE,),
    guid: str = "0c42:a103:0011:2233",
    node_type: str = "1: CA",
) -> Entries:
    """Make an RDMA device on a function."""
    base = f"{place(address, root)}/infiniband/{name}"
    entries: Entries = {
        f"/sys/class/infiniband/{name}": LinkEntry(
            f"../../devices/{root}/{address}/infiniband/{name}"
        ),
        f"{base}/node_type": f"{node_type}\n".encode(),
        f"{base}/node_guid": f"{guid}\n".encode(),
        f"{base}/sys_image_guid": f"{guid}\n".encode(),
        f"{base}/fw_ver": b"28.39.1002\n",
        f"{base}/hca_type": b"MT4129\n",
    }
    for number, state in enumerate(states, 1):
        entries |= port(base, number, state)
    if uverbs is not None:
        entries[f"/sys/class/infiniband_verbs/uverbs{uverbs}/ibdev"] = f"{name}\n".encode()
        entries[f"/sys/class/infiniband_verbs/uverbs{uverbs}/dev"] = (
            f"231:{192 + uverbs}\n".encode()
        )
    return entries


def nic(address: str, name: str, *, uverbs: int = 0, root: str = "pci0000:10") -> Entries:
    """Make a function with an active RDMA device."""
    return function(address, root=root) | device(address, name, uverbs=uverbs, root=root)


def nics(*pairs: tuple[str, str]) -> Entries:
    """Make several, from (address, name)."""
    entries: Entries = {}
    for number, (address, name) in enumerate(pairs):
        entries |= nic(address, name, uverbs=number)
    return entries


def virtual(pf: str, index: int, address: str, driver: str | None, name: str | None) -> Entries:
    """Make a virtual function of a PF; `name` is its RDMA device, if it has one."""
    created = function(address, driver=driver, physfn=pf)
    created[f"{place(pf)}/virtfn{index}"] = LinkEntry(f"../{address}")
    if name:
        created |= device(address, name, uverbs=None)
    return created


def exclusive() -> Entries:
    """Make RDMA devices live in one network namespace only."""
    return {
        "/sys/module/ib_core/parameters/netns_mode": b"N\n",
        "/sys/module/mlx5_ib/refcnt": b"1\n",
        "/proc/sys/kernel/random/boot_id": b"0b7c2a52-1f3e-4c55-9d80-6c1b6a3f6f10\n",
    }


def tree(entries: Entries) -> TreeFiles:
    """Keep a machine in memory."""
    return TreeFiles.from_entries(entries)


def disk(folder: Path, entries: Entries) -> LiveHostFiles:
    """Write a machine below a directory; what is there already and differs is replaced."""
    for path, entry in entries.items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, LinkEntry):
            target.unlink(missing_ok=True)
            target.symlink_to(entry.text)
        elif isinstance(entry, bytes):
            target.write_bytes(entry)
    return LiveHostFiles(str(folder))
