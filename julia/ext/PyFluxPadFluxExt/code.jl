# Julia code from Python: parsed with its place, evaluated in a module of its own.

# How Python's SkipConnection and Parallel join branches.
add(xs...) = .+(xs...)
multiply(xs...) = .*(xs...)
concatenate(xs...) = cat(xs...; dims=ndims(first(xs)) - 1)

"""Return a fresh module that has Flux and its parts."""
function fresh_module()
    home = Module(:PyFluxPadModel)
    for part in (Flux, NNlib, Zygote, Optimisers, Functors)
        Core.eval(home, Expr(:const, Expr(:(=), nameof(part), part)))
    end
    for f in (add, multiply, concatenate)
        Core.eval(home, Expr(:const, Expr(:(=), nameof(f), f)))
    end
    Core.eval(home, :(using .Flux))
    Core.eval(home, :(include(path) = Base.include($home, path)))
    return home
end

"""Return the value of Julia code; `file` is what messages call it."""
evaluate(code, file) = explained(() -> include_string(fresh_module(), code, file), file)

evaluate_file(path) = explained(() -> Base.include(fresh_module(), path), path)

function explained(run, file)
    try
        return run()
    catch error
        line = ""
        while error isa LoadError
            line, error = ":$(error.line)", error.error
        end
        error isa Refusal && rethrow()
        error isa InterruptException && rethrow()
        said = sprint(showerror, error)
        refuse("code", error isa Meta.ParseError ? said : "$file$line: $said")
    end
end

"""Return what a piece of code stands for as a model: what it is, or what the `load_model` of its module returns."""
function model_of(value, file)
    if value isa Module && isdefined(value, :load_model)
        value = explained(() -> Base.invokelatest(value.load_model), file)
    end
    callable = !(value isa Union{Module,Nothing}) && !isempty(methods(value))
    callable || refuse("code", file, ": its value is $(summary(value)), which cannot be called; end it with the model")
    return value
end
