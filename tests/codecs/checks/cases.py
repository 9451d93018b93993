"""What the codec tests share: every codec with every backend, the classes of values, and the one check of the contract."""

from __future__ import annotations

import torch

from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import Codec, CodecLike

FLT_MAX = torch.finfo(torch.float32).max
RAW = ("none", "fp32")
DIMS = (1, 2, 3, 5, 7, 12, 20, 31, 32, 33, 48, 64, 128)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# Every codec x backend, and the codecs with parameters once with another value.
ALL: list[tuple[CodecLike, str]] = [(name, backend) for name in codecs.names() for backend in codecs.backends(name)]
ALL += [({"codec": "fp16", "loss_scale": 1024}, "reference"), ({"codec": "bf16", "loss_scale": 3.0}, "reference")]
ALL += [({"codec": "lut4", "scale": "fp32", "levels": [i * i / 32 - 3 for i in range(1, 17)]}, "reference")]
ALL += [({"codec": "lut2", "scale": "fp32"}, "reference")]
ALL += [({"codec": name, "scale_rule": "floor"}, "reference") for name in ("mxfp4", "mxfp8")]
ALL += [({"codec": name, "rounding": "stochastic"}, "reference") for name in ("mxfp4", "mxfp8")]
ALL += [({"codec": "int2", "scale": scale}, "reference") for scale in ("fp32", "e8m0")]
ROUNDED = ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "int2")
ALL += [({"codec": name, "rounding": "stochastic"}, backend) for name in ROUNDED for backend in codecs.backends(name)]
ALL += [({"codec": "bf16", "loss_scale": 3.0, "rounding": "stochastic"}, "reference")]
ALL += [({"codec": "int2", "scale": "e8m0", "rounding": "stochastic"}, "reference")]
ALL += [({"codec": "qsgd", "bits": b, "norm": n}, "reference") for b, n in ((2, "l2"), (4, "max"), (8, "l2"), (8, "max"))]
ALL += [({"codec": "natural", "bits": 4}, "reference"), ({"codec": "qsgd", "scale": "e8m0", "norm": "max"}, "reference")]
ALL += [({"codec": "ternary", "clip": 2.5}, "reference"), ({"codec": "ternary", "scale": "fp16"}, "reference")]
ALL += [({"codec": "sign", "scale": scale}, "reference") for scale in ("fp32", "fp16", "e8m0")]
# Codecs with ranges that are not a row's own have limits of their own, so they are in no battery (test_ranges.py).
RANGED: list[tuple[CodecLike, str]] = [
    ({"codec": name, "range": wanted, "rounding": rounding}, backend)
    for name in ("int8", "int4")
    for wanted in ({"percentile": 99}, {"static": [-2, 1e3]})
    for rounding in ("nearest", "stochastic")
    for backend in codecs.backends(name)
]
# A stochastic codec's rows depend on where they stand in the payload: such codecs have a battery of their own.
CASES = [case for case in ALL if not codecs.get(*case).stochastic]
STOCHASTIC = [case for case in ALL if codecs.get(*case).stochastic]
NOISE = codecs.Noise(seed=1, step=2, rank=3, site="test")

# Limits of the battery for Gaussian rows, where a codec of few bits has its own: the relative L2 error of a row of 48, and an
# element's bound by the row's largest value.
ROW_ERROR = {"int2": 0.5, "mxfp4": 0.16, "lut4": 0.25, "lut2": 0.45, "onebit": 0.75, "sign": 0.75}
ROW_BOUND = {"int2": 0.8, "lut2": 0.7, "onebit": 1.0, "sign": 1.0}
BIASED = ("onebit", "sign")


def has_fp16_range(codec: Codec) -> bool:
    """Whether small and large rows are lost to FP16."""
    return codec.spec.name == "fp16" or dict(codec.spec.params).get("scale") == "fp16"


def case_id(case: tuple[CodecLike, str]) -> str:
    return f"{codecs.spec(case[0])}-{case[1]}"


def takes(codec: Codec, dtype: torch.dtype) -> bool:
    return codec.spec.name != "fp32" or dtype == torch.float32


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def finite_classes(dim: int) -> dict[str, torch.Tensor]:
    """FP32 payloads ``[rows, dim]`` of finite values."""
    noise = gaussian(7, dim, seed=dim)
    one_hot = torch.zeros(3, dim)
    one_hot[0, 0], one_hot[1, dim // 2], one_hot[2, -1] = 5.0, -0.3, FLT_MAX
    wide = torch.full((3, dim), FLT_MAX)
    wide[0, ::2] *= -1
    wide[1] *= -1
    wide[2, 1:] = 0
    steps = torch.arange(dim) * 1.401298464324817e-45  # the smallest subnormals
    return {
        "zeros": torch.zeros(2, dim),
        "minus zero": torch.full((2, dim), -0.0),
        "both zeros": torch.tensor([0.0, -0.0]).repeat(dim)[:dim].repeat(2, 1),
        "constant": torch.full((2, dim), 3.7),
        "negative constant": torch.full((2, dim), -3.7),
        "one hot": one_hot,
        "largest": wide,
        "near largest": wide * 0.99,
        "subnormal": torch.stack([steps, -steps, steps * 1000 + 1e-40]),
        "smallest normal": noise * torch.finfo(torch.float32).tiny,
        "gaussian": noise,
        "mixed amplitudes": torch.cat([torch.full((1, dim), 1e4), torch.full((1, dim), 1e-3), noise * 1e4, noise * 2.0**-7]),
        "offset": 1e6 + noise,
        "one ulp apart": 1e6 + 0.0625 * (torch.arange(dim) % 2).repeat(2, 1),
        "powers of two": torch.exp2((torch.arange(dim) % 40 - 20).float()).repeat(2, 1),
        "1e-30": noise * 1e-30,
        "1e30": noise * 1e30,
    }


def spoilt(dim: int) -> dict[str, torch.Tensor]:
    """Payloads of Gaussian rows of which row 1 holds something that is not finite."""
    found = {}
    for name, value in {"inf": torch.inf, "-inf": -torch.inf, "nan": torch.nan}.items():
        for column in {0, dim - 1}:
            found[f"{name} in column {column}"] = gaussian(4, dim)
            found[f"{name} in column {column}"][1, column] = value
        found[f"all {name}"] = gaussian(4, dim)
        found[f"all {name}"][1] = value
    both = gaussian(4, dim)
    both[1, 0], both[1, -1] = torch.inf, -torch.inf
    payload_bits = gaussian(4, dim)
    payload_bits[1, 0] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    return {**found, "both infinities": both, "a NaN of all ones": payload_bits}


def as_dtype(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cast without making an Inf of a finite value."""
    limit = torch.finfo(dtype).max
    return torch.where(values.isfinite(), values.clamp(-limit, limit), values).to(dtype)


def check_contract(codec: Codec, values: torch.Tensor, where: str) -> torch.Tensor:
    """Round trip, with everything checked that the contract says of any values. Returns what was decoded."""
    dim = values.shape[-1]
    data = codec.encode(values, noise=NOISE)
    assert data.dtype == torch.uint8
    assert data.shape == (*values.shape[:-1], codec.row_bytes(dim, values.dtype)), where
    assert torch.equal(data, codec.encode(values, noise=NOISE)), f"{where}: not deterministic"
    decoded = codec.decode(data, dim, dtype=values.dtype)
    assert decoded.dtype == values.dtype
    assert decoded.shape == values.shape

    finite = values.isfinite().all(-1, keepdim=True).expand_as(values)
    bound = codec.error_bound(values)
    assert bound.dtype == torch.float32
    assert bound.shape == values.shape
    assert not bound[finite].isnan().any(), where
    if codec.spec.name in RAW:
        assert torch.equal(decoded.view(torch.uint8), values.contiguous().view(torch.uint8)), where
        return decoded
    assert decoded[finite].isfinite().all(), f"{where}: a finite row decoded to {decoded}"
    assert decoded[~finite].isnan().all(), f"{where}: a fault is hidden"
    error = (decoded.double() - values.double()).abs()
    allowed = bound.double()
    if values.dtype != torch.float32:  # the result is rounded once more
        info = torch.finfo(values.dtype)
        allowed = allowed + (values.double().abs() + allowed) * info.eps / 2 + info.smallest_normal * info.eps / 2
    worst = torch.where(finite, error - allowed, -torch.inf)
    assert not (worst > 0).any(), (
        f"{where}: {values.flatten()[worst.argmax()]} came back as {decoded.flatten()[worst.argmax()]}"
    )
    return decoded
