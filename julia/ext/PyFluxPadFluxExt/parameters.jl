# A model and its arrays: found once, named for Python, and compared with the model at every call.

"""What Python is told instead of a Julia error: a kind, which chooses the Python exception, and a text."""
struct Refusal <: Exception
    kind::String
    text::String
end

Base.showerror(io::IO, error::Refusal) = print(io, error.text)
refuse(kind, text...) = throw(Refusal(kind, string(text...)))

"""NumPy's names of the element types that cross the border, and Julia's; a number is a place in it, from 1."""
const ELEMENTS = (
    ("float32", Float32), ("float64", Float64), ("complex64", ComplexF32), ("complex128", ComplexF64),
    ("float16", Float16), ("int64", Int64), ("int32", Int32), ("int16", Int16), ("int8", Int8),
    ("uint64", UInt64), ("uint32", UInt32), ("uint16", UInt16), ("uint8", UInt8), ("bool", Bool),
)

function element_name(T)
    place = findfirst(entry -> last(entry) === T, ELEMENTS)
    place === nothing && refuse("type", "Julia has an array of $T there, which NumPy has no dtype for")
    return first(ELEMENTS[place])
end

"""One array of a model; `pinned` shares its memory, so that it is neither resized nor freed while Python looks at it."""
struct Parameter
    name::String
    path::Vector{Any}
    array::Array
    pinned::Array
    trained::Bool
end

Parameter(name, path, array, trained) = Parameter(name, path, array, reshape(array, (size(array)..., 1)), trained)

struct Model
    object::Any
    parameters::Vector{Parameter}
    """Further places of arrays that the model has twice."""
    tied::Vector{Pair{Vector{Any},Int}}
end

function Model(object)
    parameters, tied = arrays_of(object)
    Flux.testmode!(object)
    return Model(object, parameters, tied)
end

const GREEK = Dict(:β => "beta", :γ => "gamma", :μ => "mean", :σ² => "variance")

"""What a path is for Python: places in tuples and vectors count from 0."""
dotted(path) = join((key isa Integer ? string(key - 1) : get(() -> string(key), GREEK, key) for key in path), '.')

# What has no parameters but may have fields.
const Opaque = Union{Number,AbstractString,Symbol,Module,Type,AbstractRNG,AbstractRange,IO,Nothing,Missing}

function arrays_of(object)
    parameters, tied, seen = Parameter[], Pair{Vector{Any},Int}[], IdDict{Any,Int}()
    visit(object, Any[], true) do array, path, trained
        place = get(seen, array, 0)
        place > 0 && return push!(tied, path => place)
        push!(parameters, Parameter(dotted(path), path, array, trained && Optimisers.isnumeric(array)))
        seen[array] = length(parameters)
    end
    return parameters, tied
end

"""Call `found(array, path, trained)` for every array of a model, in its own order."""
function visit(found::F, x, path, trained, above=()) where {F}
    if x isa AbstractArray{<:Number} && !(x isa AbstractRange)
        x isa Array && return found(x, path, trained)
        Optimisers.isnumeric(x) || return nothing
        refuse("type", dotted(path), " is a $(nameof(typeof(x))) of $(eltype(x)), not an Array with memory of its own; ",
            "collect it in Julia")
    end
    (x isa Opaque || any(other -> other === x, above)) && return nothing
    children = Functors.children(x)
    isempty(children) && return nothing
    learning = trained ? keys(Optimisers.trainable(x)) : ()
    for key in keys(children)
        child = children[key]
        (child isa Opaque || child isa Function && sizeof(child) == 0) && continue
        visit(found, child, Any[path; key], trained && key in learning, ismutable(x) ? (above..., x) : above)
    end
    return nothing
end

"""Refuse to go on with a model whose arrays are not those that Python looks at."""
function check_unchanged(model::Model)
    place, ties = 0, 0
    known = model.parameters
    visit(model.object, Any[], true) do array, path, trained
        if place < length(known) && array === known[place + 1].array
            place += 1
            pointer(array) == pointer(known[place].pinned) || changed(path)
        else
            ties += 1
            tie = get(model.tied, ties, nothing)
            (tie === nothing || known[last(tie)].array !== array) && changed(path)
        end
    end
    place == length(known) && ties == length(model.tied) || changed(known[min(place + 1, end)].path)
    return nothing
end

changed(path) = refuse("changed", "the model was changed in Julia: ", dotted(path), " is another array than the one that ",
    "parameters() shows; make a new FluxModel of it, and take its parameters anew")
