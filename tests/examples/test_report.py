"""What is printed of bytes, and of tables of which there are none."""

from __future__ import annotations

import pytest
from dlrm_lib.exchange import DATA_PARALLEL, ONE_RANK, TableView
from dlrm_lib.report import FP32, POLICY, traffic_text, warn_no_exchange
from dlrm_lib.training import Run

import torchrec_qcomm as qc
from torchrec_qcomm.wire import Cell, Flow


def run_of(tables: list[str], destination: int = 1) -> Run:
    flows = {
        Flow("all_to_all", d, t, 0, destination): Cell(1_000_000, 2_000_000) for t in tables for d in ("forward", "backward")
    }
    return Run(quality=None, losses=[], step_ms=[], seconds=0.0, traffic=qc.Traffic(flows))


def views_of(tables: list[str]) -> list[TableView]:
    return [TableView(qc.Table(name, 10, 4), "table_wise", (0,), {}, True) for name in tables]


def test_bytes_are_listed_in_the_order_of_the_model() -> None:
    names = ["t_2", "t_10", "t_1"]
    lines = traffic_text(POLICY, run_of(["t_1", "t_10"]), views_of(names)).splitlines()
    assert lines[0] == "Bytes on the wire in training, all ranks, policy beside FP32:"
    assert [line.split()[0] for line in lines[3:]] == ["t_10", "t_1", "all"]
    assert lines[3].split()[1:] == ["4.00", "2.00", "2.00x"] * 2


def test_fp32_is_not_set_beside_itself() -> None:
    assert traffic_text(FP32, run_of(["t_1"]), views_of(["t_1"])).startswith("Bytes on the wire in training, all ranks:\n")


def test_a_share_with_oneself_is_not_an_exchange() -> None:
    text = traffic_text(POLICY, run_of(["t_1"], destination=0), views_of(["t_1"]))
    assert text == "Bytes on the wire in training, all ranks, policy beside FP32: nothing was exchanged"


@pytest.mark.parametrize(
    ("missing", "named", "advised"),
    [
        ({"t_1": ONE_RANK, "t_2": ONE_RANK}, False, False),
        ({"t_1": DATA_PARALLEL, "t_2": "the counters saw no byte of it (table_wise)"}, True, True),
        ({"t_1": "the counters saw no byte of it (table_wise)"}, True, False),
    ],
)
def test_advice_is_given_where_it_helps(
    missing: dict[str, str], named: bool, advised: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_no_exchange(missing)
    said = capsys.readouterr().err
    assert said.count("WARNING") == 1
    assert ("t_1" in said) is named
    assert ("Constrain" in said) is advised
    assert (len(said.strip().splitlines()) == 3) is not named  # one line in its box
