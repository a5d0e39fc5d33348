# The convolution and its two transposes, on NNlib's kernels.

"""
Every integer of a convolution, as in Python's ConvGeometry, with the spatial axes in Julia's order: width first.
"""
struct ConvGeometry
    batch::Int
    channels::Int
    filters::Int
    groups::Int
    input::NTuple{3,Int}
    kernel::NTuple{3,Int}
    output::NTuple{3,Int}
    stride::NTuple{3,Int}
    dilation::NTuple{3,Int}
    padding::NTuple{6,Int}
    flip_kernel::Bool
end

function ConvGeometry(integers::Ptr{Int64})
    at(place) = Int(unsafe_load(integers, place))
    axes(place) = (at(place + 2), at(place + 1), at(place))
    padding = (at(25), at(26), at(23), at(24), at(21), at(22))
    return ConvGeometry(
        at(2), at(3), at(4), at(5), axes(6), axes(9), axes(12), axes(15), axes(18), padding, at(27) != 0
    )
end

x_size(g::ConvGeometry) = (g.input..., g.channels, g.batch)
w_size(g::ConvGeometry) = (g.kernel..., g.channels ÷ g.groups, g.filters)
y_size(g::ConvGeometry) = (g.output..., g.filters, g.batch)

# NNlib's flipkernel = true is the cross-correlation of Python's frameworks: it leaves the kernel as it lies.
function dims(g::ConvGeometry)
    return NNlib.DenseConvDims(
        x_size(g), w_size(g);
        stride=g.stride, padding=g.padding, dilation=g.dilation, groups=g.groups, flipkernel=(!g.flip_kernel),
    )
end

"""View the memory at an address as an array; Python keeps it alive until the call returns."""
array(::Type{T}, address::Ptr, size::NTuple{N,Int}) where {T,N} = unsafe_wrap(Array, Ptr{T}(address), size)

function conv!(::Type{T}, integers, y, x, w) where {T}
    g = ConvGeometry(integers)
    NNlib.conv!(array(T, y, y_size(g)), array(T, x, x_size(g)), array(T, w, w_size(g)), dims(g))
    return nothing
end

# NNlib's gradients conjugate the other operand; pyflux_pad's transposes do not, so it is conjugated once more.
# `conj` of a real array is that array itself.

function conv_input!(::Type{T}, integers, dx, dy, w) where {T}
    g = ConvGeometry(integers)
    NNlib.∇conv_data!(array(T, dx, x_size(g)), array(T, dy, y_size(g)), conj(array(T, w, w_size(g))), dims(g))
    return nothing
end

function conv_weight!(::Type{T}, integers, dw, x, dy) where {T}
    g = ConvGeometry(integers)
    NNlib.∇conv_filter!(array(T, dw, w_size(g)), conj(array(T, x, x_size(g))), array(T, dy, y_size(g)), dims(g))
    return nothing
end
