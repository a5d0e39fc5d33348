# What a model is made of, as JSON: a node per layer with its facts as Flux has them and shapes in Python's order.

json(x::AbstractString) = string('"', replace(x, '\\' => "\\\\", '"' => "\\\"", '\n' => "\\n", '\t' => "\\t"), '"')
json(x::Bool) = x ? "true" : "false"
json(x::Integer) = string(x)
json(x::AbstractFloat) = isfinite(x) ? string(Float64(x)) : "null"
json(::Nothing) = "null"
json(x::Union{Tuple,AbstractVector}) = string('[', join(map(json, x), ", "), ']')
json(x::NamedTuple) = string('{', join((string(json(string(key)), ": ", json(x[key])) for key in keys(x)), ", "), '}')

shapes(x::Tuple) = map(shapes, x)
shapes(x::AbstractArray) = reverse(size(x))
shapes(x) = ()

"""Run a layer and return its result and its node."""
function trace(layer, x)
    check(layer, x)
    return noted(layer, x, layer(x), [])
end

function trace(chain::Flux.Chain, x)
    start, nodes = x, []
    for (key, layer) in pairs(chain.layers)
        x, node = at(() -> trace(layer, x), :layers, key)
        push!(nodes, node)
    end
    return noted(chain, start, x, nodes)
end

function trace(skip::Flux.SkipConnection, x)
    inner, node = at(() -> trace(skip.layers, x), :layers)
    return noted(skip, x, skip.connection(inner, x), [node])
end

function trace(parallel::Flux.Parallel, x)
    taken_apart(parallel, x) || return noted(parallel, x, call(parallel, x), [])
    traced = [at(() -> trace(layer, part), :layers, key) for (key, layer, part) in branches(parallel, x)]
    return noted(parallel, x, parallel.connection(first.(traced)...), last.(traced))
end

noted(layer, x, y, nodes) = y, (;
    name=dotted(TRAIL), kind=kind(layer), facts=facts(layer), input=shapes(x), output=shapes(y), layers=nodes,
)

kind(layer) = string(nameof(typeof(layer)))
kind(f::Function) = string(nameof(f))

facts(layer) = (;)
facts(l::Flux.Conv) = (; l.stride, l.pad, l.dilation, l.groups, activation=kind(l.σ))
facts(l::Flux.CrossCor) = (; l.stride, l.pad, l.dilation, groups=1, activation=kind(l.σ))
facts(l::Flux.ConvTranspose) = (; l.stride, l.pad, l.dilation, l.groups, l.outpad, activation=kind(l.σ))
facts(l::Flux.Dense) = (; activation=kind(l.σ))
facts(l::Flux.Scale) = (; activation=kind(l.σ))
facts(l::Flux.BatchNorm) = (; epsilon=l.ϵ, momentum=l.momentum, l.affine, l.track_stats, activation=kind(l.λ))
facts(l::Flux.GroupNorm) = (; epsilon=l.ϵ, groups=l.G, l.affine, activation=kind(l.λ))
facts(l::Flux.LayerNorm) = (; epsilon=l.ϵ, axes=length(l.size), l.affine, activation=kind(l.λ))
facts(l::Union{Flux.MaxPool,Flux.MeanPool}) = (; kernel=l.k, l.pad, l.stride)
facts(l::Union{Flux.AdaptiveMaxPool,Flux.AdaptiveMeanPool}) = (; size=l.out)
facts(l::Flux.Upsample{mode}) where {mode} = (; mode=string(mode), factors(l.scale, l.size)...)
facts(l::Flux.PixelShuffle) = (; factor=l.r)
facts(l::Flux.SkipConnection) = (; connection=kind(l.connection))
facts(l::Flux.Parallel) = (; connection=kind(l.connection))

factors(scale, size) = (; scale=scale === nothing ? nothing : string(scale), size=size === nothing ? nothing : string(size))
