# The layers of a small picture network, with what Python calls on it, so that a process compiles little before its
# first gradient. Kinds of layers are compiled, not the chain: see run.jl.

@setup_workload begin
    flat(xs...) = Int64[x for each in xs for x in each]
    # The arrays are alive: each is a variable until the end.
    described_to(x::Array{T}) where {T} =
        flat(findfirst(entry -> last(entry) === T, ELEMENTS), UInt(pointer(x)), ndims(x), reverse(size(x)))
    function ask(entry, integers, text="")
        buffer = zeros(UInt8, 1 << 14)
        GC.@preserve integers text buffer begin
            bytes = Base.cconvert(Cstring, text)
            GC.@preserve bytes begin
                count = entry(pointer(integers), Ptr{UInt8}(pointer(bytes)), pointer(buffer), length(buffer))
            end
        end
        count < 0 && error(String(buffer[1:(-count)]))
        return String(buffer[1:count])
    end
    number(answer) = parse(Int64, first(split(answer)))
    # Code from Python is evaluated in a module of its own, which cannot be made while this one is compiled.
    models = Any[
        Flux.Chain(
            Flux.Conv((3, 3), 1 => 2, Flux.relu; stride=(1, 1), pad=(1, 0, 0, 1), bias=true),
            Flux.MeanPool((2, 2); stride=(2, 2), pad=(0, 0, 0, 0)), Flux.Conv((3, 3), 2 => 2, tanh; groups=2),
            Flux.MaxPool((2, 2); stride=(2, 2), pad=(0, 0, 0, 0)), Flux.flatten,
            Flux.Dense(2 => 3, Flux.relu; bias=true), Flux.Dense(3 => 2, identity; bias=true),
        ),
        Flux.Chain(
            Flux.Conv((3, 3), 1 => 2, identity; stride=(1, 1), pad=(0, 0, 0, 0), bias=true),
            Flux.BatchNorm(2, Flux.relu; affine=true, track_stats=true, eps=1f-5, momentum=0.1f0),
            Flux.Conv((3, 3), 2 => 2, Flux.sigmoid),
            Flux.GlobalMeanPool(), Flux.flatten, Flux.Dense(2 => 2, tanh), Flux.Dense(2 => 2, Flux.sigmoid),
        ),
    ]
    @compile_workload begin
        entries()
        for (training, chain) in enumerate(models)
            x, y, dx = zeros(Float32, 12, 12, 1, 2), zeros(Float32, 2, 2), zeros(Float32, 12, 12, 1, 2)
            model = keep(Model(model_of(chain, "")))
            ask(entry_set_mode, flat(model, training - 1))
            ask(entry_describe, flat(model))
            ask(entry_structure, flat(model, 1, described_to(x)))
            ask(entry_fetch, flat(number(ask(entry_evaluate_model, flat(model, 1, described_to(x)))), described_to(y)))
            pulled = number(ask(entry_pullback, flat(model, 1, 1, described_to(x))))
            slopes = [zeros(eltype(p.array), size(p.array)) for p in KEPT[model].parameters]
            GC.@preserve x y dx slopes begin
                ask(entry_back, flat(model, pulled, 1, described_to(y), 1, 1, described_to(dx), map(described_to, slopes)...))
                trainer = keep(Trainer(KEPT[model], Optimisers.Adam()))
                for name in ("mse", "logitcrossentropy")
                    loss = number(ask(entry_make_loss, Int64[0], name))
                    ask(entry_save_state, flat(trainer))
                    ask(entry_step, flat(trainer, loss, 1, described_to(x), described_to(y)))
                end
                ask(entry_update, flat(trainer, pulled, 1, described_to(y)))
                ask(entry_restore_state, flat(trainer))
            end
        end
        explain(ErrorException("an error"))
        empty!(KEPT)
    end
end
