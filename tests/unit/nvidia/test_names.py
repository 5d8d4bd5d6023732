from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.vendors.nvidia.discovery import names

LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        pytest.param("00000000:3B:00.0", "0000:3b:00.0", id="V09"),
        pytest.param("00000009:01:00.0", "0009:01:00.0", id="V09-domain-9"),
        # as the kernel prints it, because this name joins the card with its PCI function
        pytest.param("00010000:01:00.0", "10000:01:00.0", id="V09-long-domain"),
        pytest.param("00000000:00:00.0", None, id="no-remote"),
        pytest.param("", None, id="blank"),
        pytest.param("\ufffd\ufffd", None, id="garbage"),
    ],
)
def test_a_bus_id_is_spelled_as_in_sysfs(text: str, address: str | None) -> None:
    assert names.bus_id(text) == address


@pytest.mark.parametrize(
    ("name", "label"),
    [
        pytest.param("NVIDIA H100 80GB HBM3", "H100-80GB-HBM3", id="V10-h100"),
        pytest.param("Tesla V100-SXM2-16GB", "Tesla-V100-SXM2-16GB", id="V10-v100"),
        pytest.param("Orin (nvgpu)", "Orin--nvgpu", id="V10-orin"),
        pytest.param("NVIDIA ", None, id="nothing-left"),
        pytest.param("x" * 62 + " (y)", "x" * 62, id="cut-without-a-dash-at-the-end"),
    ],
)
def test_a_model_becomes_a_label_value(name: str, label: str | None) -> None:
    assert names.model_label(name) == label


@given(st.text(max_size=200))
def test_no_name_makes_a_label_that_the_api_server_refuses(name: str) -> None:
    label = names.model_label(name)
    assert label is None or LABEL.fullmatch(label)


@given(st.text(max_size=40))
def test_no_bus_id_raises(text: str) -> None:
    names.bus_id(text)


@pytest.mark.parametrize(("number", "text"), [(12080, "12.8"), (13000, "13.0"), (11040, "11.4")])
def test_a_cuda_version_is_major_and_minor(number: int, text: str) -> None:
    assert names.cuda_version(number) == text
