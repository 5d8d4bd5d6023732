"""What is there twice: variables of image and pod, and minors of two makers."""

from __future__ import annotations

from msgspec.structs import replace

from agent.config.containers import HookSettings
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import DeviceKind, VendorDevice
from agent.snapshot.host_devices import HostDevices
from tests.unit.allocation.made import WHOLE, entry, pod, text
from tests.unit.containers_devices.made import created, device, reasons
from tests.unit.vendors_injection.made import UUIDS, gpu, nvidia_host
from tests.unit.vendors_injection.made import nodes as nodes_at

CARDS = tuple(device(gpu(minor)) for minor in range(3))
HOST = {"nvidia": nvidia_host()}
HANDLER = {"runtime_handler": "nvidia"}


def test_a_variable_that_image_and_pod_both_set_keeps_the_container_from_starting() -> None:
    """Containerd has it twice then, and the last of them stays whatever is answered by NRI."""
    visible = "NVIDIA_VISIBLE_DEVICES"
    annotation = text(entry(CARDS[1], WHOLE))
    twice = ContainerSpec(name="worker", env=((visible, "void"), ("A", "1"), (visible, "all")))
    answer = created(annotation, HOST, CARDS, container=twice, box=HANDLER)
    assert answer.reason == "DeviceConflict"
    assert visible in answer.failed
    same = replace(twice, env=((visible, "all"), (visible, UUIDS[1])))
    assert not created(annotation, HOST, CARDS, container=same, box=HANDLER).failed
    other = replace(twice, env=((visible, "all"), ("A", "1"), ("A", "2")))
    assert not created(annotation, HOST, CARDS, container=other, box=HANDLER).failed


def test_an_ungranted_container_cannot_keep_all_cards_by_asking_for_them_twice() -> None:
    visible = "NVIDIA_VISIBLE_DEVICES"
    twice = ContainerSpec(name="worker", env=((visible, "all"), (visible, "all")))
    void = HookSettings(ungranted="void")
    answer = created(None, HOST, CARDS, container=twice, box=HANDLER, hooks=void, view=pod(1))
    assert answer.reason == "DeviceConflict"
    warned = created(None, HOST, CARDS, container=twice, box=HANDLER, view=pod(1))
    assert not warned.failed


def test_a_search_path_that_is_set_twice_is_reported() -> None:
    chip = device(
        VendorDevice(
            kind=DeviceKind.NPU,
            vendor="huawei",
            bus_id="0000:c1:00.0",
            uuid="DIE-0",
            minor=0,
            vendor_minor=0,
        )
    )
    library = "/usr/local/Ascend/driver/lib64/driver"
    host = HostDevices(
        nodes=nodes_at("/dev/davinci0", "/dev/davinci_manager"), paths=frozenset((library,))
    )
    path = "LD_LIBRARY_PATH"
    twice = ContainerSpec(name="worker", env=((path, "/a"), (path, "/b")))
    answer = created(text(entry(chip)), {"ascend": host}, [chip], container=twice)
    assert not answer.failed
    assert reasons(answer) == ["VariableNotSet"]


def test_a_minor_that_two_makers_have_is_given_of_neither() -> None:
    chip = device(
        VendorDevice(
            kind=DeviceKind.NPU,
            vendor="huawei",
            bus_id="0000:c1:00.0",
            uuid="DIE-0",
            minor=0,
            vendor_minor=0,
        )
    )
    means = {**HOST, "ascend": HostDevices(nodes=nodes_at("/dev/davinci0", "/dev/davinci_manager"))}
    answer = created(text(entry(0, WHOLE)), means, [CARDS[0], chip])
    assert answer.reason == "DeviceConflict"
