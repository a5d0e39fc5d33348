"""What pyflux_pad does with Flux where the project has it."""
module PyFluxPadFluxExt

import Flux
import PyFluxPad

PyFluxPad.flux_version(::Nothing) = string(pkgversion(Flux))

end
