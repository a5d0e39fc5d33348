"""
Live Flux models for Python: kept here by number, run, differentiated and trained through C functions.

As in PyFluxPad only integers, addresses and texts cross the border. Inputs are copied in, because a model may keep
them; results are copied into memory that Python allocated. Parameters are the one thing that both sides hold: Python
gets their addresses, and every call first makes sure that they are still the model's.
"""
module PyFluxPadFluxExt

import Flux
import PyFluxPad
using Flux: Functors, NNlib, Optimisers, Zygote
using Flux.Random: AbstractRNG
using PrecompileTools: @compile_workload, @setup_workload

PyFluxPad.flux_version(::Nothing) = string(pkgversion(Flux))

include("parameters.jl")
include("code.jl")
include("checks.jl")
include("run.jl")
include("structure.jl")
include("training.jl")
include("entries.jl")
include("precompile.jl")

end
