"""What is said of text that is no YAML: where, and what is wrong, in the words of its format."""

from __future__ import annotations

import pytest

from agent.errors import BadConfig
from agent.wire_formats.plain_yaml import decode_settings_yaml, decode_yaml


@pytest.mark.parametrize(
    ("data", "settings", "other"),
    [
        (b"a: [1\n", "f:2: not YAML: expected ',' or ']'", "line 2: did not find expected ',' "),
        (bytes(range(128, 256)), "f: not YAML: invalid start byte at byte 0", "at byte 0"),
        (b"a\0", "f: not YAML: special characters are not allowed at byte 1", "at byte 1"),
        (b"[" * 4000, "f: not YAML: nested too deep", "too deep"),
    ],
    ids=["cut", "bytes", "zero", "deep"],
)
def test_an_error_has_its_place_and_no_word_of_the_parsers_own(
    data: bytes, settings: str, other: str
) -> None:
    with pytest.raises(BadConfig) as refused:
        decode_settings_yaml(data, "f")
    with pytest.raises(ValueError, match=r"^[^\n]+$") as untrusted:
        decode_yaml(data, 64)
    assert str(refused.value).startswith(settings)
    assert other in str(untrusted.value)
    for text in (str(refused.value), str(untrusted.value)):
        assert not [word for word in ("Error", "byte string", "recursion", "\n") if word in text]
