"""The table of what is exchanged: some of its cells, who judges them, and the page."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.convergence import faults as broken
from tests.coverage import run
from tests.coverage.cases import CASES, CODECS, DOES_NOT_EXIST, MAY_BE_REFUSED, NATIVE, SHARDINGS, WORLD, Cell
from tests.coverage.cells import measure
from tests.coverage.document import COLLECTIONS, document
from tests.coverage.judge import Result, faults, result, unmeasured, wanted
from tests.ranks import RankPool
from tests.sharding.scenarios.tables import LOCAL

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"


@pytest.mark.parametrize(
    ("kind", "sharding", "codec", "cases"),
    [
        ("ebc", "column_wise", "int8", ["odd", "VBE", "mean"]),
        ("ebc", "row_wise", "per-link", ["mean", "VBE", "weighted"]),
        ("ebc", "table_row_wise", "mixed", ["odd", "empty rank", "VBE", "mean"]),
        ("ebc", "grid_shard", "per-link", ["uneven", "VBE", "mean", "multi-feature"]),
        ("ec", "column_wise", "fp8", ["odd", "empty rank", "VBE", "mean"]),
        ("ec", "row_wise", "per-link", ["multi-feature", "VBE"]),
    ],
)
def test_some_cells(ranks: RankPool, kind: str, sharding: str, codec: str, cases: list[str]) -> None:
    ours = run.measured(ranks, kind, sharding, "none", cases, native=False)
    ours |= run.measured(ranks, kind, sharding, codec, cases, native=False)
    assert len(ours) == 2 * len(cases)
    assert faults(ours, list(ours)) == []
    refused = {cell.case for cell in ours if ours[cell].reason is not None}
    assert refused == {case for case in cases if (sharding, case) in MAY_BE_REFUSED or (kind, case) in DOES_NOT_EXIST}


def test_torchrecs_own_beside_it(ranks: RankPool) -> None:
    """If this fails, TorchRec has learned something, and `make coverage` is to be run again."""

    def native(kind: str, sharding: str, codec: str, *cases: str) -> list[Result]:
        return list(run.measured(ranks, kind, sharding, codec, cases, native=True).values())

    fine, cannot = native("ebc", "table_wise", "int8", "even", "odd")
    assert (fine.reason, fine.remark, fine.over) == (None, None, None)
    assert fine.forward == pytest.approx(5e-3, rel=0.2)
    assert (cannot.phase, cannot.reason) == ("forward", "shape '[-1, 32]' is invalid for input of size N")
    quiet, uneven = native("ebc", "row_wise", "int4", "even", "uneven")
    assert quiet.remark == "silently fp16"
    assert uneven.phase == "backward"
    assert "allgather: invalid tensor size" in str(uneven.reason)
    assert native("ebc", "table_row_wise", "int4", "even")[0].remark == "silently fp16 in all-gather and reduce-scatter"
    assert native("ebc", "grid_shard", "none", "mean")[0].remark == "WRONG"
    # One rank fails, and the others do not wait for it.
    alone, lost = native("ec", "table_wise", "none", "empty rank", "VBE")
    assert alone.phase == "forward"
    assert (lost.remark, lost.forward, lost.backward) == ("gradient LOST", 0.0, 1.0)


@pytest.mark.parametrize(
    ("codec", "name", "spoil", "said"),
    [
        ("int4", "int4", broken.truncated_int4, "times its bound"),
        ("int8", "int8", broken.halved, "times its bound"),
        ("fp8", "fp8_e5m2", broken.dropped, "times its bound"),
        ("per-link", "bf16", broken.dropped, "times its bound"),
        ("fp8", "fp8_e5m2", operator.pos, "backward: exactly the error of `none`, so the codec did nothing"),
    ],
)
@pytest.mark.parametrize(("kind", "sharding"), [("ebc", "grid_shard"), ("ec", "row_wise")])
def test_broken_codecs_are_noticed(
    ranks: RankPool,
    tmp_path: Path,
    kind: str,
    sharding: str,
    codec: str,
    name: str,
    spoil: Callable[[torch.Tensor], torch.Tensor],
    said: str,
) -> None:
    arguments = (kind, sharding, codec, ["even"], False, str(tmp_path), run.PATIENCE, {name: spoil})
    answers = ranks.run(WORLD, measure, *arguments, env={"LOCAL_WORLD_SIZE": str(LOCAL)})
    cell = Cell(kind, sharding, codec, "even")
    ours = run.measured(ranks, kind, sharding, "none", ["even"], native=False)
    ours[cell] = result([answer["even"] for answer in answers])
    found = faults(ours, list(ours))
    assert len(found) == 1
    assert found[0].startswith(f"{cell}: ")
    assert said in found[0]


def made_up(*, native: bool) -> dict[Cell, Result]:
    """All cells, and nothing wrong with any."""
    return {
        cell: unmeasured(cell, native=native)
        or Result(
            0.001 * list(CODECS).index(cell.codec), 0.002 * list(CODECS).index(cell.codec) + 1e-8, None if native else 0.5
        )
        for cell in wanted()
    }


CELL = Cell("ebc", "row_wise", "int8", "uneven")


@pytest.mark.parametrize(
    ("cell", "change", "said"),
    [
        (CELL, {"over": 1.001}, "an error is 1.001 times its bound"),
        (CELL, {"forward": None}, "empty, and no reason"),
        (CELL, {"backward": None}, "empty, and no reason"),
        (CELL, {"over": None}, "empty, and no reason"),
        (CELL, {"forward": float("nan")}, "not finite"),
        (CELL, {"over": float("nan")}, "not finite"),
        (CELL, {"forward": 0.0}, "forward: exactly the error of `none`"),
        (CELL, {"backward": 1e-8}, "backward: exactly the error of `none`"),
        (CELL, {"reason": "no", "phase": "forward"}, "failed in forward: no"),
        (CELL, {"reason": "not supported", "phase": "forward", "refused": True}, "failed in forward: not supported"),
        (Cell("ebc", "grid_shard", "int8", "mean"), {"reason": "no", "phase": "shard"}, "failed in shard: no"),
        (Cell("ec", "row_wise", "int8", "mean"), {"reason": None}, "TorchRec's module has no such case"),
    ],
)
def test_what_is_wrong_is_named(cell: Cell, change: dict, said: str) -> None:
    ours = made_up(native=False)
    assert faults(ours) == []
    ours[cell] = replace(ours[cell], **change)
    [fault] = faults(ours)
    assert fault.startswith(f"{cell}: {said}")


def test_a_missing_cell_and_a_refusal() -> None:
    ours = made_up(native=False)
    ours[Cell("ebc", "grid_shard", "int8", "mean")] = Result(reason="why", phase="shard", refused=True)
    assert faults(ours) == []
    del ours[CELL]
    assert faults(ours) == [f"{CELL}: empty, and no reason"]


@pytest.mark.parametrize("over", [0.5, 1.5])
def test_the_exit_code(over: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    ours, native = made_up(native=False), made_up(native=True)
    ours[CELL] = replace(ours[CELL], over=over)

    def measured(_: RankPool, *row: object, native: bool, known: tuple = (ours, native)) -> dict[Cell, Result]:
        return {cell: found for cell, found in known[native].items() if (cell.kind, cell.sharding, cell.codec) == row[:3]}

    monkeypatch.setattr(run, "measured", measured)
    page = tmp_path / "page.md"
    assert run.main(["--write", str(page)]) == (over > 1)
    assert page.read_text().startswith("# What is exchanged quantized")
    assert (f"WRONG:\n{CELL}: an error is 1.5 times its bound\n" in capsys.readouterr().out) == (over > 1)


def shown(page: str) -> Iterator[tuple[Cell, str]]:
    """All cells of a page's tables."""
    for kind, title in COLLECTIONS.items():
        for sharding in SHARDINGS[kind]:
            header, _, *lines = page.split(f"\n### {title}, {sharding}\n\n")[1].split("\n\n")[0].splitlines()
            cases = [case.strip() for case in header.strip("|").split("|")][1:]
            for line in lines:
                codec, *texts = [text.strip() for text in line.strip("|").split("|")]
                for case, text in zip(cases, texts, strict=True):
                    yield Cell(kind, sharding, codec, case), text


def test_the_page_has_every_cell() -> None:
    page = PAGE.read_text()
    found = dict(shown(page))
    assert list(found) == list(wanted())
    number = r"(0|\d\.\d(e-\d+)?)"
    ours, native = rf"{number} / {number}(<sup>a</sup>)?|R\d+", rf"[^|]*{number} / {number}|E\d+ \w+|R\d+|cannot"
    for cell, text in found.items():
        assert re.fullmatch(f"({ours})<br>({native})", text), (cell, text)
        assert text.endswith("cannot") == (cell.codec not in NATIVE and (cell.kind, cell.case) not in DOES_NOT_EXIST), cell
    labels = {label for text in found.values() for label in re.findall(r"\b[RE]\d+\b", text)}
    assert set(re.findall(r"^- ([RE]\d+): `.+`$", page, re.MULTILINE)) == labels
    for cell, text in found.items():
        mine = text.split("<br>")[0]
        assert (
            not mine.startswith("R") or (cell.sharding, cell.case) in MAY_BE_REFUSED or (cell.kind, cell.case) in DOES_NOT_EXIST
        )


def text_of(page: str) -> str:
    """A page without what a run measures, or what it is measured with."""
    page = page.split("\n## Tables")[0]
    return re.sub(r"(Written by `make coverage`|\d+ of \d+ cells are measured).*?\n\n", "", page, flags=re.DOTALL)


def test_the_page_is_what_the_command_writes() -> None:
    page = document(made_up(native=False), made_up(native=True), 60.0)
    assert text_of(page) == text_of(PAGE.read_text())
    assert dict(shown(page)).keys() == set(wanted())
    for case in CASES:
        assert f"\n| {case} |" in page
