"""torch's transforms on every way to convolve a tensor: torch.func, vmap, compile, export, autocast and the rest.

Each test compares the package with a convolution spelled in torch's own operators (`F.pad`, then no padding): by
torch's kernels and by the NumPy engine carried through the registered operators. What the latter cannot do must raise.
"""

import copy
import functools
import importlib
import io
import itertools
import shutil

import pytest
from cases import CONV_CASES, arrays
from engines import CARRIED, TENSOR_ENGINES
from twins import close, conv_by_torch, cubed, twins

import pyflux_pad as pp

torch = pytest.importorskip("torch")
F = torch.nn.functional
func = torch.func

pytestmark = [
    pytest.mark.engine("torch"),
    # What torch says of itself: forward mode scripts its decompositions when first used, `linearize` folds constants,
    # and compiled transforms of an autograd.Function break the graph.
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
    pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin:UserWarning"),
]

on_tensors = pytest.mark.parametrize("engine", TENSOR_ENGINES, ids=str)
CASES = {case.name: case for case in CONV_CASES if case.name in (
    "1d_low_only", "1d_groups", "2d_four_sides", "2d_leftover", "2d_flip_groups_dilated", "2d_crop_one_pad_other",
    "3d_dilated_groups")}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
operators = pytest.mark.parametrize("operator", ("conv", "conv_input", "conv_weight"))


# ---------------------------------------------------------------- torch.func

BOTH = (0, 1)


def dual(f, a, b):
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        return forward.unpack_dual(f(forward.make_dual(a, a.cos()), forward.make_dual(b, b.sin()))).tangent


def batch(a, size=3, dim=0):
    """Stack multiples of a tensor."""
    return torch.stack([a * (i + 1) for i in range(size)], dim)


# Each takes a function and two operands; the two tangents differ, so that a dropped one shows.
TRANSFORMS = {
    "grad": lambda f, a, b: func.grad(cubed(f), BOTH)(a, b),
    "vjp": lambda f, a, b: func.vjp(f, a, b)[1](f(a, b).cos()),
    "jvp": lambda f, a, b: func.jvp(f, (a, b), (a.cos(), b.sin())),
    "jvp by the second": lambda f, a, b: func.jvp(lambda b: f(a, b), (b,), (b.sin(),)),
    "dual level": dual,
    "dual level, no_grad": lambda f, a, b: torch.no_grad()(dual)(f, a, b),
    "linearize": lambda f, a, b: func.linearize(f, a, b)[1](a.cos(), b.sin()),
    "jacrev": lambda f, a, b: func.jacrev(f, BOTH)(a, b),
    "jacfwd": lambda f, a, b: func.jacfwd(f, BOTH)(a, b),
    "hessian": lambda f, a, b: func.hessian(cubed(f), BOTH)(a, b),
    "jacrev of jacrev": lambda f, a, b: func.jacrev(func.jacrev(cubed(f), 1), 1)(a, b),
    "forward over forward": lambda f, a, b: func.jvp(
        lambda a: func.jvp(lambda b: cubed(f)(a, b), (b,), (b.sin(),))[1], (a,), (a.cos(),))[1],
    "jacfwd of jacfwd": lambda f, a, b: func.jacfwd(func.jacfwd(cubed(f), BOTH), BOTH)(a, b),
    "reverse over forward": lambda f, a, b: func.grad(
        lambda a, b: func.jvp(cubed(f), (a, b), (a.cos(), b.sin()))[1], BOTH)(a, b),
    "third order": lambda f, a, b: func.grad(
        lambda b: func.grad(lambda a: func.grad(cubed(f), 1)(a, b).pow(2).mean())(a).pow(2).mean())(b),
    "vmap of the first": lambda f, a, b: func.vmap(f, (0, None))(batch(a), b),
    "vmap of the second": lambda f, a, b: func.vmap(f, (None, 0))(a, batch(b)),
    "vmap of both": lambda f, a, b: func.vmap(f)(batch(a), batch(b).cos()),
    "vmap of other axes": lambda f, a, b: func.vmap(f, (-1, 2), 1)(batch(a, dim=-1), batch(b, dim=2)),
    "vmap of vmap": lambda f, a, b: func.vmap(func.vmap(f, (0, None)), (None, 0))(batch(a), batch(b)),
    "vmap by chunks": lambda f, a, b: func.vmap(f, (0, None), chunk_size=2)(batch(a), b),
    "per-sample gradients": lambda f, a, b: func.vmap(func.grad(cubed(f), BOTH), (0, None))(batch(a), b),
    "an ensemble's gradients": lambda f, a, b: func.vmap(func.grad(cubed(f), BOTH), (None, 0))(a, batch(b)),
    "vmap of jvp": lambda f, a, b: func.vmap(lambda a: func.jvp(lambda b: f(a, b), (b,), (b.sin(),))[1])(batch(a)),
}


# torch cannot vectorise forward mode over forward mode through an autograd.Function: the carried engine must refuse.
NOT_CARRIED = ("jacfwd of jacfwd",)


def loud_or_right(run, expected):
    """What torch cannot do with a carried engine raises; should it learn to, the numbers must be right."""
    try:
        found = run()
    except RuntimeError:  # Unsupported and NotImplementedError are RuntimeErrors
        return
    close(found, expected)


# These compute whole Jacobians: on one spatial axis only.
WHOLE = ("jacrev", "jacfwd", "hessian", "jacrev of jacrev", "jacfwd of jacfwd")


@on_tensors
@pytest.mark.parametrize("transform, case", [
    pytest.param(transform, case, id=f"{transform}-{case}") for transform in TRANSFORMS for case in CASES.values()
    if len(case.size) == 1 or transform not in WHOLE])
@operators
def test_transform(engine, case, operator, transform):
    ours, reference, (a, b) = twins(engine, case, operator)
    run, expected = functools.partial(TRANSFORMS[transform], ours, a, b), TRANSFORMS[transform](reference, a, b)
    if engine is CARRIED and transform in NOT_CARRIED:
        loud_or_right(run, expected)
    else:
        close(run(), expected)


def summed(tensor):
    return tensor.pow(2).sum() + tensor.sum()


# Each makes a scalar function of two operands out of another.
NESTED = {
    "jvp 0": lambda f: lambda a, b: func.jvp(lambda a: f(a, b), (a,), (a.cos(),))[1],
    "jvp 1": lambda f: lambda a, b: func.jvp(lambda b: f(a, b), (b,), (b.sin(),))[1],
    "jvp": lambda f: lambda a, b: func.jvp(f, (a, b), (a.cos(), b.sin()))[1],
    "grad 0": lambda f: lambda a, b: summed(func.grad(f, 0)(a, b)),
    "grad 1": lambda f: lambda a, b: summed(func.grad(f, 1)(a, b)),
    "vmap 0": lambda f: lambda a, b: summed(func.vmap(f, (0, None))(batch(a), b)),
    "vmap 1": lambda f: lambda a, b: summed(func.vmap(f, (None, 0))(a, batch(b))),
    "vmap": lambda f: lambda a, b: summed(func.vmap(f)(batch(a), batch(b).cos())),
    "jacfwd 1": lambda f: lambda a, b: summed(func.jacfwd(f, 1)(a, b)),
    "jacrev 0": lambda f: lambda a, b: summed(func.jacrev(f, 0)(a, b)),
}


@on_tensors
@operators
@pytest.mark.parametrize("outer", NESTED)
@pytest.mark.parametrize("inner", NESTED)
def test_nested_transforms(engine, operator, inner, outer):
    """Only a vectorised forward mode over forward mode may be refused."""
    ours, reference, (a, b) = twins(engine, CASES["1d_low_only"], operator)

    def run(function):
        return NESTED[outer](NESTED[inner](lambda a, b: summed(function(a, b))))(a, b)

    if engine is CARRIED and all(name.startswith(("jvp", "jacfwd")) for name in (inner, outer)):
        loud_or_right(lambda: run(ours), run(reference))
    else:
        close(run(ours), run(reference))


@on_tensors
def test_per_sample_gradients_of_a_layer(engine):
    """One image at a time, with a batch axis of one, as torch's own tutorial does it."""
    case = CASES["2d_flip_groups_dilated"]
    x, weight, bias, _ = (torch.tensor(a) for a in arrays(case, "float64"))
    settings = case.arguments

    def losses(conv):
        def loss(weight, bias, image):
            return conv(image[None], weight, bias, **settings).pow(2).sum()

        return func.vmap(func.grad(loss, BOTH), (None, None, 0))(weight, bias, x)

    close(losses(functools.partial(pp.conv, backend=engine.backend)), losses(conv_by_torch))


# ---------------------------------------------------------------- compile

@pytest.fixture
def fresh_dynamo():
    """Forget what was compiled, so that recompile limits and caches do not leak from test to test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


compiles = pytest.mark.usefixtures("fresh_dynamo")


def by_autograd(function, operands):
    """Return the output and the gradients of its cubed mean."""
    operands = [a.detach().clone().requires_grad_() for a in operands]
    y = function(*operands)
    return y.detach(), torch.autograd.grad(y.pow(3).mean(), operands)


@compiles
@on_tensors
@cases
@operators
@pytest.mark.parametrize("compiler", ("eager", "aot_eager"))
def test_compile(engine, case, operator, compiler):
    ours, reference, operands = twins(engine, case, operator)
    compiled = torch.compile(ours, fullgraph=True, backend=compiler)
    close(by_autograd(compiled, operands), by_autograd(reference, operands))


@compiles
@on_tensors
@pytest.mark.skipif(not shutil.which("c++"), reason="inductor needs a C++ compiler (c++), and none is on the path")
def test_compile_inductor(engine):
    case = CASES["2d_leftover"]
    ours, reference, operands = twins(engine, case, "conv")
    compiled = torch.compile(lambda a, b: ours(a, b).relu(), fullgraph=True)
    close(by_autograd(compiled, operands), by_autograd(lambda a, b: reference(a, b).relu(), operands))


COMPILED = ("grad", "jvp", "dual level", "jacfwd", "hessian", "vmap of both", "per-sample gradients")


@compiles
@on_tensors
@pytest.mark.parametrize("transform", COMPILED)
def test_compile_of_a_transform(engine, transform):
    """Graph breaks are allowed here; wrong numbers are not."""
    ours, reference, (a, b) = twins(engine, CASES["1d_low_only"], "conv")
    compiled = torch.compile(functools.partial(TRANSFORMS[transform], ours), backend="aot_eager")
    close(compiled(a, b), TRANSFORMS[transform](reference, a, b))


# ---------------------------------------------------------------- symbolic sizes: dynamic compile and export

KERNEL, STRIDE = (3, 4), 2
SHAPES = [(n, 3, *size) for n, *size in ((2, 8, 8), (3, 9, 10), (4, 11, 9), (5, 10, 13), (6, 13, 15))]
LAYERS = {
    "explicit": (pp.conv, {"padding": ((0, 3), (2, 1))}),
    "one side": (pp.conv, {"padding": ((2, 0), (0, 3))}),
    "cropping": (pp.conv, {"padding": ((-1, 2), (3, -2))}),
    "same": (pp.conv, {"padding": "same"}),
    "same_lower": (pp.conv, {"padding": "same_lower"}),
    "transposed": (pp.conv_transpose, {"padding": ((0, 1), (2, 0)), "output_padding": (1, 0)}),
    "transposed, zeros": (pp.conv_transpose, {"padding": ((-2, 1), (3, -1))}),
    "transposed, same": (pp.conv_transpose, {"padding": "same"}),
}
layers = pytest.mark.parametrize("layer", LAYERS)


class Net(torch.nn.Module):
    """One layer of the table, strided."""

    def __init__(self, layer, engine):
        super().__init__()
        self.function, self.settings = LAYERS[layer]
        self.backend = engine.backend
        generator = torch.Generator().manual_seed(0)
        channels = (4, 3) if self.function is pp.conv else (3, 4)
        self.weight = torch.nn.Parameter(torch.randn(*channels, *KERNEL, generator=generator, dtype=torch.float64))
        self.bias = torch.nn.Parameter(torch.randn(4, generator=generator, dtype=torch.float64))

    def forward(self, x):
        return self.function(x, self.weight, self.bias, stride=STRIDE, **self.settings, backend=self.backend)


def by_torch(net, x):
    """What a `Net` computes, in torch's own operators."""
    transposed = net.function is pp.conv_transpose
    padding, extra = net.settings["padding"], net.settings.get("output_padding", (0, 0))
    if isinstance(padding, str):
        padding = [same_pads(n, k, transposed, padding == "same_lower")
                   for n, k in zip(x.shape[2:], KERNEL, strict=True)]
    if not transposed:
        return conv_by_torch(x, net.weight, net.bias, stride=STRIDE, padding=padding)
    full = F.conv_transpose2d(x, net.weight, stride=STRIDE)
    sides = [side for (lo, hi), e in zip(padding[::-1], extra[::-1], strict=True) for side in (-lo, e - hi)]
    return F.pad(full, sides) + net.bias.reshape(-1, 1, 1)


def same_pads(n, k, transposed, lower):
    """TensorFlow's rule: ``ceil(n/s)`` outputs, or ``n*s`` if transposed; the odd pixel at the end unless `lower`."""
    inputs, outputs = (n * STRIDE, n) if transposed else (n, -(-n // STRIDE))
    total = (outputs - 1) * STRIDE + k - inputs
    low = (max(total, 0) + lower) // 2
    return (low, total - low) if transposed else (low, max(total, 0) - low)


def images(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def trained(net, function, x):
    """Return the output and the gradients by x and the parameters of its cubed mean."""
    x = x.clone().requires_grad_()
    y = function(x)
    return y.detach(), torch.autograd.grad(y.pow(3).mean(), (x, net.weight, net.bias))


@compiles
@on_tensors
@layers
def test_dynamic_compile(engine, layer):
    """Five sizes, forward and backward, and no more than one recompilation."""
    counter = torch._dynamo.testing.CompileCounter()
    net = Net(layer, engine)
    compiled = torch.compile(net, dynamic=True, fullgraph=True, backend=counter)
    for x in map(images, SHAPES):
        close(trained(net, compiled, x), trained(net, functools.partial(by_torch, net), x))
    assert counter.frame_count <= 2


def exported(net, strict):
    """Export with N, H and W dynamic, save, and load."""
    # The smallest sizes keep batch and outputs above 1, which torch treats apart.
    dynamic = {axis: torch.export.Dim(name, min=least) for axis, name, least in ((0, "N", 2), (2, "H", 6), (3, "W", 6))}
    program = torch.export.export(net, (images(SHAPES[0]),), dynamic_shapes=(dynamic,), strict=strict)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    return torch.export.load(buffer)


@compiles
@on_tensors
@layers
@pytest.mark.parametrize("strict", (False, True), ids=("traced", "strict"))
def test_export(engine, layer, strict):
    """The loaded program is right, output and gradients, at five sizes it has not seen."""
    net = Net(layer, engine)
    program = exported(net, strict)
    loaded = program.module()
    for x in map(images, SHAPES):
        close(trained(loaded, loaded, x), trained(net, functools.partial(by_torch, net), x))
    ours = [str(n.target) for n in program.graph.nodes if "pyflux_pad" in str(n.target)]
    name = "conv" if net.function is pp.conv else "conv_input"
    assert ours == ([f"pyflux_pad.{name}.default"] if engine is CARRIED else [])


# ---------------------------------------------------------------- the registered operators


def registered(operator):
    """Return a registered operator; the module that holds it is imported by the first foreign engine."""
    importlib.import_module("pyflux_pad.backends.torch_ops")
    return getattr(torch.ops.pyflux_pad, operator).default


def direct(case, operator):
    """Return the arguments of a registered operator for a case: three spatial axes, flat integers."""
    def three(entries, missing):
        return [missing] * (3 - len(case.size)) + list(entries)

    def lift(array):
        return torch.tensor(array.reshape(*array.shape[:2], *three(array.shape[2:], 1)), requires_grad=True)

    x, weight, _, grad = map(lift, arrays(case, "float64"))
    geometry = (*itertools.chain(*three(case.padding, (0, 0))), *three(case.stride, 1), *three(case.dilation, 1),
                case.groups, case.flip_kernel, CARRIED.backend)
    return {"conv": (x, weight, *geometry),
            "conv_input": (grad, weight, *geometry, *x.shape[2:]),
            "conv_weight": (x, grad, *geometry, *weight.shape[2:])}[operator]


@compiles
@cases
@operators
def test_opcheck(case, operator):
    """Schema, autograd registration, shape rule and dynamic tracing, judged by torch."""
    verdicts = torch.library.opcheck(registered(operator), direct(case, operator))
    assert set(verdicts.values()) == {"SUCCESS"}


@cases
@operators
def test_direct_call(case, operator):
    """The operators themselves record; that is what an exported program calls."""
    first, second, *geometry = direct(case, operator)
    _, reference, (a, b) = twins(CARRIED, case, operator)
    if operator == "conv_input":
        first, second = second, first  # the operator takes grad_output first, the function the weight
    y, gradients = by_autograd(lambda a, b: registered(operator)(a, b, *geometry), direct(case, operator)[:2])
    expected, by_operand = by_autograd(reference, (a, b))
    if operator == "conv_input":
        by_operand = by_operand[::-1]
    close(y.reshape(expected.shape), expected)
    close([g.reshape(e.shape) for g, e in zip(gradients, by_operand, strict=True)], list(by_operand))


# ---------------------------------------------------------------- autocast


def losses_of_training(conv, steps=3):
    """Train a bfloat16-producing layer and ours behind it under autocast; return the losses."""
    generator = torch.Generator().manual_seed(0)
    x, target, weight = (torch.randn(shape, generator=generator) / 3
                         for shape in ((4, 3, 8, 9), (4, 2, 4, 4), (2, 5, 2, 3)))
    parameters = [torch.nn.Parameter(weight), torch.nn.Parameter(torch.zeros(2))]
    torch.manual_seed(0)
    first = torch.nn.Conv2d(3, 5, 3)
    optimizer = torch.optim.SGD([*first.parameters(), *parameters], lr=0.2)
    losses = []
    for _ in range(steps + 1):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            hidden = first(x)
            assert hidden.dtype == torch.bfloat16
            y = conv(hidden, *parameters, stride=2, padding=((2, 1), (0, 3)))
        assert y.dtype == torch.bfloat16, "autocast's rule for conv2d"
        loss = F.mse_loss(y.float(), target)
        loss.backward()
        assert all(p.grad.dtype == torch.float32 for p in (*first.parameters(), *parameters))
        optimizer.step()
        losses.append(loss.item())
    return losses


@on_tensors
def test_autocast_trains(engine):
    ours = losses_of_training(functools.partial(pp.conv, backend=engine.backend))
    assert all(after < before for before, after in itertools.pairwise(ours)), ours
    # bfloat16 has 8 bits; the engines round at different places.
    assert ours == pytest.approx(losses_of_training(conv_by_torch), rel=2e-2)


@on_tensors
@operators
def test_autocast_dtypes(engine, operator):
    """Operands of two types, which outside autocast are an error."""
    case = CASES["2d_leftover"]
    ours, reference, (a, b) = twins(engine, case, operator, "float32")
    with pytest.raises(TypeError, match="bfloat16"):
        ours(a.bfloat16(), b)
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(a.bfloat16(), b)
        assert y.dtype == torch.bfloat16
    close(y.float(), reference(a.bfloat16().float(), b.bfloat16().float()), rtol=4e-2)
    with torch.autocast("cpu", enabled=False):
        close(ours(a, b), reference(a, b), rtol=1e-5)


# ---------------------------------------------------------------- the modes and tools around a model


def four_sides(engine, dtype="float64"):
    return twins(engine, CASES["2d_four_sides"], "conv", dtype)


@on_tensors
def test_no_grad(engine):
    ours, reference, (a, b) = four_sides(engine)
    with torch.no_grad():
        y = ours(a.requires_grad_(), b.requires_grad_())
    assert not y.requires_grad
    close(y, reference(a, b).detach())


@on_tensors
def test_inference_mode(engine):
    ours, reference, (a, b) = four_sides(engine)
    with torch.inference_mode():
        close(ours(a, b), reference(a, b))
        close(func.vmap(ours, (0, None))(batch(a), b), func.vmap(reference, (0, None))(batch(a), b))


@on_tensors
@pytest.mark.parametrize("reentrant", (False, True))
def test_checkpoint(engine, reentrant):
    ours, reference, operands = four_sides(engine)
    expected, gradients = by_autograd(reference, operands)
    operands = [a.requires_grad_() for a in operands]
    y = torch.utils.checkpoint.checkpoint(ours, *operands, use_reentrant=reentrant)
    y.pow(3).mean().backward()
    close((y.detach(), tuple(a.grad for a in operands)), (expected, gradients))


@on_tensors
def test_saved_tensor_hooks(engine):
    ours, reference, operands = four_sides(engine)
    with torch.autograd.graph.save_on_cpu():
        found = by_autograd(ours, operands)
    close(found, by_autograd(reference, operands))


@on_tensors
@cases
@operators
def test_meta_device(engine, case, operator):
    """Shapes without values."""
    ours, reference, operands = twins(engine, case, operator)
    y = ours(*(a.to("meta") for a in operands))
    assert (y.device.type, y.shape, y.dtype) == ("meta", reference(*operands).shape, torch.float64)


@on_tensors
def test_modules(engine):
    """functional_call with other parameters; a deep copy that trains apart from the original."""
    net, x = Net("explicit", engine), images(SHAPES[0])
    doubled = {name: 2 * p.detach() for name, p in net.named_parameters()}
    close(func.functional_call(net, doubled, (x,)), 2 * by_torch(net, x))
    twin = copy.deepcopy(net)
    twin(x).sum().backward()
    assert net.weight.grad is None
    assert twin.weight.grad is not None
    close(twin(x), net(x))


@on_tensors
@cases
@operators
def test_strided_operands(engine, case, operator):
    """Expanded, transposed, lazily conjugated and lazily negated operands and cotangents are read by value."""
    ours, reference, (a, b) = twins(engine, case, operator, "complex128")
    views = {
        "conjugated": lambda t: t.conj(),
        "negated": lambda t: t.conj().imag,
        "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
        "expanded": lambda t: t[:1].expand_as(t),
        "sliced": lambda t: torch.stack([t, t], -1)[..., 1],
    }
    assert views["conjugated"](a).is_conj()
    assert views["negated"](a).is_neg()
    for view in views.values():
        y, cotangent = reference(view(a), view(b)), view(reference(a, b))
        leaves = [view(t).requires_grad_() for t in (a.detach(), b.detach())]
        found = ours(*leaves)
        close(found.detach(), y)
        close(torch.autograd.grad(found, leaves, cotangent),
              torch.autograd.grad(reference(*leaves), leaves, cotangent))


@pytest.mark.parametrize("strategy", (None, "crop", "residual", "full"))
@pytest.mark.parametrize("axes", (2, 3))
@pytest.mark.parametrize("last", (True, False), ids=("channels_last", "channels_first"))
def test_memory_format(strategy, axes, last):
    """A result lies in memory as torch's own does, also where outputs were dropped."""
    layout = (torch.channels_last, torch.channels_last_3d)[axes - 2] if last else torch.contiguous_format
    x = torch.ones(2, 8, *(5, 6, 7)[:axes]).to(memory_format=layout)
    weight = torch.ones(4, 8, *(3, 2, 3)[:axes]).to(memory_format=layout)
    planned = pp.plan(x.shape, weight.shape, padding=((0, 2), (1, 0), (0, 1))[:axes], backend="torch",
                      strategy=strategy)
    for y in (planned(x, weight), planned(x.requires_grad_(), weight)):
        assert y.is_contiguous(memory_format=layout)
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    close(grad, torch.autograd.grad(pp.conv(x, weight, padding=planned.geometry.padding, backend="numpy"), x,
                                    torch.ones_like(y))[0], rtol=1e-5)


# ---------------------------------------------------------------- known limits of the carried engine


def compiled_transform(transform):
    return lambda f, a, b, compiled: compiled(functools.partial(TRANSFORMS[transform], f))(a, b)


def double_backward(f, a, b, compiled):
    y = compiled(f)(a.requires_grad_(), b.requires_grad_())
    (by_a,) = torch.autograd.grad(y.pow(2).sum(), a, create_graph=True)
    return torch.autograd.grad(by_a.pow(2).sum(), (a, b))


LIMITS = {
    **{f"{name}, fullgraph": compiled_transform(name) for name in ("grad", "jvp", "jacfwd", "hessian")},
    "double backward through aot_eager": double_backward,
}


@compiles
@pytest.mark.parametrize("limit", LIMITS)
def test_limits_of_compile_are_loud(limit):
    ours, reference, (a, b) = twins(CARRIED, CASES["2d_leftover"], "conv")
    compiled = functools.partial(torch.compile, fullgraph=True, backend="aot_eager")
    loud_or_right(lambda: LIMITS[limit](ours, a, b, compiled), LIMITS[limit](reference, a, b, lambda f: f))


@cases
@operators
def test_direct_call_within_a_transform_is_loud(case, operator):
    """An operator, or an exported program that holds it, knows nothing of torch.func."""
    first, second, *geometry = direct(case, operator)

    def loss(first, second):
        return registered(operator)(first, second, *geometry).pow(3).mean()

    expected = torch.autograd.grad(loss(first, second), (first, second))
    loud_or_right(lambda: func.grad(loss, BOTH)(first.detach(), second.detach()), expected)
