"""Live Flux models: parameters on shared memory, modes, state, summary, and every refusal with its text."""

import gc
import re

import flux_models
import numpy as np
import pytest

from pyflux_pad import BackendUnavailable, flux
from pyflux_pad.flux import FluxModel

pytestmark = flux_models.needs_flux


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def small():
    return FluxModel(flux.Chain(
        flux.Conv(2, 3, (2, 3), "relu", padding=((1, 0), (0, 2))), flux.BatchNorm(3), flux.flatten, flux.Dense(60, 4)))


X = random(2, 2, 4, 5)


# ----------------------------------------------------------------------------------------------------------- parameters


def test_names_shapes_and_orientation():
    model = FluxModel(flux.Chain(flux.Conv(2, 3, (2, 3), padding=((1, 0), (0, 2))), flux.flatten, flux.Dense(60, 4)))
    parameters = model.parameters()
    assert {name: array.shape for name, array in parameters.items()} == {
        "layers.0.weight": (3, 2, 2, 3), "layers.0.bias": (3,), "layers.2.weight": (60, 4), "layers.2.bias": (4,)}
    import pyflux_pad as pp

    for name, array in parameters.items():
        array[...] = random(*array.shape, seed=len(name))
    features = pp.conv(X, parameters["layers.0.weight"].copy(), parameters["layers.0.bias"].copy(),
                       padding=((1, 0), (0, 2)), flip_kernel=True)  # fmt: skip
    wanted = features.reshape(2, -1) @ parameters["layers.2.weight"] + parameters["layers.2.bias"]
    np.testing.assert_allclose(model(X), wanted, rtol=1e-5, atol=1e-5)


def test_parameters_are_the_models_memory():
    model = small()
    view = model.parameters()["layers.3.bias"]
    before = model(X)
    view += 1
    np.testing.assert_allclose(model(X), before + 1, rtol=1e-5)
    assert np.shares_memory(view, model.parameters()["layers.3.bias"])


def test_views_outlive_the_model():
    view = small().parameters()["layers.3.weight"]
    kept = view.copy()
    for _ in range(20):  # the number of the model is released at the next calls, and Julia's memory asked for
        gc.collect()
        small()(random(64, 2, 4, 5))
    np.testing.assert_array_equal(view, kept)


def test_statistics_stay_where_python_looks():
    model = small().train()
    mean = model.parameters()["layers.1.mean"]
    model.vjp(X)
    first = mean.copy()
    assert np.abs(first).max() > 0
    model(X)
    assert np.abs(mean - first).max() > 0
    assert np.shares_memory(mean, model.parameters()["layers.1.mean"])
    settled = mean.copy()
    model.eval()
    model(X)
    np.testing.assert_array_equal(mean, settled)


def test_a_tied_array_is_one_parameter_with_the_sum_of_gradients():
    model = FluxModel.from_julia("(d = Dense(3 => 3); Chain(d, d))")
    assert model.trained == ("layers.0.weight", "layers.0.bias")
    x, dy = random(2, 3), random(2, 3, seed=1)
    weight, bias = model.parameters().values()
    bias[...] = random(3, seed=2)
    _, gradients = model.grad(x, dy)
    inner = x @ weight + bias
    np.testing.assert_allclose(gradients["layers.0.weight"], x.T @ (dy @ weight.T) + inner.T @ dy, rtol=1e-4)
    np.testing.assert_allclose(gradients["layers.0.bias"], (dy @ weight.T + dy).sum(0), rtol=1e-4)


def test_branches_equal_zygotes_own():
    """Chain, SkipConnection and Parallel are differentiated layer by layer; Zygote does it in one here."""
    code = """Chain(
        SkipConnection(Chain(Conv((3, 2), 2 => 2, tanh; pad=(1, 1, 1, 0)), BatchNorm(2)), (a, b) -> a .* b),
        Parallel(+, first=Conv((2, 2), 2 => 3), second=Chain(Conv((1, 2), 2 => 3), MaxPool((2, 1); stride=1))))"""
    apart = FluxModel.from_julia(code)
    whole = FluxModel.from_julia(
        f"struct Whole{{M}}; inner::M; end; Flux.@layer Whole; (w::Whole)(x) = w.inner(x); Whole({code})")
    whole.load_state_dict({f"inner.{name}": array for name, array in apart.state_dict().items()})
    y = apart(X)
    np.testing.assert_allclose(y, whole(X), rtol=1e-6)
    (dx, gradients), (wanted_dx, wanted) = (model.grad(X, np.cos(y)) for model in (apart, whole))
    np.testing.assert_allclose(dx, wanted_dx, rtol=1e-5, atol=1e-6)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, wanted[f"inner.{name}"], rtol=1e-5, atol=1e-6)


def test_several_inputs_and_outputs():
    model = FluxModel.from_julia("(x, y) -> (2 .* x .+ y, x .* y)")
    x, y = random(2, 3), random(2, 3, seed=1)
    (a, b), pullback = model.vjp(x, y)
    np.testing.assert_allclose(a, 2 * x + y, rtol=1e-6)
    np.testing.assert_allclose(b, x * y, rtol=1e-6)
    (dx, dy), gradients = pullback(a, b)
    np.testing.assert_allclose(dx, 2 * a + b * y, rtol=1e-5)
    np.testing.assert_allclose(dy, a + b * x, rtol=1e-5)
    assert gradients == {}
    with pytest.raises(ValueError, match="the model has 2 results, given are 1 cotangents"):
        pullback(a)


def test_a_pullback_twice_gives_the_same():
    """Zygote adds the cotangents of a mutable layer up over calls of one pullback."""
    y, pullback = small().vjp(X)
    (_, first), (_, second) = pullback(np.ones_like(y)), pullback(np.ones_like(y))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


# ---------------------------------------------------------------------------------------------------- state and summary


@pytest.mark.parametrize("ending", ["safetensors", "jld2"])
def test_save_and_load(tmp_path, ending):
    model, other = small(), small()
    model.train().vjp(X)  # statistics that are not those of the start
    path = tmp_path / f"model.{ending}"
    model.save(path)
    mean = other.parameters()["layers.1.mean"]
    other.load(path)
    for name, array in model.parameters().items():
        np.testing.assert_array_equal(other.parameters()[name], array)
    assert np.shares_memory(mean, other.parameters()["layers.1.mean"])
    np.testing.assert_array_equal(model.eval()(X), other(X))
    with pytest.raises((ValueError, TypeError), match=r"missing are|does not fit the model"):
        FluxModel(flux.Chain(flux.Dense(3, 4))).load(path)


def test_state_dict_refusals():
    model = small()
    state = model.state_dict()
    with pytest.raises(ValueError, match=r"missing are \['layers.0.bias'\], unknown are \['bias'\]"):
        model.load_state_dict({**{k: v for k, v in state.items() if k != "layers.0.bias"}, "bias": X})
    with pytest.raises(ValueError, match=r"layers.3.weight has the shape \(60, 4\), given is \(4, 60\)"):
        model.load_state_dict({**state, "layers.3.weight": state["layers.3.weight"].T})
    with pytest.raises(TypeError, match=r"layers\.0\.bias is float32, given is float64"):
        model.load_state_dict({**state, "layers.0.bias": np.zeros(3)})
    with pytest.raises(ValueError, match=r"FluxModel.save: model.h5 must end in .safetensors or .jld2"):
        model.save("model.h5")
    with pytest.raises(TypeError, match="lives in Julia and is not copied"):
        __import__("copy").deepcopy(model)
    assert repr(model) == "FluxModel(289 trained parameters in 6 arrays)"


def test_gpu_needs_cuda():
    with pytest.raises(BackendUnavailable, match=(
        r"FluxModel\.gpu: a model on the GPU needs CUDA, which the project .* does not have; add it: "
        r'import Pkg; Pkg\.add\("CUDA"\)'
    )):
        small().gpu()


ON_DEVICE = """
extension = only(m for m in Base.loaded_modules_array() if nameof(m) === :PyFluxPadFluxExt)
extension.OnDevice(Chain(Conv((3, 2), 2 => 3, relu; pad=(0, 2, 1, 0), init=(s...) -> ones(Float32, s)), Dropout(0.9)))
"""


def test_what_runs_on_a_gpu():
    """Without one, Flux's `gpu` and `cpu` leave arrays where they are: the wrapper's own part can be tested."""
    plain = FluxModel.from_julia(ON_DEVICE.replace("extension.OnDevice(", "identity("))
    wrapped = FluxModel.from_julia(ON_DEVICE)
    assert wrapped.parameters() == {}
    y = plain(X)
    np.testing.assert_array_equal(wrapped(X), y)
    np.testing.assert_array_equal(wrapped.grad(X, y)[0], plain.grad(X, y)[0])
    assert (wrapped.train()(X) == 0).mean() > (y == 0).mean() + 0.2


def test_summary():
    model = FluxModel(flux.Chain(
        flux.Conv(2, 3, (2, 3), padding=((1, 0), (0, 2))), flux.SkipConnection(flux.BatchNorm(3), "cat"), flux.flatten))
    assert model.summary((7, 2, 4, 5)) == """\
name             layer           shape    parameters
---------------  --------------  -------  ----------
                 input           7x2x4x5
layers.0         Conv            7x3x4x5  39
layers.1.layers  BatchNorm       7x3x4x5  6
layers.1         SkipConnection  7x6x4x5  6
layers.2         flatten         7x120
45 trained parameters"""


# ------------------------------------------------------------------------------------------------------------ bad input


def test_channels_that_do_not_fit():
    model = small()
    text = "FluxModel: layers.0 (Conv) takes an array (N, 2, H, W), given is (2, 3, 4, 5)"
    with pytest.raises(ValueError, match=re.escape(text)):
        model(random(2, 3, 4, 5))
    with pytest.raises(ValueError, match=re.escape("layers.3 (Dense) takes an array (N, 60), given is (2, 72)")):
        model.vjp(random(2, 2, 4, 6))
    nested = FluxModel(flux.Chain(flux.Parallel("+", flux.Chain(flux.flatten, flux.BatchNorm(7)), flux.flatten)))
    with pytest.raises(ValueError, match=re.escape("layers.0.layers.0.layers.1 (BatchNorm) takes an array (N, 7, ...), "
                                                   "given is (2, 40)")):
        nested(X)
    text = "layers.0 (LayerNorm) takes an array (N, ..., 4, 6), given is (2, 2, 4, 5)"
    with pytest.raises(ValueError, match=re.escape(text)):
        FluxModel(flux.Chain(flux.LayerNorm((4, 6))))(X)
    with pytest.raises(flux.FluxError, match=r"layers.0: Julia says, with sizes in its own order.*Kernel"):
        FluxModel(flux.Chain(flux.Conv(2, 1, (9, 9))))(X)


def test_wrong_arrays():
    model = small()
    refusals = [
        (X.astype(np.float64), TypeError, "layers.0 (Conv) has parameters of float32, given is an array of float64"),
        (np.ones((2, 2, 4, 5), np.uint8), TypeError, "given is an array of uint8, which Flux would convert silently"),
        (X.transpose(0, 1, 3, 2), ValueError, "which is not the order of C; Julia reads the memory as it lies"),
        (X[:, ::-1], ValueError, "pass numpy.ascontiguousarray(...)"),
        (X.astype(">f4"), TypeError, "has the byte order of another machine (>f4)"),
        (X.tolist(), TypeError, "the input is a list, not a NumPy array"),
        (X.astype("longdouble"), TypeError, "the input is float128; Julia takes float32"),
    ]
    for array, kind, text in refusals:
        with pytest.raises(kind, match=re.escape(text)):
            model(array)
    with pytest.raises(TypeError, match=r"grad_output must be float32 \(2, 4\), as the result; given: float64 \(2, 4"):
        model.grad(X, np.ones((2, 4)))
    with pytest.raises(ValueError, match=r"given: float32 \(4, 2\)"):
        model.grad(X, np.ones((4, 2), np.float32))
    whole = FluxModel.from_julia(
        "struct W; w::Vector{Float32}; end; Flux.@layer W; (m::W)(x) = m.w .* x; W(ones(Float32, 3))")
    with pytest.raises(TypeError, match="the model has parameters of float32, given is an array of float64"):
        whole(np.ones((2, 3)))


def test_julia_that_is_wrong(tmp_path):
    path = tmp_path / "model.jl"
    path.write_text("model = Chain(\n  Conv((3, 3), 1 => 4)\n  Dense(3 => 4))\n")
    with pytest.raises(ValueError, match=r"(?s)FluxModel.from_file: ParseError.*model\.jl:3:\d+\n.*── "):
        FluxModel.from_file(path)
    path.write_text("\nnosuch(3)\n")
    with pytest.raises(ValueError, match=r"model\.jl:2: UndefVarError: `nosuch` not defined"):
        FluxModel.from_file(path)
    with pytest.raises(ValueError, match=r"there is no file .*missing\.jl"):
        FluxModel.from_file(tmp_path / "missing.jl")
    with pytest.raises(ValueError, match=r"(?s)from_julia: ParseError.*model:1:\d+\nChain\(Conv\(.*╙|└"):
        FluxModel.from_julia("Chain(Conv((3, 3), 1 => 4)")
    with pytest.raises(ValueError, match="its value is Int64, which cannot be called"):
        FluxModel.from_julia("1 + 1")
    with pytest.raises(flux.FluxError, match=r"Julia says.*boom"):
        FluxModel.from_julia('x -> error("boom")')(X)
    with pytest.raises(TypeError, match=r"the model returned Dict.*FluxModel takes arrays and tuples of arrays"):
        FluxModel.from_julia('x -> Dict("y" => x)')(X)
    path.write_text("Chain(Flux.flatten, Dense(40 => 2))")
    assert FluxModel.from_file(path)(X).shape == (2, 2)


def test_a_model_changed_in_julia():
    import juliacall

    main = vars(juliacall)["Main"]
    main.seval("import Flux; pyflux_pad_test = Flux.Chain(Flux.BatchNorm(2), [Flux.Dense(5 => 3)][1])")
    model = FluxModel.from_julia("Main.pyflux_pad_test")
    view = model.parameters()["layers.0.mean"]
    before = model(X)
    main.seval("pyflux_pad_test[1].μ .= 1f0")  # the same array: seen at once
    np.testing.assert_array_equal(view, np.ones(2))
    assert np.abs(model(X) - before).max() > 0
    main.seval("pyflux_pad_test[1].μ = zeros(Float32, 2)")
    text = (r"the model was changed in Julia: layers.0.mean is another array than the one that parameters\(\) shows; "
            r"make a new FluxModel")
    for use in (lambda: model(X), model.parameters, lambda: model.vjp(X), lambda: flux.fit(model, [(X, before)])):
        with pytest.raises(RuntimeError, match=text):
            use()
    np.testing.assert_array_equal(view, np.ones(2))  # its memory stays
    anew = FluxModel.from_julia("Main.pyflux_pad_test")
    np.testing.assert_array_equal(anew.parameters()["layers.0.mean"], np.zeros(2))


# --------------------------------------------------------------------------------------- NNlib's pools, as they are


def test_a_maximum_ignores_nan():
    x = np.array([[[1, np.nan, 2, 3]]], np.float32)
    np.testing.assert_array_equal(FluxModel(flux.MaxPool((2,)))(x), [[[1, 3]]])


def test_a_window_of_padding_is_the_lowest_finite_number():
    y = FluxModel(flux.MaxPool((2,), padding=((2, 0),)))(np.ones((1, 1, 2), np.float32))
    assert y[0, 0].tolist() == [np.finfo(np.float32).min, 1]


def test_the_gradient_of_a_maximum_goes_to_what_is_nearly_one():
    x = np.array([[[1, 1.0001]]], np.float32)
    dx, _ = FluxModel(flux.MaxPool((2,))).grad(x, np.ones((1, 1, 1), np.float32))
    assert dx.tolist() == [[[1, 0]]]


@pytest.mark.parametrize("layer, wanted", [
    (flux.MeanPool((5,), stride=1, padding=2), 0.8),  # 3 windows: 0.6 is right
    (flux.MaxPool((3,), stride=1, padding=1), 2.0),  # one cell, one window: 1 is right
], ids=["mean", "max"])  # fmt: skip
def test_windows_over_both_borders_count_twice(layer, wanted):
    x = np.ones((1, 1, 3 if "Mean" in layer.julia else 1), np.float32)
    model = FluxModel(layer)
    dx, _ = model.grad(x, np.ones_like(model(x)))
    np.testing.assert_allclose(dx, np.full_like(x, wanted), rtol=1e-6)
