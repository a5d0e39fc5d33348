# Padding by a mode and pools: loops of our own. NNlib compiles its pools anew for every kernel, stride and padding, lets
# NaN lose a maximum, and its gradients count a window twice that reaches into both borders.

"""
Integers of a padding or a pool: planes (batch times channels), input and output sizes, width first.
"""
struct Planes
    count::Int
    input::NTuple{3,Int}
    output::NTuple{3,Int}
end

function Planes(integers::Ptr{Int64})
    at(place) = Int(unsafe_load(integers, place))
    return Planes(at(2), (at(5), at(4), at(3)), (at(8), at(7), at(6)))
end

"""Split the integer vectors of the three axes, which lie one after the other in Python's order, depth first."""
function split_axes(address::Ptr, lengths::NTuple{3,Int})
    width, height, depth = lengths
    all = array(Int64, address, (depth + height + width,))
    return view(all, (depth + height + 1):(depth + height + width)), view(all, (depth + 1):(depth + height)),
    view(all, 1:depth)
end

"""
`index` says for every cell of the result which input cell it shows, per axis and from 0; -1 shows `value`.
"""
function pad!(::Type{T}, integers, result, source, index, value) where {T}
    g = Planes(integers)
    y, x = array(T, result, (g.output..., g.count)), array(T, source, (g.input..., g.count))
    across, down, deep = split_axes(index, g.output)
    fill = unsafe_load(Ptr{T}(value))
    @inbounds for plane in 1:(g.count), k in eachindex(deep), j in eachindex(down)
        if deep[k] < 0 || down[j] < 0
            for i in eachindex(across)
                y[i, j, k, plane] = fill
            end
        else
            for i in eachindex(across)
                y[i, j, k, plane] = across[i] < 0 ? fill : x[across[i] + 1, down[j] + 1, deep[k] + 1, plane]
            end
        end
    end
    return nothing
end

"""The transpose of `pad!`: every cell is added to the one that it shows."""
function pad_transpose!(::Type{T}, integers, result, gradient, index) where {T}
    g = Planes(integers)
    dx, dy = array(T, result, (g.input..., g.count)), array(T, gradient, (g.output..., g.count))
    across, down, deep = split_axes(index, g.output)
    fill!(dx, zero(T))
    @inbounds for plane in 1:(g.count), k in eachindex(deep), j in eachindex(down)
        (deep[k] < 0 || down[j] < 0) && continue
        for i in eachindex(across)
            across[i] < 0 && continue
            dx[across[i] + 1, down[j] + 1, deep[k] + 1, plane] += dy[i, j, k, plane]
        end
    end
    return nothing
end

"""
The input cells of every window of one axis: output j reads `count[j]` cells from `start[j]` (from 0), `step` apart.
"""
struct Windows{V}
    start::V
    count::V
    step::Int
end

cells(w::Windows, j::Int) = @inbounds range(w.start[j] + 1; step=w.step, length=w.count[j])

function windows(integers::Ptr{Int64}, address::Ptr, output::NTuple{3,Int})
    starts, counts = split_axes(address, output), split_axes(address + 8 * sum(output), output)
    step(place) = Int(unsafe_load(integers, place))
    return Windows(starts[1], counts[1], step(11)), Windows(starts[2], counts[2], step(10)),
    Windows(starts[3], counts[3], step(9))
end

function pool_sum!(::Type{T}, integers, result, source, places) where {T}
    g = Planes(integers)
    y, x = array(T, result, (g.output..., g.count)), array(T, source, (g.input..., g.count))
    across, down, deep = windows(integers, places, g.output)
    @inbounds for plane in 1:(g.count), k in 1:g.output[3], j in 1:g.output[2], i in 1:g.output[1]
        total = zero(T)
        for d in cells(deep, k), h in cells(down, j), w in cells(across, i)
            total += x[w, h, d, plane]
        end
        y[i, j, k, plane] = total
    end
    return nothing
end

function pool_sum_transpose!(::Type{T}, integers, result, gradient, places) where {T}
    g = Planes(integers)
    dx, dy = array(T, result, (g.input..., g.count)), array(T, gradient, (g.output..., g.count))
    across, down, deep = windows(integers, places, g.output)
    fill!(dx, zero(T))
    @inbounds for plane in 1:(g.count), k in 1:g.output[3], j in 1:g.output[2], i in 1:g.output[1]
        share = dy[i, j, k, plane]
        for d in cells(deep, k), h in cells(down, j), w in cells(across, i)
            dx[w, h, d, plane] += share
        end
    end
    return nothing
end

"""
Maxima and their places, flat in the plane and from 0: the first of equals, the last NaN, -1 for a window without cells,
whose maximum is -Inf.
"""
function max_pool!(::Type{T}, integers, result, index, source, places) where {T<:Real}
    g = Planes(integers)
    y, x = array(T, result, (g.output..., g.count)), array(T, source, (g.input..., g.count))
    winners = array(Int64, index, (g.output..., g.count))
    across, down, deep = windows(integers, places, g.output)
    width, height, _ = g.input
    @inbounds for plane in 1:(g.count), k in 1:g.output[3], j in 1:g.output[2], i in 1:g.output[1]
        best, place = typemin(T), Int64(-1)
        for d in cells(deep, k), h in cells(down, j), w in cells(across, i)
            value = x[w, h, d, plane]
            if place < 0 || value > best || isnan(value)
                best, place = value, Int64((w - 1) + width * ((h - 1) + height * (d - 1)))
            end
        end
        y[i, j, k, plane], winners[i, j, k, plane] = best, place
    end
    return nothing
end

max_pool!(::Type{<:Complex}, arguments...) = throw(ArgumentError("complex numbers have no maximum"))

"""Send every gradient to the cell that won."""
function max_pool_transpose!(::Type{T}, integers, result, index, gradient) where {T}
    g = Planes(integers)
    dx, dy = array(T, result, (prod(g.input), g.count)), array(T, gradient, (prod(g.output), g.count))
    winners = array(Int64, index, (prod(g.output), g.count))
    fill!(dx, zero(T))
    @inbounds for plane in 1:(g.count), i in axes(dy, 1)
        winners[i, plane] < 0 || (dx[winners[i, plane] + 1, plane] += dy[i, plane])
    end
    return nothing
end
