"""Rules of grants whose devices are cut into slices for the pod: vNPUs and sMLUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from agent.grants.known import Found, takes_all, totals_of
from agent.model.device import DeviceKind, VendorDevice
from agent.model.grant.granted import GrantedDevice
from agent.model.grant.refusal import GrantRefused, Refusal
from plugins.slices.vnpu.templates import A910, Template, templates

NPU_CORE = "huawei.com/npu-core"
_FAMILY = "xpu-agent.io/family"  # label of a chip
_MODEL = "Ascend-"  # before the chip's name in its model
_CUT = (DeviceKind.NPU, DeviceKind.MLU)  # a GPU that is cut says so itself
_DUO = "-300I-DUO"  # behind it, of a card with two chips

Entries = Sequence[tuple[GrantedDevice, Found]]


def refuse_mixed(entries: Entries) -> None:
    """Raise `GrantRefused` for slices of several cards, or beside whole ones, in one grant.

    One container has one vNPU of one chip, and one sMLU of one card. An accelerator is in a grant
    once: limits of a second share would be those of the card behind it.
    """
    shared = [found.device.key for entry, found in entries if not (found.piece or entry.vfs)]
    twice = next((key for key, times in Counter(shared).items() if times > 1), None)
    if twice is not None:
        raise GrantRefused(Refusal.BAD_GRANT, f"{twice} is in it twice")
    chips = [pair for pair in entries if pair[1].device.kind is DeviceKind.NPU]
    if len(chips) > 1 and any(entry.template or found.partition for entry, found in chips):
        raise GrantRefused(Refusal.MIXED_GRANT, "a pod has one vNPU, or whole chips")
    cards = [pair for pair in entries if pair[1].device.kind is DeviceKind.MLU]
    if len(cards) > 1 and any(_shared(entry, found) for entry, found in cards):
        raise GrantRefused(Refusal.MIXED_GRANT, "a pod has a slice of one card, or whole cards")


def refuse_cut(entry: GrantedDevice, found: Found, uid: str) -> None:
    """Raise `GrantRefused` for all of a chip or card of which others have slices.

    Also of those that nobody has told the owner of: people, or the maker's own plug-in, cut them.
    """
    device = found.device
    if device.kind not in _CUT or found.piece or entry.template or _shared(entry, found):
        return
    other = next((part.uuid for part in device.partitions if part.owner != uid), None)
    if other is not None:
        raise GrantRefused(Refusal.DEVICE_TAKEN, f"{device.key} is cut: {other[:64]} is a slice")


def _shared(entry: GrantedDevice, found: Found) -> bool:
    totals = totals_of(found.device)
    amounts = {name: amount for name, amount in entry.resources if name in totals}
    return found.partition is not None or (bool(amounts) and not takes_all(amounts, totals))


def with_template(entry: GrantedDevice, found: Found) -> GrantedDevice:
    """Return the entry with the AI cores that its template really takes, if they are more.

    `TemplateUnknown` where the chip has other templates. Of a model whose templates nobody has
    published what the scheduler wrote is all there is: the driver decides when it cuts.
    """
    known = _templates(found.device) if entry.template else ()
    if not known:
        return entry
    cut = next((one for one in known if one.name == entry.template), None)
    if cut is None:
        told = f"{found.device.key} has no template {entry.template[:40]!r}"
        raise GrantRefused(Refusal.TEMPLATE_UNKNOWN, told)
    cores = max(cut.cores, entry.amount(NPU_CORE) or 0)
    return replace(entry, resources=tuple({**dict(entry.resources), NPU_CORE: cores}.items()))


def _templates(device: VendorDevice) -> tuple[Template, ...]:
    of_first = dict(device.labels).get(_FAMILY) == A910
    model = (device.model or "").removeprefix(_MODEL).removesuffix(_DUO)
    return templates(A910 if of_first else model, totals_of(device).get(NPU_CORE))
