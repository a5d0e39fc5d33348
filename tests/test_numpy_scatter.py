"""The NumPy engine's blocks: added or gathered, few or many, the result is the same, rounded once."""

import numpy as np
import pytest

import pyflux_pad as pp
from pyflux_pad.backends import numpy as engine


@pytest.mark.parametrize("block_bytes", [1 << 21, 64], ids=["one block", "many blocks"])
@pytest.mark.parametrize("dtype", ["float64", "complex128", "int32"])
def test_scattered_as_gathered(block_bytes, dtype, monkeypatch):
    monkeypatch.setattr(engine.NumpyEngine, "block_bytes", block_bytes)
    random, count = np.random.default_rng(0), 0

    def draw(*shape):
        return (10 * random.standard_normal(shape) + (3j if dtype == "complex128" else 0)).astype(dtype)

    while count < 60:
        ndim, groups, channels = (int(random.integers(1, high)) for high in (4, 3, 3))
        kernel, stride, dilation = random.integers(1, 4, ndim), random.integers(1, 4, ndim), random.integers(1, 3, ndim)
        settings = {
            "stride": tuple(map(int, stride)), "dilation": tuple(map(int, dilation)), "groups": groups,
            "padding": tuple((int(low), int(high)) for low, high in random.integers(-2, 4, (ndim, 2))),
            "flip_kernel": bool(count % 2),
        }  # fmt: skip
        x_shape = (2, channels * groups, *random.integers(4, 9, ndim) + dilation * (kernel - 1))
        weight, bias = draw(4 * channels * groups, channels, *kernel), draw(channels * groups)
        try:
            gradient = draw(*pp.conv(np.zeros(x_shape, dtype), weight, **settings).shape)
        except pp.GeometryError:
            continue
        if not engine.scatters(pp.plan(x_shape, weight.shape, **settings).geometry):
            assert any(d * (k - 1) // s > out for d, k, s, out in zip(
                dilation, kernel, stride, gradient.shape[2:], strict=True))  # fmt: skip
            continue
        crop = {**settings, "output_size": x_shape[2:]}
        scattered = (pp.conv_input(x_shape, weight, gradient, **settings),
                     pp.conv_transpose(gradient, weight, bias, **crop))  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(engine, "scatters", lambda geometry: False)
            gathered = (pp.conv_input(x_shape, weight, gradient, **settings),
                        pp.conv_transpose(gradient, weight, bias, **crop))  # fmt: skip
        for found, want in zip(scattered, gathered, strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-9)
        count += 1


def test_low_precision_is_rounded_once(monkeypatch):
    """Sums of integers that float32 holds and float16 does not: were every block rounded, they would differ."""
    monkeypatch.setattr(engine.NumpyEngine, "block_bytes", 64)
    random = np.random.default_rng(0)
    x, weight = random.integers(-9, 9, (1, 24, 7, 6)), random.integers(-99, 99, (3, 24, 3, 2))
    want = pp.conv(x.astype(np.float32), weight.astype(np.float32), padding=((2, 0), (0, 1)))
    assert (np.abs(want) > 2048).any()
    found = pp.conv(x.astype(np.float16), weight.astype(np.float16), padding=((2, 0), (0, 1)))
    np.testing.assert_array_equal(found, want.astype(np.float16))
