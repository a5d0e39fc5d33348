"""At least 2,000 random geometries per engine against the loop oracle, with the coverage printed and held to.

2,000 convolutions forward and back, 1,000 transposed ones, and 400 of each for gradients in complex numbers.
"""

import checks
import pytest
from cases import LEAST_COVERAGE, conv_cases, coverage, random_cases, transposed_cases
from hypothesis import given, settings

CHUNK = 200
CONV_SEEDS, TRANSPOSED_SEEDS, GRADIENT_SEEDS = range(10), range(100, 105), range(200, 202)


@pytest.mark.parametrize(("seeds", "transposed"), [
    (CONV_SEEDS, False), (TRANSPOSED_SEEDS, True), (GRADIENT_SEEDS, False), (GRADIENT_SEEDS, True),
], ids=["conv", "conv_transpose", "conv gradients", "conv_transpose gradients"])
def test_coverage(record_property, request, seeds, transposed):
    """The random cases visit what has hidden bugs before, each in at least 15 % of them; the run prints the shares."""
    cases = [case for seed in seeds for case in random_cases(seed, CHUNK, transposed=transposed)]
    assert len(set(map(repr, cases))) == CHUNK * len(seeds)
    shares = coverage(cases)
    table = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    record_property("coverage", f"{len(cases)} cases of {request.node.callspec.id}: {table}")
    short = {name: share for name, share in shares.items() if share < LEAST_COVERAGE}
    assert not short, f"below {LEAST_COVERAGE:.0%}: {short}"


def run(check, engine, cases, dtype):
    """Run a check on many cases and report all that fail together."""
    failures = []
    for case in cases:
        try:
            check(engine, case, dtype)
        except AssertionError as error:
            failures.append(f"{case!r}\n{error}")
    assert not failures, f"{len(failures)} of {len(cases)} cases fail, the first:\n{failures[0]}"


def test_there_are_two_thousand():
    assert CHUNK * len(CONV_SEEDS) >= 2000


@pytest.mark.parametrize("seed", CONV_SEEDS)
def test_conv(engine, seed):
    """Forward and both transposes, float64 and complex128 in turn."""
    cases, dtype = random_cases(seed, CHUNK), ("float64", "complex128")[seed % 2]
    run(checks.forward, engine, cases, dtype)
    run(checks.transposes, engine, cases, dtype)


@pytest.mark.parametrize("seed", TRANSPOSED_SEEDS)
def test_conv_transpose(engine, seed):
    run(checks.forward, engine, random_cases(seed, CHUNK, transposed=True), ("float64", "complex128")[seed % 2])


@pytest.mark.parametrize("transposed", [False, True], ids=("conv", "conv_transpose"))
@pytest.mark.parametrize("seed", GRADIENT_SEEDS)
def test_gradients(engine, seed, transposed):
    run(checks.gradients, engine, random_cases(seed, CHUNK, transposed=transposed), "complex128")


# Hypothesis looks for the smallest failing case; where it finds one the name of the case is its geometry.
shrinking = settings(max_examples=60)


def test_conv_shrinks(engine):
    @shrinking
    @given(conv_cases())
    def check(case):
        checks.forward(engine, case, "float64")
        checks.adjoint(engine, case, "complex128")

    check()


def test_conv_transpose_shrinks(engine):
    @shrinking
    @given(transposed_cases())
    def check(case):
        checks.gradients(engine, case, "complex128")

    check()
