"""Data sets as one small class, ``ClickData``: flights, Criteo, synthetic clicks. They know nothing of ranks or models."""

from dlrm_lib.data.base import ClickData, Ids, TableSpec, batches
from dlrm_lib.data.criteo import load_criteo
from dlrm_lib.data.flights import load_flights
from dlrm_lib.data.synthetic import make_synthetic

__all__ = ["ClickData", "Ids", "TableSpec", "batches", "load_criteo", "load_flights", "make_synthetic"]
