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
    "interpolated": """\
# Linear interpolation along a dimension at places on it that are counted from 0; beyond the ends it is constant.
function interpolated(x, places, dim)
    last = size(x, dim) - 1
    low = clamp.(floor.(Int, places), 0, last)
    along = ntuple(d -> d == dim ? length(places) : 1, ndims(x))
    share = reshape(eltype(x).(clamp.(places .- low, 0, 1)), along)
    at(cells) = x[ntuple(d -> d == dim ? cells .+ 1 : Colon(), ndims(x))...]
    (1 .- share) .* at(low) .+ share .* at(min.(low .+ 1, last))
end""",
    "over_time": """\
# Drive a cell over x (input, batch, time) in every direction, from states (hidden, batch, directions) or zeros. Returns
# its first state at every time, (hidden, batch, directions, time), and the last of every state. A sequence of the batch
# that has ended keeps its states and gives zeros.
function over_time(cell, x, r, states, lengths, backwards)
    lengths === nothing && (lengths = fill(size(x, 3), size(x, 2)))
    zero_state = Flux.zeros_like(x, (size(r, 1), size(x, 2), size(r, 3)))
    states = map(state -> state === nothing ? zero_state : state, states)
    ys, finals = [], []
    for (d, back) in enumerate(backwards)
        now = map(state -> state[:, :, d], states)
        y = []
        for t in (back ? reverse(axes(x, 3)) : axes(x, 3))
            new = cell(d, x[:, :, t], now...)
            alive = reshape(lengths .>= t, 1, :)
            y = vcat(y, [ifelse.(alive, new[1], zero(new[1]))])
            now = map((a, b) -> ifelse.(alive, a, b), new, now)
        end
        ys = vcat(ys, [stack(back ? reverse(y) : y)])
        finals = vcat(finals, [now])
    end
    permutedims(stack(ys), (1, 2, 4, 3)), map(part -> stack([now[part] for now in finals]), 1:length(states))...
end

# What the gates of a direction get from an input or a state, and the rows of one of several gates.
gates(w, x, d) = w[:, :, d]' * x
gate(total, number, hidden) = total[(number - 1) * hidden + 1:number * hidden, :]
biases(b, part, d) = b === nothing ? false : b[part, d]""",
    "lstm": """\
# ONNX's LSTM: the gates are input, output, forget and cell; the peepholes are those of the first three.
function lstm(x, w, r, b; h = nothing, c = nothing, peepholes = nothing, lengths = nothing, backwards = (false,),
              functions = map(_ -> (sigmoid, tanh, tanh), backwards), clip = typemax(eltype(x)), coupled = false)
    n = size(r, 1)
    peep(number, c, d) = peepholes === nothing ? false : peepholes[(number - 1) * n + 1:number * n, d] .* c
    function cell(d, x, h, c)
        f, g, k = functions[d]
        total = gates(w, x, d) .+ biases(b, 1:4n, d) .+ gates(r, h, d) .+ biases(b, 4n + 1:8n, d)
        total = clamp.(total, -clip, clip)
        i = f.(gate(total, 1, n) .+ peep(1, c, d))
        forget = coupled ? 1 .- i : f.(gate(total, 3, n) .+ peep(3, c, d))
        c = forget .* c .+ i .* g.(gate(total, 4, n))
        o = f.(gate(total, 2, n) .+ peep(2, c, d))
        o .* k.(c), c
    end
    over_time(cell, x, r, (h, c), lengths, backwards)
end""",
    "gru": """\
# ONNX's GRU: the gates are update, reset and new; `reset_after` is how torch and cuDNN reset.
function gru(x, w, r, b; h = nothing, lengths = nothing, backwards = (false,),
             functions = map(_ -> (sigmoid, tanh), backwards), clip = typemax(eltype(x)), reset_after = false)
    n = size(r, 1)
    function cell(d, x, h)
        f, g = functions[d]
        from_x = gates(w, x, d) .+ biases(b, 1:3n, d)
        from_h = gates(r[:, 1:2n, :], h, d) .+ biases(b, 3n + 1:5n, d)
        update, reset = (f.(clamp.(gate(from_x, k, n) .+ gate(from_h, k, n), -clip, clip)) for k in 1:2)
        again(h) = gates(r[:, 2n + 1:3n, :], h, d) .+ biases(b, 5n + 1:6n, d)
        new = gate(from_x, 3, n) .+ (reset_after ? reset .* again(h) : again(reset .* h))
        new = g.(clamp.(new, -clip, clip))
        ((1 .- update) .* new .+ update .* h,)
    end
    over_time(cell, x, r, (h,), lengths, backwards)
end""",
    "erf": """\
# The error function of the C library of Julia.
erf(x::Float32) = ccall((:erff, Base.Math.libm), Float32, (Float32,), x)
erf(x::Float64) = ccall((:erf, Base.Math.libm), Float64, (Float64,), x)""",
}
"""The helpers by name."""

NEEDS = {"product": ("expanded",), "lstm": ("over_time",), "gru": ("over_time",)}
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
