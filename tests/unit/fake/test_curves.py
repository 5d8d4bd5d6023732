from __future__ import annotations

import msgspec
import pytest

from plugins.vendors.fake.curves import Curve, shape, value_at

RAMP = {"from": 10.0, "to": 20.0, "over_s": 10.0}
WAVE = {"mean": 50.0, "swing": 40.0, "period_s": 8.0}


@pytest.mark.parametrize(
    ("curve", "elapsed_s", "value"),
    [
        (7.0, 0, 7),
        (7.0, 1e9, 7),
        (150.0, 0, 100),
        (RAMP, 0, 10),
        (RAMP, 5, 15),
        (RAMP, 10, 20),
        (RAMP, 1e9, 20),
        ({"from": 1.0, "to": 2.0, "over_s": 0.0}, 0, 2),
        (WAVE, 0, 50),
        (WAVE, 2, 90),
        (WAVE, 6, 10),
        ({"mean": 50.0, "swing": 80.0, "period_s": 8.0}, 2, 100),
        ({"mean": 50.0, "swing": 80.0, "period_s": 8.0}, 6, 0),
        ({"mean": 50.0, "swing": 80.0, "period_s": 0.0}, 6, 50),
    ],
)
def test_a_curve_has_one_value_at_each_time(curve: Curve, elapsed_s: float, value: float) -> None:
    assert value_at(curve, elapsed_s, 0.0, 100.0) == pytest.approx(value)


@pytest.mark.parametrize(
    "curve", [{}, {"from": 1.0}, {"mean": 1.0, "swing": 1.0}, {**RAMP, "mean": 1.0}]
)
def test_a_mapping_that_is_no_curve_is_refused(curve: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        shape(curve)
