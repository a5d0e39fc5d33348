# The C functions that Python calls. All are alike: integers, a text, and a buffer for the answer, whose length is
# returned; a negative length is that of an error, "kind\ntext".

"""The answer of the last call, for a caller whose buffer was too short; one call at a time, Python holds a lock."""
const ANSWER = Ref("")

"""Models, results, pullbacks, optimisers and losses by number, until Python releases them."""
const KEPT = Dict{Int,Any}()
const COUNT = Ref(0)

keep(x) = (KEPT[COUNT[] += 1] = x; COUNT[])

"""Integers, read one after the other."""
mutable struct Reader
    next::Ptr{Int64}
end

function read_one(r::Reader)
    value = unsafe_load(r.next)
    r.next += sizeof(Int64)
    return Int(value)
end

kept(r::Reader) = KEPT[read_one(r)]

function kept_model(r::Reader)
    model = kept(r)::Model
    check_unchanged(model)
    return model
end

"""View the memory of Python's that the next integers describe: element type, address, number of axes, sizes."""
function view_of(r::Reader)
    T, address, count = last(ELEMENTS[read_one(r)]), read_one(r), read_one(r)
    size = ntuple(_ -> read_one(r), count)
    return unsafe_wrap(Array, Ptr{T}(address), reverse(size))
end

copies(r::Reader) = ntuple(_ -> copy(view_of(r)), read_one(r))

"""Return copies of the next arrays for a model, whose dtype they must have; Flux's own layers see to it themselves."""
function inputs(r::Reader, model)
    xs = copies(r)
    known = Union{Flux.Chain,Flux.SkipConnection,Flux.Parallel,Convolution,Norm,Flux.Dense}
    model.object isa known || foreach(x -> check_type(model, x), xs)
    return xs
end

function store(r::Reader, value)
    target = view_of(r)
    value === nothing ? fill!(target, zero(eltype(target))) : copyto!(target, value)
    return nothing
end

arrays(y::Tuple) = map(arrays, y)
arrays(y::Array) = y
arrays(y::AbstractArray) = collect(y)
arrays(y::Number) = fill(y)
arrays(y) = refuse("type", "the model returned $(summary(y)); FluxModel takes arrays and tuples of arrays")

described(x::Array) = string(element_name(eltype(x)), ' ', join(reverse(size(x)), ' '))
listed(y) = y isa Tuple ? y : (y,)

# ----------------------------------------------------------------------------------------------------------- operations

make(r, text) = string(keep(Base.invokelatest(Model, model_of(evaluate(text, "model"), "model"))))
make_from_file(r, text) = string(keep(Base.invokelatest(Model, model_of(evaluate_file(text), text))))

function release(r, _)
    for _ in 1:read_one(r)
        delete!(KEPT, read_one(r))
    end
    return ""
end

function describe(r, _)
    model = kept_model(r)
    return join((
        string(p.name, ' ', Int(p.trained), ' ', UInt(pointer(p.array)), ' ', described(p.array))
        for p in model.parameters
    ), '\n')
end

function set_mode(r, _)
    Flux.testmode!(kept_model(r).object, read_one(r) == 0)
    return ""
end

function evaluate_model(r, _)
    model = kept_model(r)
    y = arrays(run(model.object, inputs(r, model)))
    return result(y, (listed(y), nothing))
end

function pullback(r, _)
    model = kept_model(r)
    wanted = read_one(r) != 0
    y, back = differentiate(model.object, inputs(r, model), wanted)
    y = arrays(y)
    return result(y, (listed(y), back))
end

result(y, value) = string(keep(value), ' ', y isa Tuple, '\n', join(map(described, listed(y)), '\n'))

function fetch(r, _)
    ys, _ = kept(r)
    foreach(y -> store(r, y), ys)
    return ""
end

function cotangents(r)
    ys, back = kept(r)
    dys = copies(r)
    return back(length(ys) == 1 ? only(dys) : dys)
end

function back(r, _)
    model = kept_model(r)
    dm, dxs = cotangents(r)
    for _ in 1:read_one(r)
        store(r, dxs === nothing ? nothing : dxs[read_one(r)])
    end
    found = gradients(model, dm)
    for (p, gradient) in zip(model.parameters, found)
        Optimisers.isnumeric(p.array) && store(r, gradient)
    end
    return ""
end

structure(r, _) = json(last(trace(kept_model(r).object, only(copies(r)))))

make_trainer(r, text) = string(keep(Trainer(kept_model(r), Base.invokelatest(rule_of, text))))
make_loss(r, text) = string(keep(loss_of(text)))

function save_state(r, _)
    trainer = kept(r)
    check_unchanged(trainer.model)
    save!(trainer)
    return ""
end

restore_state(r, _) = (restore!(kept(r)); "")

function step(r, _)
    trainer, loss = kept(r), kept(r)
    check_unchanged(trainer.model)
    return repr(step!(trainer, loss, inputs(r, trainer.model), copy(view_of(r))))
end

function update(r, _)
    trainer = kept(r)
    update!(trainer, first(cotangents(r)))
    return ""
end

"""Return a package of the project that Flux can do without."""
function package(name, what)
    found = Base.identify_package(name)
    if found === nothing || Base.locate_package(found) === nothing
        refuse("missing", "$what needs $name, which the project $(Base.active_project()) does not have; add it: ",
            "import Pkg; Pkg.add(\"$name\")")
    end
    return Base.require(found)
end

function save_jld2(r, text)
    state, jld2 = Flux.state(kept_model(r).object), package("JLD2", "a .jld2 file")
    Base.invokelatest(jld2.jldsave, text; model_state=state)
    return ""
end

function load_jld2(r, text)
    model, jld2 = kept_model(r), package("JLD2", "a .jld2 file")
    state = Base.invokelatest(jld2.load, text, "model_state")
    try
        Flux.loadmodel!(model.object, state)
    catch error
        refuse("shape", "$text does not fit the model: ", sprint(showerror, error))
    end
    return ""
end

function to_gpu(r, _)
    model = kept_model(r)
    cuda, _ = package("CUDA", "a model on the GPU"), package("cuDNN", "a model on the GPU")
    Base.invokelatest(cuda.functional) || refuse("missing", "CUDA.jl is there but finds no GPU that it can use")
    return string(keep(Base.invokelatest(Model, OnDevice(Base.invokelatest(Flux.gpu, model.object)))))
end

const OPERATIONS = (
    :make, :make_from_file, :release, :describe, :set_mode, :evaluate_model, :pullback, :fetch, :back, :structure,
    :make_trainer, :make_loss, :save_state, :restore_state, :step, :update, :save_jld2, :load_jld2,
    :to_gpu,
)

# ----------------------------------------------------------------------------------------------------------- the border

function answer(operation::F, integers::Ptr{Int64}, text::Ptr{UInt8}, buffer::Ptr{UInt8}, capacity::Int64) where {F}
    empty!(TRAIL)
    failed = false
    ANSWER[] = try
        reader, given = Reader(integers), unsafe_string(text)
        # As in PyFluxPad: a thread that Julia did not start cannot wait for the tasks that NNlib spawns.
        PyFluxPad.started_by_julia() ? operation(reader, given) : NNlib.@disallow_spawns operation(reader, given)
    catch error
        failed = true
        explain(error)
    end
    count = PyFluxPad.write_text(ANSWER[], buffer, capacity)
    length = max(count, ncodeunits(ANSWER[]))
    return Int64(failed ? -length : length)
end

function explain(error)
    error isa Refusal && return "$(error.kind)\n$(error.text)"
    error isa InterruptException && return "interrupted\n"
    error isa OutOfMemoryError && return "memory\n"
    place = isempty(TRAIL) ? "" : "$(dotted(TRAIL)): "
    return "julia\n$(place)Julia says, with sizes in its own order, the reverse of NumPy's: $(sprint(showerror, error))"
end

for name in OPERATIONS
    @eval $(Symbol(:entry_, name))(integers, text, buffer, capacity) = answer($name, integers, text, buffer, capacity)
end

entry_answer(buffer, capacity) = PyFluxPad.write_text(ANSWER[], buffer, capacity)

c_function(name) = :(UInt(@cfunction($(Symbol(:entry_, name)), Int64, (Ptr{Int64}, Ptr{UInt8}, Ptr{UInt8}, Int64))))

# Return a line per C function: its name and its address.
@eval function entries()
    addresses = UInt[$(map(c_function, OPERATIONS)...), UInt(@cfunction(entry_answer, Int64, (Ptr{UInt8}, Int64)))]
    return join((string(name, ' ', address) for (name, address) in zip((OPERATIONS..., :answer), addresses)), '\n')
end
