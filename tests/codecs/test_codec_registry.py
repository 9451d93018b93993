"""Names, specs and what a user is told who writes them wrong."""

from __future__ import annotations

import doctest
import importlib
import pickle

import pytest
import torch

from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import CodecSpec
from torchrec_qcomm.errors import CodecError


def test_names() -> None:
    assert codecs.names() == (
        *("none", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "mxfp8", "int8", "natural"),
        *("mxfp4", "int4", "lut4", "qsgd", "int2", "lut2", "ternary", "onebit", "sign"),
    )
    assert all(codecs.backends(name)[0] == "reference" for name in codecs.names())


def test_ways_to_name_a_codec() -> None:
    expected = CodecSpec("fp16", (("loss_scale", 1024.0), ("rounding", "nearest")))
    for like in ({"codec": "fp16", "loss_scale": 1024}, {"loss_scale": 1024.0, "codec": "fp16"}, expected):
        assert codecs.spec(like) == expected
        assert codecs.get(like).spec == expected
    assert codecs.spec("fp16") == codecs.spec({"codec": "fp16", "loss_scale": 1}) != expected
    assert str(codecs.spec("fp16")) == "fp16"
    assert str(codecs.spec(expected)) == "fp16(loss_scale=1024.0)"
    assert str(codecs.spec("int8")) == "int8"


def test_a_spec_is_a_value() -> None:
    for name in codecs.names():
        spec = codecs.spec(name)
        assert pickle.loads(pickle.dumps(spec)) == spec
        assert pickle.loads(pickle.dumps(codecs.get(name))) == codecs.get(name)
        assert hash(spec) == hash(codecs.spec(name))


def test_the_backend_is_not_part_of_the_spec() -> None:
    assert codecs.get("int8", "reference").spec == codecs.get("int8", "fbgemm").spec
    assert type(codecs.get("int8")) is type(codecs.get("int8", "fbgemm"))


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ("int5", r"codec: unknown codec; got 'int5'; allowed: bf16, fp16, .*none.*\. Did you mean 'int[48]'\?"),
        ("fp8_e4m2", r"Did you mean 'fp8_e[45]m[32]'\?"),
        ({"codec": "int88"}, "Did you mean 'int8'"),
        ({"codec": "fp16", "loss_scal": 2}, "codec fp16: unknown parameter; got 'loss_scal'; allowed: loss_scale, rounding"),
        ({"codec": "int8", "bits": 4}, "codec int8: unknown parameter; got 'bits'; allowed: range, rounding"),
        ({"codec": "none", "bits": 4}, "codec none: unknown parameter; got 'bits'; allowed: no parameters"),
        ({"loss_scale": 2}, "codec: cannot be read"),
        ({"codec": 8}, "codec: cannot be read"),
        (8, "codec: cannot be read; got 8; allowed: a name, or a mapping"),
        (None, "codec: cannot be read"),
    ],
)
def test_what_is_refused(like: object, message: str) -> None:
    for function in (codecs.get, codecs.spec):
        with pytest.raises(CodecError, match=message):
            function(like)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "int2"])
def test_bad_roundings(name: str) -> None:
    for backend in codecs.backends(name):
        with pytest.raises(
            CodecError,
            match=f"codec {name}, rounding: unknown rounding; got 'stochastc'; allowed: nearest, stochastic. "
            "Did you mean 'stochastic'",
        ):
            codecs.get({"codec": name, "rounding": "stochastc"}, backend)
        for value in (None, 1, True, ["nearest"]):
            with pytest.raises(CodecError, match="allowed: nearest, stochastic"):
                codecs.get({"codec": name, "rounding": value}, backend)
        assert not codecs.get({"codec": name, "rounding": "nearest"}, backend).stochastic
        assert codecs.get({"codec": name, "rounding": "stochastic"}, backend).stochastic
        assert str(codecs.spec({"codec": name, "rounding": "stochastic"})) == f"{name}(rounding=stochastic)"


def test_bad_scales() -> None:
    with pytest.raises(CodecError, match="codec int2, scale: unknown format; got 'fp64'; allowed: bf16, e8m0, fp16, fp32"):
        codecs.get({"codec": "int2", "scale": "fp64"})


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "1024", True, None, 1e39, 1e-39, 10**400])
@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_bad_loss_scales(name: str, value: object) -> None:
    with pytest.raises(CodecError, match=f"codec {name}, loss_scale: bad value; got .*; allowed: a number > 0"):
        codecs.get({"codec": name, "loss_scale": value})


def test_unknown_backends() -> None:
    with pytest.raises(
        CodecError, match=r"codec int8: no such backend; got 'fbgem'; allowed: fbgemm, reference\. Did you mean"
    ):
        codecs.get("int8", "fbgem")
    with pytest.raises(CodecError, match="codec int4: no such backend; got 'fbgemm'; allowed: reference"):
        codecs.get("int4", "fbgemm")
    with pytest.raises(CodecError, match="unknown codec"):
        codecs.backends("int9")


def test_fp32_refuses_to_double_a_payload() -> None:
    codec = codecs.get("fp32")
    codec.check_payload(torch.float32)
    values = torch.zeros(2, 4, dtype=torch.bfloat16)
    for call in (
        lambda: codec.check_payload(torch.bfloat16),
        lambda: codec.encode(values),
        lambda: codec.decode(torch.zeros(2, 16, dtype=torch.uint8), 4, out=values),
        lambda: codec.decode(torch.zeros(2, 16, dtype=torch.uint8), 4, dtype=torch.float16),
    ):
        with pytest.raises(CodecError, match=r"codec fp32: .*allowed: torch.float32\. Use 'none'"):
            call()


@pytest.mark.parametrize("module", ["spec", "registry"])
def test_examples_in_docstrings(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"torchrec_qcomm.codecs.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
