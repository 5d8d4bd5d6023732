"""The extender's settings that decide on devices: read from a file, checked, and in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import BadConfig
from plugins.scheduler.devices.allocator import NodeRefused, NodeState, allocate, filter_node
from plugins.scheduler.devices.device_table import GPU, GPU_MEMORY, DeviceTable, NodeDevice
from plugins.scheduler.devices.requests import SHARED_TEMPLATES, device_request
from plugins.scheduler.server.settings import SchedulerSettings, load_settings

GIB = 1 << 30
NPU = {"huawei.com/npu-core": 5, "huawei.com/npu-cpu": 1, GPU_MEMORY: 16 * GIB}
LABELS = {
    "node.koordinator.sh/gpu-vendor": "huawei",
    "node.koordinator.sh/gpu-model": "Ascend-910B4",
}
TEMPLATES = """
shared_templates:
  huawei-Ascend-910B4:
    vir05_1c_16g: {huawei.com/npu-core: 5, huawei.com/npu-cpu: '1', koordinator.sh/gpu-memory: 16Gi}
"""


def load(folder: Path, text: str) -> SchedulerSettings:
    path = folder / "scheduler.yaml"
    path.write_text(text)
    return load_settings(str(path))


def node() -> NodeState:
    total = {**NPU, "huawei.com/npu-core": 20, "huawei.com/npu-cpu": 7, GPU_MEMORY: 64 * GIB}
    card = NodeDevice(kind=GPU, minor=0, total=total)
    return NodeState(name="n", labels=LABELS, table=DeviceTable(node="n", devices={GPU: (card,)}))


def test_templates_of_a_file_stand_beside_the_built_in_ones(tmp_path: Path) -> None:
    request = device_request({"koordinator.sh/gpu.shared": 1, **NPU})
    assert request is not None
    with pytest.raises(NodeRefused, match="no matched GPU shared resource template"):
        filter_node(node(), request, load(tmp_path, "").rules())
    rules = load(tmp_path, TEMPLATES).rules()
    (allocations,) = allocate(node(), request, rules)
    assert allocations.template == "vir05_1c_16g"
    assert SHARED_TEMPLATES.items() <= rules.templates.items()


def test_models_of_a_file_are_not_shared(tmp_path: Path) -> None:
    request = device_request({"koordinator.sh/gpu-core": 50, GPU_MEMORY: GIB})
    assert request is not None
    rules = load(tmp_path, "unshared_models: [huawei/Ascend-910B4]").rules()
    with pytest.raises(NodeRefused, match='"Ascend-910B4" of vendor "huawei" does not support'):
        filter_node(node(), request, rules)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unshared_models: [Ascend-910B4]", "unshared_models"),
        ("unshared_models: ['/x']", "unshared_models"),
        ("shared_templates: {m: {t: {huawei.com/npu-core: many}}}", "m.t.huawei.com/npu-core"),
        ("shared_templates: {m: {t: {huawei.com/npu-core: -1}}}", "-1 is no amount"),
        ("shared_templates: {m: [t]}", "shared_templates"),
        ("[]", "Expected `object`"),
        ("tls: {cert_file: a}\ntls: {key_file: b}", "'tls' is there twice"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadConfig) as refused:
        load(tmp_path, text)
    assert message in str(refused.value)
    assert "scheduler.yaml" in str(refused.value)
