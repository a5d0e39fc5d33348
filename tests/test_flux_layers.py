"""Flux's layers written in Python: the Julia that they become and what they refuse. No Julia runs here."""

import os
import re
import subprocess
import sys

import pytest
from flux_models import HAS_FLUX

import pyflux_pad as pp
from pyflux_pad import Padding, flux
from pyflux_pad.padding import GeometryError

WRITTEN = {
    "Conv((5, 3), 2 => 4, relu; stride=(1, 2), pad=(0, 3, 1, 2), dilation=(2, 1), groups=2, bias=false)":
        lambda: flux.Conv(2, 4, (3, 5), "relu", stride=(2, 1), padding=((1, 2), (0, 3)), dilation=(1, 2), groups=2,
                          bias=False),
    "Conv((3, 2), 1 => 2, identity; stride=(1, 1), pad=(5, 6, 7, 8), bias=true)": lambda: flux.Conv(
        1, 2, (2, 3), pad=(5, 6, 7, 8)),
    "Conv((3, 2), 1 => 2, identity; stride=(1, 1), pad=(5, 5, 6, 6), bias=true)": lambda: flux.Conv(
        1, 2, (2, 3), pad=(5, 6)),
    "Conv((2,), 1 => 1, identity; stride=(1,), pad=SamePad(), bias=true)": lambda: flux.Conv(1, 1, (2,), pad="same"),
    "Conv((3,), 1 => 1, identity; stride=(1,), pad=(4, 0), dilation=(2,), bias=true)": lambda: flux.Conv(
        1, 1, (3,), padding="causal", dilation=2),
    "Conv((3,), 1 => 1, identity; stride=(1,), pad=(1, 2), bias=true)": lambda: flux.Conv(
        1, 1, (3,), padding=Padding(((1, 2),))),
    "DepthwiseConv((3, 2), 3 => 6, identity; stride=(1, 1), pad=(0, 0, 0, 0), bias=true)": lambda: flux.DepthwiseConv(
        3, 6, (2, 3)),
    "CrossCor((3, 2), 3 => 5, tanh; stride=(1, 1), pad=(1, 1, 1, 1), bias=true)": lambda: flux.CrossCor(
        3, 5, (2, 3), "tanh", padding=1),
    "ConvTranspose((3, 2), 3 => 5, identity; stride=(3, 2), pad=(0, 0, 0, 0), outpad=(2, 1), bias=true)": lambda: (
        flux.ConvTranspose(3, 5, (2, 3), stride=(2, 3), output_padding=(1, 2))),
    "MaxPool((3, 2); stride=(3, 2), pad=(1, 0, 0, 2))": lambda: flux.MaxPool((2, 3), padding=((0, 2), (1, 0))),
    "MeanPool((3, 2); stride=(1, 4), pad=(0, 0, 0, 0))": lambda: flux.MeanPool((2, 3), stride=(4, 1)),
    "AdaptiveMeanPool((3, 2))": lambda: flux.AdaptiveMeanPool((2, 3)),
    "AdaptiveMaxPool((3,))": lambda: flux.AdaptiveMaxPool((3,)),
    "Upsample(:bilinear; size=(3, 2))": lambda: flux.Upsample("bilinear", size=(2, 3)),
    "Upsample(:nearest; scale=(3, 2,))": lambda: flux.Upsample(scale=(2, 3)),
    "LayerNorm((3, 2), relu; affine=true, eps=Float32(0.001))": lambda: flux.LayerNorm((2, 3), "relu", epsilon=1e-3),
    "GroupNorm(6, 2, identity; affine=true, eps=Float32(1e-05))": lambda: flux.GroupNorm(2, 6),
    "Chain(Flux.flatten, SkipConnection(PixelShuffle(2), concatenate), Parallel(add, Dropout(Float32(0.5)), "
    "GlobalMeanPool()))": lambda: flux.Chain(
        flux.flatten, flux.SkipConnection(flux.PixelShuffle(2), "cat"),
        flux.Parallel("+", flux.Dropout(), flux.GlobalMeanPool())),
    "SkipConnection(Dense(2 => 2, identity; bias=true), (a, b) -> a)": lambda: flux.SkipConnection(
        flux.Dense(2, 2), flux.Layer("(a, b) -> a")),
}  # fmt: skip


@pytest.mark.parametrize("julia", WRITTEN)
def test_written(julia):
    assert WRITTEN[julia]().julia == julia


REFUSED = [
    (lambda: flux.Conv(1, 1, 3), TypeError,  # type: ignore
     "Conv: kernel_size must be one int per spatial axis, such as (3, 3) or (5,), got 3"),
    (lambda: flux.Conv(1, 1, (3, 3), padding=1, pad=1), GeometryError,
     "Conv: padding=1 and pad=1 both say what is padded; give one"),
    (lambda: flux.Conv(1, 1, (3, 3), padding=(0, 1, 2, 3)), GeometryError, "which frameworks read in different ways"),
    (lambda: flux.Conv(1, 1, (3, 3), pad=(0, 1, 2)), GeometryError, "Padding.from_flux needs an int, 2 or 4 ints"),
    (lambda: flux.MaxPool((2, 2), padding="same"), GeometryError,
     "MaxPool: padding='same' depends on the size of the input, which a Flux layer does not know"),
    (lambda: flux.Conv(1, 1, (3,), pad="valid"), GeometryError, 'the only rule is "same", Flux\'s SamePad()'),
    (lambda: flux.Conv(1, 1, (3,), padding=((-1, 0),)), GeometryError, "padding=((-1, 0),) is negative, which Flux"),
    (lambda: flux.Conv(3, 4, (3,), groups=2), GeometryError,
     "Conv: in_channels=3 and out_channels=4 must be multiples of groups=2"),
    (lambda: flux.Conv(1, 1, (3,), "rellu"), ValueError,
     "activation='rellu' is no activation of NNlib's; did you mean relu"),
    (lambda: flux.Conv(True, 1, (3,)), TypeError, "Conv: channels must be an int, got the bool True"),
    (lambda: flux.Conv(1, 0, (3,)), GeometryError, "Conv: channels must be at least 1, got 0"),
    (lambda: flux.ConvTranspose(1, 1, (3, 3), stride=2, output_padding=(1, 2)), GeometryError,
     "output_padding must be less than the stride, which Flux asks for; it is 2 with stride 2 on spatial axis 1"),
    (lambda: flux.GroupNorm(4, 6), GeometryError, "6 channels cannot be divided into 4 groups"),
    (lambda: flux.Dropout(1.5), ValueError, "p is a probability from 0 to 1, got 1.5"),
    (lambda: flux.Upsample("cubic", scale=2), ValueError, "mode='cubic'; there are nearest, bilinear and trilinear"),
    (lambda: flux.Upsample(scale=2, size=(2, 2)), ValueError, "Upsample takes scale or size, one of them"),
    (lambda: flux.Chain(flux.flatten, "relu"), TypeError,  # type: ignore
     "Chain: layer 1 is a str, not a layer of pyflux_pad.flux"),
    (lambda: flux.Chain(), ValueError, "Chain takes at least one layer"),
    (lambda: flux.Parallel("-", flux.flatten), ValueError, "connection='-'; there are +, *, cat, and a Layer"),
]  # fmt: skip


@pytest.mark.parametrize("make, kind, text", REFUSED, ids=[text[:40] for _, _, text in REFUSED])
def test_refused(make, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        make()


def test_import_starts_nothing():
    code = "import sys, pyflux_pad.flux as f; f.Conv(1, 1, (3,)); print({'torch', 'juliacall'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.engine("julia")
@pytest.mark.skipif(HAS_FLUX, reason="the Julia project of this process has Flux")
def test_flux_missing():
    with pytest.raises(pp.BackendUnavailable, match=r"the project .* has no package Flux; add it: julia --project=.*"
                                                    r"Pkg.add\(\"Flux\"\)"):  # fmt: skip
        flux.FluxModel(flux.Dense(2, 2))


def test_julia_missing():
    code = ("import pyflux_pad.flux as f\ntry: f.FluxModel(f.Dense(2, 2))\n"
            "except Exception as e: print(type(e).__name__, e)")
    environment = {**os.environ, "PYTHON_JULIACALL_EXE": "/nowhere/julia", "PYTHON_JULIACALL_PROJECT": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
                          env=environment)  # fmt: skip
    assert "BackendUnavailable backend 'julia' cannot run: PYTHON_JULIACALL_EXE=/nowhere/julia is not" in done.stdout
