# The C functions that Python calls: a pointer to the integers of the call, then one per array, in the kernel's order.

"""What an entry point returns; the Python half has the same numbers."""
const DONE, FAILED, OUT_OF_MEMORY, INTERRUPTED = Int32.(0:3)

"""What the last call that failed has to say; one call at a time, Python holds a lock."""
const MESSAGE = Ref("")

const TYPES = (Float32, Float64, ComplexF32, ComplexF64)

# NNlib spawns tasks where Julia has several threads. A thread that Julia did not start cannot wait for them.
started_by_julia() = Threads.threadid() <= Threads.nthreads(:default) + Threads.nthreads(:interactive)

"""Run a kernel for the element type that the first integer numbers (from 1, in the order of `TYPES`)."""
function run(kernel::F, integers::Ptr{Int64}, arrays...) where {F}
    try
        if started_by_julia()
            by_type(kernel, integers, arrays...)
        else
            NNlib.@disallow_spawns by_type(kernel, integers, arrays...)
        end
        return DONE
    catch error
        error isa InterruptException && return INTERRUPTED
        error isa OutOfMemoryError && return OUT_OF_MEMORY
        MESSAGE[] = sprint(showerror, error)
        return FAILED
    end
end

function by_type(kernel::F, integers::Ptr{Int64}, arrays...) where {F}
    code = unsafe_load(integers)
    code == 1 && return kernel(Float32, integers, arrays...)
    code == 2 && return kernel(Float64, integers, arrays...)
    code == 3 && return kernel(ComplexF32, integers, arrays...)
    code == 4 && return kernel(ComplexF64, integers, arrays...)
    throw(ArgumentError("there is no element type number $code"))
end

const KERNELS = (
    (:conv, :conv!, 3), (:conv_input, :conv_input!, 3), (:conv_weight, :conv_weight!, 3),
    (:pad, :pad!, 4), (:pad_transpose, :pad_transpose!, 3),
    (:pool_sum, :pool_sum!, 3), (:pool_sum_transpose, :pool_sum_transpose!, 3),
    (:max_pool, :max_pool!, 4), (:max_pool_transpose, :max_pool_transpose!, 3),
)

for (name, kernel, count) in KERNELS
    addresses = [Symbol(:a, i) for i in 1:count]
    entry = Symbol(:entry_, name)
    @eval $entry(integers, $(addresses...)) = run($kernel, integers, $(addresses...))
end

"""Copy a text as UTF-8, at most `capacity` bytes, and return how many were written."""
function write_text(text::String, buffer::Ptr{UInt8}, capacity::Int64)
    count = min(ncodeunits(text), capacity)
    GC.@preserve text unsafe_copyto!(buffer, pointer(text), count)
    return Int64(count)
end

entry_message(buffer, capacity) = write_text(MESSAGE[], buffer, capacity)
entry_facts(buffer, capacity) = write_text(join(facts(), '\n'), buffer, capacity)
entry_flux(buffer, capacity) = write_text(flux_entries(), buffer, capacity)

"""Load Flux and return "ready" and what the extension calls by a C function; else a reason and its facts."""
function flux_entries()
    try
        project = something(Base.active_project(), "")
        package = Base.identify_package("Flux")
        (package === nothing || Base.locate_package(package) === nothing) && return "missing\n$project"
        version = pkgversion(Base.require(package))
        v"0.16" <= version < v"0.17-" || return "version\n$version\n$project"
        extension = Base.get_extension(@__MODULE__, :PyFluxPadFluxExt)
        extension === nothing && return "failed\nthe extension for Flux did not load"
        return "ready\n" * Base.invokelatest(extension.entries)
    catch error
        return "failed\n" * replace(sprint(showerror, error), '\n' => ' ')
    end
end

c_function(name, count) =
    :(UInt(@cfunction($(Symbol(:entry_, name)), Int32, (Ptr{Int64}, $(fill(:(Ptr{Cvoid}), count)...)))))

# Return the addresses of the C functions: those of `KERNELS` in order, then those that write texts.
@eval function entry_points()
    return UInt[
        $((c_function(name, count) for (name, _, count) in KERNELS)...),
        UInt(@cfunction(entry_message, Int64, (Ptr{UInt8}, Int64))),
        UInt(@cfunction(entry_facts, Int64, (Ptr{UInt8}, Int64))),
        UInt(@cfunction(entry_flux, Int64, (Ptr{UInt8}, Int64))),
    ]
end
