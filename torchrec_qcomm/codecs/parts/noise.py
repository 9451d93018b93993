"""Random numbers for stochastic rounding: a function of a key and a position, with no state.

The same key gives the same numbers on every replay, however a payload is cut into chunks; other seeds, steps, ranks or sites
give others. Torch's generators are never touched.

A position is hashed twice, with words of the key in between. The hash is the finalizer of MurmurHash3 with the constants of
"lowbias32" (C. Wellons, "Prospecting for Hash Functions"): flipping any bit of the input flips each bit of the result with a
probability near one half.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch

from torchrec_qcomm.codecs.parts.memory import Scratch


@dataclass(frozen=True, slots=True)
class Noise:
    """The key of a stream of random numbers.

    Attributes:
        seed: of the whole run.
        step: of training.
        rank: the global rank that encodes.
        site: a text that names the exchange and the direction.
        start: the first position.
    """

    seed: int = 0
    step: int = 0
    rank: int = 0
    site: str = ""
    start: int = 0

    def at(self, start: int) -> Noise:
        """The same stream, starting at another position."""
        return replace(self, start=start)

    def words(self) -> tuple[int, int]:
        """Two 32-bit words that stand for seed, step, rank and site."""
        text = f"{self.seed}/{self.step}/{self.rank}/{self.site}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


class Draw:
    """Draws from a stream, one for each value of a payload, in order."""

    def __init__(self, noise: Noise, device: torch.device) -> None:
        self._words = noise.words()
        self._position, self._device = noise.start, device

    def bits(self, shape: tuple[int, ...], scratch: Scratch) -> torch.Tensor:
        """32 random bits for each value: ``int32`` of ``shape``. The next call goes on after them."""
        x = scratch.take("noise", shape, torch.int32)
        flat, count = x.view(-1), x.numel()
        first, high = self._position & 0xFFFFFFFF, self._position >> 32
        self._position += count
        torch.arange(count, dtype=torch.int32, device=self._device, out=flat)
        flat.add_(_signed((first + self._words[0]) & 0xFFFFFFFF))  # wraps
        other = scratch.take("noise shifted", shape, torch.int32)
        _mix(x, other)
        x.bitwise_xor_(_signed(self._words[1] ^ (high * 0x9E3779B9 & 0xFFFFFFFF)))
        _mix(x, other)
        return x

    def uniform(self, shape: tuple[int, ...], scratch: Scratch) -> torch.Tensor:
        """One number for each value, FP32 of ``shape``: multiples of 2**-24 in [0, 1)."""
        bits = self.bits(shape, scratch).bitwise_and_(0xFFFFFF)
        return scratch.take("uniform", shape).copy_(bits).mul_(2.0**-24)  # one op from int to float would not be vectorised


def _mix(x: torch.Tensor, other: torch.Tensor) -> None:
    """Hash every element in place."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        # Shifts of int32 copy the sign bit; the mask clears the copies.
        torch.bitwise_right_shift(x, shift, out=other).bitwise_and_((1 << (32 - shift)) - 1)
        x.bitwise_xor_(other)
        if factor != 1:
            x.mul_(_signed(factor))


def _signed(word: int) -> int:
    """A 32-bit word as the int32 of the same bits."""
    return word - (1 << 32) if word >= 1 << 31 else word
