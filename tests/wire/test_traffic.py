"""Sums over flows, and who is left out of them."""

from __future__ import annotations

import json

import pytest

from torchrec_qcomm.errors import WireError
from torchrec_qcomm.wire import Cell, Flow, Traffic


def flows() -> Traffic:
    return Traffic(
        [
            (Flow("all_to_all", "forward", "a", 0, 0), Cell(1, 10)),
            (Flow("all_to_all", "forward", "a", 0, 1), Cell(2, 20)),
            (Flow("all_to_all", "backward", "a", 1, 0), Cell(4, 40)),
            (Flow("all_to_all", "forward", "b", 1, 0), Cell(8, 80)),
            (Flow("all_to_all", "forward", "b", 1, 0), Cell(8, 80)),
        ]
    )


def test_a_rank_with_itself_is_kept_and_left_out_of_sums() -> None:
    assert flows().wire_bytes() == 220
    assert flows().wire_bytes(include_self=True) == 230
    assert flows().fp32_bytes() == 4 * 22
    assert flows().matrix(2) == [[0, 20], [200, 0]]
    assert flows().matrix(2, include_self=True)[0] == [10, 20]


def test_a_wrong_question_is_no_zero() -> None:
    with pytest.raises(WireError, match="no such direction; got 'fwd'"):
        flows().wire_bytes(direction="fwd")
    with pytest.raises(WireError, match="world_size: too small; got 1"):
        flows().matrix(1)


def test_selections() -> None:
    assert flows().wire_bytes(direction="backward") == 40
    assert flows().wire_bytes(table="b") == 160
    assert flows().wire_bytes(collective="reduce_scatter") == 0
    assert flows().by_table() == {
        ("a", "backward"): Cell(4, 40),
        ("a", "forward"): Cell(2, 20),
        ("b", "forward"): Cell(16, 160),
    }


def test_adding_is_flow_by_flow() -> None:
    twice = flows() + flows()
    assert twice != flows()
    assert twice.wire_bytes(table="b") == 320
    assert flows().wire_bytes(table="b") == 160
    assert Traffic() + flows() == flows()


def test_records_are_json_and_lose_nothing() -> None:
    records = json.loads(json.dumps(flows().to_dict()))
    again = Traffic(
        (
            Flow(r["collective"], r["direction"], r["table"], r["source"], r["destination"]),
            Cell(r["values"], r["wire_bytes"]),
        )
        for r in records
    )
    assert again == flows()
