# Every entry point, called by its address as Python calls it, against loops written out here.
# Run with `julia --project=julia julia/test/runtests.jl`; the project needs NNlib and PrecompileTools.

using PyFluxPad
using Random: Random
using Test

Random.seed!(1)
const ENTRY = Dict(zip([first.(PyFluxPad.KERNELS)...; :message; :facts; :flux], PyFluxPad.entry_points()))
const CODE = Dict(T => i for (i, T) in enumerate(PyFluxPad.TYPES))

call(name, integers, a, b, c) = ccall(
    Ptr{Cvoid}(ENTRY[name]), Int32, (Ptr{Int64}, Ptr{Cvoid}, Ptr{Cvoid}, Ptr{Cvoid}), integers, a, b, c
)
call(name, integers, a, b, c, d) = ccall(
    Ptr{Cvoid}(ENTRY[name]), Int32, (Ptr{Int64}, Ptr{Cvoid}, Ptr{Cvoid}, Ptr{Cvoid}, Ptr{Cvoid}), integers, a, b, c, d
)

# Arrays here have Julia's axes: width, height, depth, channels, batch; `low[1]` is the low pad of the width.
struct Case
    input::NTuple{3,Int}
    kernel::NTuple{3,Int}
    stride::NTuple{3,Int}
    dilation::NTuple{3,Int}
    low::NTuple{3,Int}
    high::NTuple{3,Int}
    batch::Int
    channels::Int
    filters::Int
    groups::Int
    flip::Bool
end

outputs(c::Case) = ntuple(a -> (c.input[a] + c.low[a] + c.high[a] - c.dilation[a] * (c.kernel[a] - 1) - 1) ÷ c.stride[a] + 1, 3)

function integers(c::Case, T)
    back(t) = reverse(t)
    pads = [p for a in 3:-1:1 for p in (c.low[a], c.high[a])]
    return Int64[
        CODE[T], c.batch, c.channels, c.filters, c.groups, back(c.input)..., back(c.kernel)..., back(outputs(c))...,
        back(c.stride)..., back(c.dilation)..., pads..., c.flip,
    ]
end

"""Visit every product of a convolution: indices of y, x and w."""
function visit(f, c::Case)
    per_in, per_out = c.channels ÷ c.groups, c.filters ÷ c.groups
    for n in 1:(c.batch), o in 1:(c.filters), i in 1:per_in, at in CartesianIndices(outputs(c)), tap in CartesianIndices(c.kernel)
        place = ntuple(a -> (at[a] - 1) * c.stride[a] + (tap[a] - 1) * c.dilation[a] - c.low[a] + 1, 3)
        all(1 .<= place .<= c.input) || continue
        used = c.flip ? CartesianIndex(c.kernel .- Tuple(tap) .+ 1) : tap
        f((Tuple(at)..., o, n), (place..., ((o - 1) ÷ per_out) * per_in + i, n), (Tuple(used)..., i, o))
    end
end

const CASES = [
    Case((5, 4, 1), (3, 2, 1), (1, 2, 1), (1, 1, 1), (2, 0, 0), (1, 3, 0), 2, 2, 3, 1, false),
    Case((6, 5, 4), (2, 3, 2), (2, 1, 3), (2, 1, 1), (0, 1, 2), (3, 0, 1), 2, 4, 6, 2, true),
    Case((7, 1, 1), (4, 1, 1), (3, 1, 1), (1, 1, 1), (5, 0, 0), (0, 0, 0), 1, 3, 3, 3, false),
    Case((9, 6, 1), (2, 2, 1), (1, 2, 1), (3, 2, 1), (-1, 2, 0), (2, -2, 0), 3, 2, 4, 2, true),
    Case((1, 1, 1), (3, 3, 1), (1, 1, 1), (1, 1, 1), (1, 2, 0), (2, 1, 0), 2, 1, 2, 1, false),
]

close(a, b) = isapprox(a, b; rtol=sqrt(eps(real(eltype(a)))) / 10, atol=sqrt(eps(real(eltype(a)))) / 10)

@testset "convolution, $T, case $i" for T in PyFluxPad.TYPES, (i, c) in enumerate(CASES)
    x = randn(T, c.input..., c.channels, c.batch)
    w = randn(T, c.kernel..., c.channels ÷ c.groups, c.filters)
    dy = randn(T, outputs(c)..., c.filters, c.batch)
    y, dx, dw = zero(dy), zero(x), zero(w)
    visit(c) do at, from, tap
        y[at...] += x[from...] * w[tap...]
        dx[from...] += dy[at...] * w[tap...]      # transposes: nothing is conjugated
        dw[tap...] += dy[at...] * x[from...]
    end
    numbers, kept = integers(c, T), (copy(x), copy(w), copy(dy))
    result = fill!(similar(y), T(NaN))
    @test call(:conv, numbers, result, x, w) == PyFluxPad.DONE
    @test close(result, y)
    result = fill!(similar(x), T(NaN))
    @test call(:conv_input, numbers, result, dy, w) == PyFluxPad.DONE
    @test close(result, dx)
    result = fill!(similar(w), T(NaN))
    @test call(:conv_weight, numbers, result, x, dy) == PyFluxPad.DONE
    @test close(result, dw)
    @test (x, w, dy) == kept
end

planes(T, count, input, output, step=(1, 1, 1)) =
    Int64[CODE[T], count, reverse(input)..., reverse(output)..., reverse(step)...]

@testset "padding by index, $T" for T in PyFluxPad.TYPES
    input, output, count = (3, 2, 2), (6, 4, 2), 3
    index = ([-1, 2, 0, 1, 2, 1], [1, 0, 1, -1], [1, 0])    # width, height, depth
    flat = Int64[index[3]; index[2]; index[1]]
    x, dy, value = randn(T, input..., count), randn(T, output..., count), [T(7)]
    y, dx = fill(value[1], output..., count), zero(x)
    for p in 1:count, k in 1:2, j in 1:4, i in 1:6
        from = (index[1][i], index[2][j], index[3][k])
        any(<(0), from) && continue
        y[i, j, k, p] = x[(from .+ 1)..., p]
        dx[(from .+ 1)..., p] += dy[i, j, k, p]
    end
    numbers = planes(T, count, input, output)
    result = fill!(similar(y), T(NaN))
    @test call(:pad, numbers, result, x, flat, value) == PyFluxPad.DONE
    @test result == y
    result = fill!(similar(x), T(NaN))
    @test call(:pad_transpose, numbers, result, dy, flat) == PyFluxPad.DONE
    @test close(result, dx)
end

@testset "pools, $T" for T in PyFluxPad.TYPES
    input, output, count, step = (5, 4, 1), (3, 2, 1), 2, (2, 1, 1)
    starts, counts = ([0, 1, 4], [2, 0], [0]), ([2, 2, 1], [2, 0], [1])
    flat = Int64[starts[3]; starts[2]; starts[1]; counts[3]; counts[2]; counts[1]]
    x, dy = randn(T, input..., count), randn(T, output..., count)
    T <: Real && (x[1, 3, 1, 1] = T(NaN))                     # read by the window (1, 1)
    T <: Real && (x[5, 4, 1, 2] = x[5, 3, 1, 2] = T(9))       # a tie: the first one in the scan wins
    sums, dx = zero(dy), zero(x)
    best, won = fill(real(T)(-Inf), output..., count), fill(-1, output..., count)
    for p in 1:count, j in 1:2, i in 1:3, n in 0:(counts[2][j] - 1), m in 0:(counts[1][i] - 1)
        from = (starts[1][i] + 2m + 1, starts[2][j] + n + 1, 1, p)
        sums[i, j, 1, p] += x[from...]
        dx[from...] += dy[i, j, 1, p]
        T <: Real || continue
        if won[i, j, 1, p] < 0 || x[from...] > best[i, j, 1, p] || isnan(x[from...])
            best[i, j, 1, p], won[i, j, 1, p] = x[from...], (from[1] - 1) + 5 * (from[2] - 1)
        end
    end
    numbers = planes(T, count, input, output, step)
    result = fill!(similar(sums), T(7))
    @test call(:pool_sum, numbers, result, x, flat) == PyFluxPad.DONE
    @test isequal(isnan.(result), isnan.(sums)) && close(filter(!isnan, result), filter(!isnan, sums))
    result = fill!(similar(x), T(NaN))
    @test call(:pool_sum_transpose, numbers, result, dy, flat) == PyFluxPad.DONE
    @test close(result, dx)
    if T <: Real
        result, places = fill!(similar(sums), T(7)), zeros(Int64, output..., count)
        @test call(:max_pool, numbers, result, places, x, flat) == PyFluxPad.DONE
        @test isequal(result, best) && places == won
        @test isnan(result[1, 1, 1, 1]) && places[3, 1, 1, 2] == 4 + 5 * 2
        @test all(==(-Inf), result[:, 2, :, :]) && all(==(-1), places[:, 2, :, :])
        back = zero(x)
        for (at, place) in pairs(places)
            place < 0 || (back[place + 1 + 20 * (at[4] - 1)] += dy[at])
        end
        result = fill!(similar(x), T(NaN))
        @test call(:max_pool_transpose, numbers, result, places, dy) == PyFluxPad.DONE
        @test close(result, back)
    else
        @test call(:max_pool, numbers, sums, zeros(Int64, 12), x, flat) == PyFluxPad.FAILED
    end
end

function text(name)
    buffer = zeros(UInt8, 400)
    count = ccall(Ptr{Cvoid}(ENTRY[name]), Int64, (Ptr{UInt8}, Int64), buffer, length(buffer))
    return String(buffer[1:count])
end

@testset "what is not expected comes back as a status and a message" begin
    c = CASES[1]
    numbers = integers(c, Float32)
    numbers[1] = 9
    x = zeros(Float32, 200)
    @test call(:conv, numbers, x, x, x) == PyFluxPad.FAILED
    @test occursin("element type number 9", text(:message))
    numbers[1], numbers[12] = 1, numbers[12] + 1             # an output size that the geometry does not give
    @test call(:conv, numbers, x, x, x) == PyFluxPad.FAILED
    @test occursin("size", text(:message))
end

@testset "facts" begin
    julia, nnlib, _, _, threads, blas = split(text(:facts), '\n')
    @test VersionNumber(julia) == VERSION && VersionNumber(nnlib) >= v"0.9.30"
    @test parse(Int, threads) == Threads.nthreads() && occursin("blas", blas)
end
