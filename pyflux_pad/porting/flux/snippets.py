"""Julia helpers that a written model may need; only those that it uses are written into it."""

from __future__ import annotations

HELPERS = {
    "expanded": """\
# Repeat x along its dimensions of size 1 until it has the given size.
function expanded(x, dims)
    x = reshape(x, ntuple(d -> size(x, d), length(dims)))
    repeat(x; outer = dims .÷ size(x))
end""",
    "product": """\
# The product of matrices in the first two dimensions, as NumPy's matmul of the arrays with their axes reversed.
function product(y, x)
    rest = Base.Broadcast.broadcast_shape(size(x)[3:end], size(y)[3:end])
    stacked(a) = reshape(expanded(a, (size(a, 1), size(a, 2), rest...)), size(a, 1), size(a, 2), :)
    xy = NNlib.batched_mul(stacked(y), stacked(x))
    reshape(xy, size(xy, 1), size(xy, 2), rest...)
end""",
    "normalised": """\
# x with mean 0 and variance 1 over some dimensions; ϵ is added to the variance, under the root.
function normalised(x, dims, ϵ)
    centred = x .- mean(x; dims)
    centred ./ sqrt.(mean(abs2, centred; dims) .+ ϵ)
end""",
    "response": """\
# Local response normalisation over `size` neighbouring channels, zeros beyond the ends.
function response(x, window, pad, alpha, beta, k)
    channels = size(x, ndims(x) - 1)
    columns = reshape(abs2.(x), :, channels, 1, size(x, ndims(x)))
    means = NNlib.meanpool(columns, (1, window); pad = (0, 0, pad...), stride = 1)
    x ./ (k .+ alpha .* reshape(means, size(x))) .^ beta
end""",
    "taken": """\
# Select along a dimension by integers counted from 0, negative ones from the end; they may have any shape.
function taken(x, index, dim)
    rows = vec(mod.(index, size(x, dim))) .+ 1
    y = x[ntuple(d -> d == dim ? rows : Colon(), ndims(x))...]
    reshape(y, size(x)[1:(dim - 1)]..., size(index)..., size(x)[(dim + 1):end]...)
end""",
    "erf": """\
# The error function of the C library of Julia.
erf(x::Float32) = ccall((:erff, Base.Math.libm), Float32, (Float32,), x)
erf(x::Float64) = ccall((:erf, Base.Math.libm), Float64, (Float64,), x)""",
}
"""The helpers by name."""

NEEDS = {"product": ("expanded",)}
"""The helpers that a helper calls."""

MODEL = """\
# {title}, written by pyflux_pad for Flux.
#
#     include("model.jl")
#     model = Ported.load_model()
#     {call}
#
# Arrays have their axes in the reverse order of NumPy, torch and ONNX, (W, H, C, N) for (N, C, H, W): the same bytes.
# Kernels are stored turned by 180 degrees, because Flux.Conv is a true convolution. The comments have the shapes as
# (N, C, H, W), and the pads as one pair (low, high) per axis in that order.
#
{inputs}
{outputs}
module Ported

using Flux
using Flux: NNlib
using Statistics: mean

export load_model

# The fields have no types on purpose: with them, hundreds of layers take minutes to compile.
struct Network
{fields}
end

{declaration}

# Return a function that reads an array from a safetensors file: element type, place of its first byte, size.
# The file is little-endian, as every machine that Julia runs on.
function reader(io)
    start = 8 + read(seekstart(io), UInt64)
    array(T, place, dims) = read!(seek(io, start + place), Array{{T}}(undef, dims))
end

\"\"\"
    load_model(path = joinpath(@__DIR__, "weights.safetensors"))

Return the model with the weights in the file, which must be the one that was written with this code.
\"\"\"
function load_model(path = joinpath(@__DIR__, "weights.safetensors"))
    filesize(path) == {filesize} || error("$path is not the file of weights that this model was written with")
    open(path) do io
        array = reader(io)
{loads}
        Network({arguments})
    end
end
{helpers}
function (m::Network)({parameters})
{body}
    return {results}
end

end
"""

PROJECT = """\
[deps]
Flux = "587475ba-b771-5e3f-ad9e-33799f191a9c"
Statistics = "10745b16-79ce-11e8-11f9-7d13ad32a3b2"

[compat]
Flux = "0.16"
julia = "1.10"
"""

CHECK = """\
# Run the model on stored inputs and compare with stored outputs: julia --project check.jl
# The difference may be {limit} of the largest value of an output; the exit status is 1 if one is larger.
include(joinpath(@__DIR__, "model.jl"))

function check()
    model = Ported.load_model()
    inputs, expected = open(joinpath(@__DIR__, "check.safetensors")) do io
        array = Ported.reader(io)
        ({inputs}), ({outputs})
    end
    found = model(inputs...)
    found = found isa Tuple ? found : (found,)
    return all([agree(triple...) for triple in zip(({names}), found, expected)])
end

function agree(name, y, expected)
    if size(y) != size(expected)
        println("$name: size $(size(y)), expected $(size(expected))")
        return false
    end
    apart = map(Float64.(y), Float64.(expected)) do a, b
        isequal(a, b) || a == b ? 0.0 : isfinite(a - b) ? abs(a - b) : Inf
    end
    difference, largest = maximum(apart; init = 0.0), maximum(filter(isfinite, abs.(Float64.(expected))); init = 0.0)
    passed = difference <= {limit} * largest
    println("$name: largest difference $difference, largest value $largest, ", passed ? "right" : "MISMATCH")
    return passed
end

abspath(PROGRAM_FILE) == @__FILE__() && exit(check() ? 0 : 1)
"""
