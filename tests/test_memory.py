"""The NumPy engine's extra memory: at most 1.5 x (inputs + output) + 16 MB, for any kernel, forward and backward."""

import tracemalloc

import numpy as np
import pytest

import pyflux_pad as pp

CASES = {
    # im2col of this one would take 64 * 64 * 2 * 65 * 65 elements: 277 MB
    "kernel_64x64": ((1, 2, 64, 64), (3, 2, 64, 64), {"padding": ((63, 1), (0, 64))}, np.float64),
    "global_kernel": ((2, 8, 160, 160), (4, 8, 160, 160), {}, np.float32),
    "global_kernel_few_channels": ((8, 16, 64, 64), (64, 16, 64, 64), {}, np.float32),
    "wide_kernel_few_channels": ((4, 8, 90, 90), (64, 8, 40, 40), {"stride": 2}, np.float32),
    "3x3_many_channels": ((2, 256, 28, 28), (256, 256, 3, 3), {"padding": ((0, 1), (2, 1))}, np.float32),
    "3x3_flipped_half": ((1, 512, 14, 14), (512, 512, 3, 3), {"padding": 1, "flip_kernel": True}, np.float16),
    "1x1_wide": ((1, 2048, 16, 16), (2048, 2048, 1, 1), {}, np.float32),
    "depthwise": ((4, 96, 96, 96), (96, 1, 5, 5), {"padding": ((4, 0), (0, 4)), "groups": 96}, np.float32),
    "large_pads_large_stride": ((1, 1, 8, 8), (1, 1, 3, 3), {"padding": ((3000, 1), (5, 3000)), "stride": 100},
                                np.float64),
    "dilated_3d_complex": ((1, 4, 24, 24, 24), (4, 4, 3, 3, 3), {"padding": ((8, 0), (4, 4), (0, 8)), "dilation": 4},
                           np.complex128),
    "strided_3d_gap": ((1, 2, 64, 64, 64), (16, 2, 2, 2, 2), {"padding": ((1, 0),) * 3, "stride": 7}, np.float64),
}  # fmt: skip


def extra(function, *arrays, **options):
    """Return the result and the peak of the memory allocated beside it."""
    function(*arrays, **options)  # caches and lazy imports are not the convolution's
    tracemalloc.start()
    result = function(*arrays, **options)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return result, peak - result.nbytes


def assert_bounded(used, *arrays):
    bound = 1.5 * sum(a.nbytes for a in arrays) + 16e6
    assert used <= bound, f"{used / 1e6:.1f} MB beside the result, allowed are {bound / 1e6:.1f}"


@pytest.mark.engine("numpy")
@pytest.mark.parametrize("name", CASES)
def test_extra_memory(name):
    x_shape, weight_shape, options, dtype = CASES[name]
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape).astype(dtype) for shape in (x_shape, weight_shape))
    y, used = extra(pp.conv, x, weight, **options)
    assert_bounded(used, x, weight, y)
    dx, used = extra(pp.conv_input, x_shape, weight, y, **options)
    assert_bounded(used, weight, y, dx)
    dw, used = extra(pp.conv_weight, x, weight_shape, y, **options)
    assert_bounded(used, x, y, dw)


@pytest.mark.engine("numpy")
def test_the_measure_sees_a_full_buffer():
    """The bound can be broken: gathering every window at once does."""
    x = np.ones((2, 8, 160, 160), np.float32)

    def im2col(x):
        windows = np.lib.stride_tricks.sliding_window_view(x, (9, 9), (2, 3))
        return windows.reshape(*windows.shape[:4], -1) @ np.ones((81, 1), np.float32)

    y, used = extra(im2col, x)
    with pytest.raises(AssertionError, match="MB beside the result"):
        assert_bounded(used, x, y)
