# Running a model and differentiating it. Chain, SkipConnection and Parallel are gone through layer by layer, which is
# what Flux and Zygote do with them too; what is compiled then belongs to a kind of layer, not to one model.

call(layer, x) = layer(x)
spread(layer, xs) = layer(xs...)

"""Return the value of a model for a tuple of inputs."""
run(model, xs::Tuple) = length(xs) == 1 ? forward(model, only(xs)) : several(forward, spread, model, xs)

"""
Return the value and a function from its cotangent to those of the model and of the inputs. Where the latter are not
`wanted` the first layer does not compute them, which is a good part of a step of training.
"""
function differentiate(model, xs::Tuple, wanted::Bool)
    if length(xs) == 1
        y, back = pull(model, only(xs), wanted)
        return y, dy -> (((dm, dx),) = (back(dy),); (dm, (dx,)))
    end
    return several((m, x) -> pull(m, x, true), (m, x) -> leaf(spread, m, x, true), model, xs)
end

# Flux hands several inputs to a Chain's first layer as a tuple, and to everything else as arguments.
several(inside, otherwise, model::Union{Flux.Chain,Flux.Parallel}, xs) = inside(model, xs)
several(inside, otherwise, model, xs) = otherwise(model, xs)

function forward(layer, x)
    check(layer, x)
    return layer(x)
end

function forward(chain::Flux.Chain, x)
    for (key, layer) in pairs(chain.layers)
        x = at(() -> forward(layer, x), :layers, key)
    end
    return x
end

forward(skip::Flux.SkipConnection, x) = skip.connection(at(() -> forward(skip.layers, x), :layers), x)

function forward(parallel::Flux.Parallel, x)
    taken_apart(parallel, x) || return call(parallel, x)
    ys = [at(() -> forward(layer, part), :layers, key) for (key, layer, part) in branches(parallel, x)]
    return parallel.connection(ys...)
end

"""Say whether every branch of a Parallel has an input; if not, Flux says what is the matter."""
taken_apart(parallel, x) = length(parallel.layers) > 1 && (!(x isa Tuple) || length(x) == length(parallel.layers))
branches(parallel, x) = zip(keys(parallel.layers), values(parallel.layers), x isa Tuple ? x : Iterators.repeated(x))

function pull(layer, x, wanted)
    check(layer, x)
    return leaf(call, layer, x, wanted)
end

# Zygote adds the cotangents of mutable layers up in its cache, over all calls of a pullback too; each starts anew here.
function leaf(call::F, layer, x, wanted) where {F}
    context = Zygote.Context()
    if wanted
        y, back = Zygote.pullback(call, context, layer, x)
    else
        y, back = Zygote.pullback(m -> call(m, x), context, layer)
    end
    return y, function (dy)
        context.cache = nothing
        cotangents = back(dy)
        return plain(first(cotangents)), wanted ? last(cotangents) : nothing
    end
end

# Zygote keeps the cotangent of a mutable layer in a reference.
plain(cotangent) = cotangent
plain(cotangent::Ref) = cotangent[]

function pull(chain::Flux.Chain, x, wanted)
    backs = Any[]
    for (key, layer) in pairs(chain.layers)
        x, back = at(() -> pull(layer, x, wanted || !isempty(backs)), :layers, key)
        push!(backs, back)
    end
    return x, function (dx)
        layers = Vector{Any}(nothing, length(backs))
        for place in reverse(eachindex(backs))
            layers[place], dx = further(backs[place], dx)
        end
        return (layers=alike(chain.layers, layers),), dx
    end
end

further(back, dy) = dy === nothing ? (nothing, nothing) : back(dy)

alike(::Tuple, layers) = Tuple(layers)
alike(::NamedTuple{names}, layers) where {names} = NamedTuple{names}(Tuple(layers))
alike(::AbstractVector, layers) = layers

join_two(connection, y, x) = connection(y, x)

function pull(skip::Flux.SkipConnection, x, wanted)
    inner, back = at(() -> pull(skip.layers, x, wanted), :layers)
    y, join = Zygote.pullback(join_two, skip.connection, inner, x)
    return y, function (dy)
        connection, dinner, direct = join(dy)
        layers, dx = further(back, dinner)
        return (; layers, connection=plain(connection)), Zygote.accum(direct, dx)
    end
end

function pull(parallel::Flux.Parallel, x, wanted)
    taken_apart(parallel, x) || return leaf(call, parallel, x, wanted)
    pulled = [at(() -> pull(layer, part, wanted), :layers, key) for (key, layer, part) in branches(parallel, x)]
    y, join = Zygote.pullback(spread, parallel.connection, Tuple(first.(pulled)))
    return y, function (dy)
        connection, dys = join(dy)
        both = [further(last(each), dys === nothing ? nothing : dys[place]) for (place, each) in enumerate(pulled)]
        dxs = last.(both)
        dx = x isa Tuple ? Tuple(dxs) : reduce(Zygote.accum, dxs)
        return (connection=plain(connection), layers=alike(parallel.layers, first.(both))), dx
    end
end

"""Return the cotangent at a path; nothing where the model does not depend on it."""
function cotangent_at(cotangent, path)
    for key in path
        cotangent = plain(cotangent)
        cotangent === nothing && return nothing
        cotangent = cotangent isa NamedTuple ? get(cotangent, key, nothing) : cotangent[key]
    end
    return plain(cotangent)
end

"""Return the cotangent of every array of a model, summed over its places: of statistics too, which are not trained."""
function gradients(model::Model, cotangent)
    found = Any[cotangent_at(cotangent, p.path) for p in model.parameters]
    for (path, place) in model.tied
        found[place] = Zygote.accum(found[place], cotangent_at(cotangent, path))
    end
    return found
end

"""A model whose value a GPU computes: inputs are copied there and results back. Its arrays are not Python's to see."""
struct OnDevice{M}
    model::M
end

Functors.@leaf OnDevice
(on::OnDevice)(xs...) = Flux.cpu(on.model(map(Flux.gpu, xs)...))
Flux.testmode!(on::OnDevice, mode) = (Flux.testmode!(on.model, mode); on)
