"""The scheduler's annotation of granted devices: hostile input, taken whole or not at all."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.snapshot.allocation import AllocatedDevice
from agent.wire_formats.device_allocated import MAX_BYTES, decode_allocated
from tests.captures import SHARED

GRANT = {
    "gpu": [
        {
            "minor": 1,
            "id": "GPU-1",
            "resources": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "40Gi"},
            "extension": {"gpuSharedResourceTemplate": "vir04"},
        }
    ],
    "rdma": [
        {
            "minor": 0,
            "id": "0000:1f:00.0",
            "resources": {"koordinator.sh/rdma": 1},
            "extension": {
                "vfs": [{"minor": -1, "busID": "0000:1f:00.2"}, {"busID": "0000:1f:00.3"}]
            },
        }
    ],
    "fpga": None,
}


def test_all_that_is_read() -> None:
    assert decode_allocated(json.dumps(GRANT)) == (
        AllocatedDevice(
            type="gpu",
            id="GPU-1",
            minor=1,
            resources=(("koordinator.sh/gpu-core", 50), ("koordinator.sh/gpu-memory", 40 << 30)),
            template="vir04",
        ),
        AllocatedDevice(
            type="rdma",
            id="0000:1f:00.0",
            minor=0,
            resources=(("koordinator.sh/rdma", 1),),
            vfs=("0000:1f:00.2", "0000:1f:00.3"),
        ),
    )


@pytest.mark.parametrize("text", ["{}", '{"gpu":[]}', '{"gpu":null}'])
def test_nothing_granted_is_no_error(text: str) -> None:
    assert decode_allocated(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '{"gpu":{}}',
        '{"gpu":[7]}',
        '{"gpu":[{"minor":"0"}]}',
        '{"gpu":[{"minor":-1}]}',
        '{"gpu":[{"minor":1048576}]}',
        '{"gpu":[{"id":"../x y"}]}',
        '{"gpu":[{"id":"' + "x" * 129 + '"}]}',
        '{"gpu":[{"resources":{"a":"much"}}]}',
        '{"gpu":[{"resources":{"a b":"1"}}]}',
        '{"g pu":[{"minor":0}]}',
        '{"gpu":[{"extension":{"vfs":[{}]}}]}',
        '{"gpu":[{"extension":{"gpuSharedResourceTemplate":"a\\nb"}}]}',
        json.dumps({"gpu": [{"minor": 0}] * 513}),
        json.dumps({"rdma": [{"extension": {"vfs": [{"busID": "a"}] * 65}}]}),
        " " * (MAX_BYTES + 1),
        "[" * 9000,
        '{"gpu":' + "[" * 9000,
        '{"gpu":[{"minor":0,"minor":1}]}',
        '{"gpu":[{"minor":0,"Minor":1}]}',
        '{"gpu":[],"gpu":[{"minor":0}]}',
        '{"gpu":[],"GPU":[{"minor":0}]}',
        '{"gpu":[{"resources":{"a":"1","a":"2"}}]}',
        '{"gpu":[{"unknown":{"deeper":{"a":1,"a":2}}}]}',
        '{"gpu":[{"minor":NaN}]}',
        '{"gpu":[{"minor":1e400}]}',
        '{"gpu":[{"minor":1.0}]}',
        '{"gpu":[{"minor":true}]}',
        '{"gpu":[{"minor":' + "9" * 40 + "}]}",
        '{"gpu":[{"resources":{"a":' + "9" * 5000 + "}}]}",
        '{"gpu":[{"resources":{"a":NaN}}]}',
        '{"gpu":[{"resources":{"a":-1}}]}',
        '{"gpu":[{"id":"\\ud800"}]}',
        '{"gpu":[{"id":"GPU-1\\u0000"}]}',
        '{"gpu":[{"id":["GPU-1"]}]}',
        '{"gpu":[{"id":"GPU-1,GPU-2 "}]}',
        '{"rdma":[{"extension":{"vfs":[{"busID":"../../../etc/passwd"}]}}]}',
        '{"gpu":[]}{"gpu":[]}',
        "\u0661",
        "\udc80",
    ],
)
def test_anything_odd_refuses_the_whole_and_is_not_repeated(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        decode_allocated(text)
    assert len(str(caught.value)) < 200


@given(st.text(max_size=200))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    try:
        decode_allocated(text)
    except ParseError:
        return


@pytest.mark.skipif(not (SHARED / "oracle").is_dir(), reason="no recorded decisions")
def test_every_grant_that_a_real_scheduler_wrote_is_read() -> None:
    path = Path(SHARED, "oracle", "deviceshare-decisions.json.xz")
    cases = json.loads(lzma.decompress(path.read_bytes()))
    grants = [
        step["result"]["device_allocated"]
        for case in cases.values()
        for step in case["steps"]
        if step["op"] == "create" and step["result"]["bound"]
    ]
    texts = [text if isinstance(text, str) else json.dumps(text) for text in grants if text]
    assert len(texts) > 500
    assert all(decode_allocated(text) for text in texts)
