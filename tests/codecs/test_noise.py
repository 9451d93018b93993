"""Random numbers without a state: uniform, independent between keys, the same however they are asked for."""

from __future__ import annotations

import math

import pytest
import torch

from torchrec_qcomm.codecs.parts.memory import Scratch
from torchrec_qcomm.codecs.parts.noise import Draw, Noise

CPU = torch.device("cpu")


def uniform(noise: Noise, *shape: int) -> torch.Tensor:
    return Draw(noise, CPU).uniform(shape, Scratch(CPU)).clone()


def test_each_call_goes_on_behind_the_last() -> None:
    draw, scratch = Draw(Noise(5), CPU), Scratch(CPU)
    parts = [draw.uniform((n, 7), scratch).clone() for n in (3, 1, 6)]
    assert torch.equal(torch.cat(parts), uniform(Noise(5), 10, 7))
    assert torch.equal(uniform(Noise(5).at(21), 7, 7), uniform(Noise(5), 10, 7)[3:])


def test_positions_beyond_32_bits_are_other_numbers() -> None:
    low, high = uniform(Noise(5), 100), uniform(Noise(5).at(1 << 32), 100)
    assert not torch.equal(low, high)
    across = uniform(Noise(5).at((1 << 32) - 50), 50)
    assert torch.equal(uniform(Noise(5).at((1 << 32) - 30), 30), across[20:])


@pytest.mark.parametrize("key", [Noise(), Noise(1), Noise(0, 1), Noise(0, 0, 1), Noise(0, 0, 0, "x")])
def test_uniform(key: Noise) -> None:
    values = uniform(key, 1 << 18)
    assert values.min() >= 0
    assert values.max() < 1
    counts = torch.histc(values, 256, 0, 1)
    expected = len(values) / 256
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi2 - 255) < 5 * math.sqrt(2 * 255)


@pytest.mark.parametrize("other", [Noise(1), Noise(0, 1), Noise(0, 0, 1), Noise(0, 0, 0, "x"), Noise().at(1)])
def test_streams_are_independent(other: Noise) -> None:
    n = 1 << 18
    a, b = uniform(Noise(), n) - 0.5, uniform(other, n) - 0.5
    assert abs(float((a * b).mean()) * 12) < 5 / math.sqrt(n)


def test_neighbours_are_independent() -> None:
    n = 1 << 18
    values = uniform(Noise(), n) - 0.5
    for lag in (1, 2, 32, 128):
        assert abs(float((values[lag:] * values[:-lag]).mean()) * 12) < 5 / math.sqrt(n)
