# What is known of Flux's own layers before they run: an error then has a layer's name and Python's order of axes.

"""The keys on the way to the layer that runs; after an error, to the one that failed."""
const TRAIL = Any[]

function at(run::F, keys...) where {F}
    append!(TRAIL, keys)
    result = run()
    resize!(TRAIL, length(TRAIL) - length(keys))
    return result
end

function here(layer)
    name = string(nameof(typeof(layer)))
    return isempty(TRAIL) ? name : "$(dotted(TRAIL)) ($name)"
end

const Convolution = Union{Flux.Conv,Flux.ConvTranspose,Flux.CrossCor}
const Pool = Union{Flux.MaxPool,Flux.MeanPool,Flux.AdaptiveMaxPool,Flux.AdaptiveMeanPool}
const Norm = Union{Flux.BatchNorm,Flux.GroupNorm}

check(layer, x) = nothing

function check(layer::Convolution, x::AbstractArray)
    channels = channels_in(layer)
    fits = ndims(x) == ndims(layer.weight) && size(x, ndims(x) - 1) == channels
    fits || refuse_shape(layer, "(N, $channels, $(axes_text(ndims(layer.weight) - 2)))", x)
    check_type(layer, layer.weight, x)
end

function check(layer::Flux.Dense, x::AbstractArray)
    inputs = size(layer.weight, 2)
    ndims(x) > 0 && size(x, 1) == inputs || refuse_shape(layer, ndims(x) > 2 ? "(N, ..., $inputs)" : "(N, $inputs)", x)
    check_type(layer, layer.weight, x)
end

function check(layer::Norm, x::AbstractArray)
    ndims(x) > 1 && size(x, ndims(x) - 1) == layer.chs || refuse_shape(layer, "(N, $(layer.chs), ...)", x)
    layer.affine && check_type(layer, layer.β, x)
end

function check(layer::Flux.LayerNorm, x::AbstractArray)
    fits = ndims(x) >= length(layer.size) && size(x)[1:length(layer.size)] == layer.size
    fits || refuse_shape(layer, "(N, ..., $(join(reverse(layer.size), ", ")))", x)
end

function check(layer::Pool, x::AbstractArray)
    axes = layer isa Union{Flux.MaxPool,Flux.MeanPool} ? length(layer.k) : length(layer.out)
    ndims(x) == axes + 2 || refuse_shape(layer, "(N, C, $(axes_text(axes)))", x)
end

channels_in(layer::Flux.Conv) = size(layer.weight)[end - 1] * layer.groups
channels_in(layer::Flux.ConvTranspose) = size(layer.weight)[end]
channels_in(layer::Flux.CrossCor) = size(layer.weight)[end - 1]

axes_text(count) = count == 1 ? "L" : count == 2 ? "H, W" : count == 3 ? "D, H, W" : "..."
shape_text(x) = string("(", join(reverse(size(x)), ", "), ndims(x) == 1 ? ",)" : ")")

refuse_shape(layer, expected, x) =
    refuse("shape", here(layer), " takes an array ", expected, ", given is ", shape_text(x))

function check_type(model::Model, x)
    types = unique(eltype(p.array) for p in model.parameters if p.trained)
    (isempty(types) || !Optimisers.isnumeric(x) || eltype(x) in types) && return nothing
    refuse("type", "the model has parameters of ", join(map(element_name, types), ", "), ", given is an array of ",
        element_name(eltype(x)), ", which Flux may convert silently; convert it with astype(...)")
end

function check_type(layer, weight, x)
    eltype(x) === eltype(weight) && return nothing
    refuse("type", here(layer), " has parameters of ", element_name(eltype(weight)), ", given is an array of ",
        element_name(eltype(x)), ", which Flux would convert silently; convert it with astype(...)")
end
