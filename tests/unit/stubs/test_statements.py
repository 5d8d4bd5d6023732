"""Statements about NVIDIA's cards become the lines that the stub answers from."""

from __future__ import annotations

import pytest

from tests.stubs.nvml.statements import Translator


@pytest.mark.parametrize(
    ("statement", "lines"),
    [
        ("# nothing", []),
        ("system driver=570.1 cuda=12080", ["system.driver 570.1", "system.cuda 12080"]),
        ('gpu 0 name="NVIDIA H100" sm=9', ["gpu.0 1", "gpu.0.name NVIDIA H100", "gpu.0.clock.1 9"]),
        ("gpu 0 temp=na", ["gpu.0 1", "gpu.0.temp "]),
        ("mig 0 2 gi=1 ci=na", ["mig.0.2 1", "mig.0.2.gi 1", "mig.0.2.ci -1"]),
        ("proc 1 pid=7 sm=3", ["proc.1.0 7;;3;;;;"]),
        ("field 0 138:0xff u64 5", ["field.0.138.255 u64;5"]),
        ("field 0 82 u32 !3", ["field.0.82.0 u32;!3"]),
        ("ancestor 0 1 20", ["ancestor.0.1 20", "ancestor.1.0 20"]),
        ("event 0 type=8 data=79 at=2", ["event.0 0;8;79;;;2"]),
        ("gpm 0 5 gi=2 0.5", ["gpm.0 1", "gpm.0.2.5 0.5"]),
        ("binding type=2", ["binding.0 2"]),
        ("error nvmlX 15", ["call.nvmlX.ret 15"]),
        ("error nvmlX 1 15 x2", ["call.nvmlX.1.ret 15 x2"]),
        ("delay nvmlX 40 x1", ["call.nvmlX.sleep_ms 40 x1"]),
        ("hang nvmlX 0", ["call.nvmlX.0.hang 1"]),
        ("crash nvmlX", ["call.nvmlX.abort 11"]),
        ("lost 3", ["call.*.3.ret 15"]),
    ],
)
def test_a_statement_is_its_lines(statement: str, lines: list[str]) -> None:
    assert list(Translator().lines([statement])) == lines


def test_of_faults_the_first_that_fits_counts() -> None:
    statements = ["error nvmlX 15 x1", "error nvmlX 3"]
    assert list(Translator().lines(statements)) == ["call.nvmlX.ret 3", "call.nvmlX.ret 15 x1"]


def test_what_is_no_statement_is_a_mistake_of_the_test() -> None:
    with pytest.raises(ValueError, match="no statement"):
        list(Translator().lines(["gup 0 uuid=x"]))
