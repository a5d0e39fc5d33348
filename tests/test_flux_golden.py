"""The 28 golden models, whose values and gradients real Flux computed: through FluxModel."""

import flux_models
import numpy as np
import pytest
from flux_models import CASES, golden, golden_model, named

pytestmark = flux_models.needs_flux


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5 * max(1, np.abs(wanted).max()))
    assert found.dtype == wanted.dtype


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["julia"])
def test_values_and_gradients(case):
    stored = {key.partition("/")[2]: golden()[key] for key in golden() if key.startswith(f"{case['name']}/")}
    model = golden_model(case)
    close(model(stored["x"]), stored["y"])
    grad_x, gradients = model.grad(stored["x"], stored["dy"])
    close(grad_x, stored["dx"])
    wanted = {named(case, key[2:]): array for key, array in stored.items() if key.startswith("d_")}
    assert set(gradients) == set(wanted)  # of statistics too, which are not trained
    assert set(model.trained) == {name for name in wanted if "mean" not in name and "variance" not in name}
    for name, array in wanted.items():
        close(gradients[name], array)
    assert set(model.parameters()) == {named(case, parameter) for parameter in case["params"]}


@pytest.mark.engine("torch")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["julia"])
def test_ported_to_torch(case):
    torch = pytest.importorskip("torch")
    from pyflux_pad import porting

    stored = {key.partition("/")[2]: golden()[key] for key in golden() if key.startswith(f"{case['name']}/")}
    graph = porting.read_flux(golden_model(case), stored["x"].shape)
    module = graph.to_torch()
    x = torch.tensor(stored["x"], requires_grad=True)
    y = module(x)
    close(y.detach().numpy(), stored["y"])
    y.backward(torch.tensor(stored["dy"]))
    close(x.grad.numpy(), stored["dx"])
    parameters = dict(module.named_parameters())
    for parameter in case["params"]:
        name = named(case, parameter)
        if name in parameters:  # statistics are buffers there
            gradient = np.asarray(parameters[name].grad)
            turned = gradient.ndim > 2 and "CrossCor" not in case["julia"]
            close(np.flip(gradient, tuple(range(2, gradient.ndim))) if turned else gradient, stored[f"d_{parameter}"])
