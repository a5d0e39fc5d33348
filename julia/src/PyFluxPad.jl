"""
The Julia half of the Python package pyflux_pad: NNlib's convolutions, padding modes and pools behind C functions.

Only integers and addresses cross the border. Python owns every array, checks every argument and hands over addresses of
dense memory; a C-contiguous array `(N, C, D, H, W)` is, byte for byte, the Julia array `(W, H, D, C, N)`. There are
always three spatial axes; Python adds axes of length 1. Nothing here prints, keeps an address or knows of Python.
"""
module PyFluxPad

import NNlib
using LinearAlgebra: BLAS
using PrecompileTools: @compile_workload, @setup_workload

"""Number of the agreement on addresses and integers with the Python half; both sides compare it."""
const ABI = 2

include("convolution.jl")
include("windows.jl")
include("entries.jl")

"""
    facts()

Return what runs, as strings: the versions of Julia, NNlib and Flux ("" where it is not loaded), the project, the number
of threads, and the BLAS libraries with theirs.
"""
function facts()
    blas = join((basename(library.libname) for library in BLAS.get_config().loaded_libs), ", ")
    return [
        string(VERSION), string(pkgversion(NNlib)), flux_version(nothing), string(something(Base.active_project(), "")),
        string(Threads.nthreads()), "$blas, threads: $(BLAS.get_num_threads())",
    ]
end

# The extension for Flux has the method for `nothing`.
flux_version(::Any) = ""

include("precompile.jl")

end
