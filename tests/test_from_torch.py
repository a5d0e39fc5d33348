"""Whole models: `from_torch` gives a new tree that shares the parameters, and nothing else changes."""

import copy

import pytest

import pyflux_pad as pp

torch = pytest.importorskip("torch")
from torch.nn.utils import prune  # noqa: E402

from pyflux_pad import nn  # noqa: E402 (it imports torch)

F = torch.nn.functional
pytestmark = pytest.mark.engine("torch")


def conv3x3(channels_in, channels_out, stride=1):
    return torch.nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)


class BasicBlock(torch.nn.Module):
    def __init__(self, channels_in, channels, stride=1):
        super().__init__()
        self.conv1 = conv3x3(channels_in, channels, stride)
        self.bn1 = torch.nn.BatchNorm2d(channels)
        self.relu = torch.nn.ReLU(inplace=True)
        self.conv2 = conv3x3(channels, channels)
        self.bn2 = torch.nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or channels_in != channels:
            self.downsample = torch.nn.Sequential(torch.nn.Conv2d(channels_in, channels, 1, stride, bias=False),
                                                  torch.nn.BatchNorm2d(channels))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + identity)


class ResNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(8)
        self.relu = torch.nn.ReLU(inplace=True)
        self.maxpool = torch.nn.MaxPool2d(3, 2, 1)
        self.layer1 = torch.nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 8))
        self.layer2 = torch.nn.Sequential(BasicBlock(8, 16, 2), BasicBlock(16, 16))
        self.avgpool = torch.nn.AdaptiveAvgPool2d(1)
        self.fc = torch.nn.Linear(16, 5)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(self.avgpool(self.layer2(self.layer1(x))).flatten(1))


def double(channels_in, channels, mode):
    return torch.nn.Sequential(
        torch.nn.ReflectionPad2d(1), torch.nn.Conv2d(channels_in, channels, 3), torch.nn.ReLU(),
        torch.nn.Conv2d(channels, channels, 3, padding="same", padding_mode=mode), torch.nn.ReLU())


class UNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = double(3, 6, "zeros"), double(6, 8, "circular")
        self.pool1, self.pool2 = torch.nn.MaxPool2d(2), torch.nn.AvgPool2d(3, 2, 1, count_include_pad=False)
        self.bottom = double(8, 10, "replicate")
        self.up2, self.up1 = torch.nn.ConvTranspose2d(10, 8, 2, 2), torch.nn.ConvTranspose2d(8, 6, 3, 2, 1, 1)
        self.left2, self.left1 = double(16, 8, "reflect"), double(12, 6, "zeros")
        self.head = torch.nn.Conv2d(6, 5, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(self.pool1(first))
        x = self.bottom(self.pool2(second))
        x = self.left2(torch.cat([self.up2(x), second], 1))
        return self.head(self.left1(torch.cat([self.up1(x), first], 1)))


MODELS = {"resnet": ResNet, "unet": UNet}
models = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def seeded(model, dtype=torch.float32):
    torch.manual_seed(0)
    return model().to(dtype)


def images(dtype=torch.float32):
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=dtype)


def equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def losses(model, steps=6):
    """The loss curve of a few steps of gradient descent with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    x = images(torch.float64)
    curve = []
    for _ in range(steps):
        y = model(x)
        loss = (y - torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


@models
@pytest.mark.parametrize("training", [True, False])
def test_same_bits(model, training):
    given = seeded(model).train(training)
    before = copy.deepcopy(given)
    found = nn.from_torch(given)
    assert repr(found.module) == repr(given) == repr(before)
    assert list(found.module.state_dict()) == list(given.state_dict())
    assert [m.training for m in found.module.modules()] == [m.training for m in given.modules()]
    assert all(a is b for a, b in zip(found.module.parameters(), given.parameters(), strict=True))
    assert all(a is b for a, b in zip(found.module.buffers(), given.buffers(), strict=True))
    kinds = {type(m).__module__ for m in found.module.modules() if "Conv" in type(m).__name__}
    assert kinds == {"pyflux_pad.nn"}
    assert not any(type(m).__module__ == "pyflux_pad.nn" for m in given.modules())
    assert found.left == {}
    equal(found.module(images()), before(images()))
    if not training:
        equal(given(images()), before(images()))


@models
def test_same_loss_curve(model):
    given = seeded(model, torch.float64)
    twin = nn.from_torch(copy.deepcopy(given)).module
    curve = losses(given)
    assert curve[-1] < curve[0]
    assert losses(twin) == curve
    equal(twin.state_dict(), given.state_dict())


@models
def test_trains_with_other_pads(model):
    """The point of it: pads of another framework on a torch model, the same parameters."""
    given = seeded(model, torch.float64)
    found = nn.from_torch(given)
    layers = dict(found.module.named_modules())
    for name, pads in found.pads.items():
        layer = layers[name]
        if isinstance(layer, nn.Conv2d) and layer.stride == (2, 2):
            layer.padding = tuple((low - 1, high + 1) for low, high in pads) if pads[0][0] else pads.pairs
    curve = losses(found.module)
    assert curve[-1] < curve[0]


def test_pads_by_name():
    found = nn.from_torch(seeded(UNet))
    assert found.pads["down1.0"] == pp.Padding(((1, 1), (1, 1)))
    assert found.pads["down1.1"] == pp.Padding(((0, 0), (0, 0)))
    assert found.pads["down2.3"] == pp.Padding(((1, 1), (1, 1)))
    assert found.pads["pool2"] == found.pads["up1"] == pp.Padding(((1, 1), (1, 1)))
    found = nn.from_torch(torch.nn.ModuleDict({
        "even": torch.nn.Conv2d(1, 1, (4, 3), padding="same"), "lp": torch.nn.LPPool1d(2, 3),
        "valid": torch.nn.Conv1d(1, 1, 2, padding="valid"), "pad": torch.nn.ZeroPad2d((1, 2, 3, 4)),
        "max": torch.nn.MaxPool3d(3, padding=(1, 0, 1))}))
    assert found.pads == {
        "even": pp.Padding(((1, 2), (1, 1))), "lp": pp.Padding(((0, 0),)), "valid": pp.Padding(((0, 0),)),
        "pad": pp.Padding(((3, 4), (1, 2))), "max": pp.Padding(((1, 1), (0, 0), (1, 1)))}


def test_a_single_layer():
    conv = torch.nn.Conv2d(3, 4, 3, padding=1)
    found = nn.from_torch(conv)
    assert type(found.module) is nn.Conv2d
    assert found.module.weight is conv.weight
    assert found.pads == {"": pp.Padding(((1, 1), (1, 1)))}
    assert type(nn.from_torch(found.module).module) is nn.Conv2d


def test_what_is_left():
    class Standardized(torch.nn.Conv2d):
        pass

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        Standardized(3, 4, 3), torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv2d(4, 4, 3)),
        torch.nn.Conv2d(4, 4, 3), prune.l1_unstructured(torch.nn.Conv2d(4, 4, 3), "weight", 0.5),
        torch.nn.AdaptiveAvgPool2d(2), nn.Conv2d(4, 4, 1), torch.nn.ZeroPad2d((0, 0, 0, 0, 1, 1)))
    found = nn.from_torch(model)
    assert "at most 2 axes" in found.left.pop("6")  # it pads the channels, as torch lets it
    assert found.left == {"0": "Standardized is a subclass", "1": "ParametrizedConv2d is a subclass",
                          "3": "its weight is computed"}
    assert list(found.pads) == ["2"]
    assert [type(m) for m in found.module] == [type(m) if i != 2 else nn.Conv2d for i, m in enumerate(model)]
    assert list(found.module.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(found.module.parameters(), model.parameters(), strict=True))
    equal(found.module(images()), model(images()))


def test_shared_layers_stay_shared():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Conv2d(3, 3, 3, padding=1)
            self.second = self.first
            self.steps = [self.first, torch.relu]  # not registered, and it must not point to the old layer

        def forward(self, x):
            for step in self.steps:
                x = step(x)
            return self.second(x)

    found = nn.from_torch(seeded(Tied)).module
    assert type(found.first) is nn.Conv2d
    assert found.first is found.second is found.steps[0]
    equal(found(images()), seeded(Tied)(images()))


def test_hooks_are_kept():
    """Functions are shared; a method of a module in the tree becomes the method of its copy."""
    seen = []

    class Recorder:
        def __call__(self, module, args, output):
            seen.append(type(module))

    class Counted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)
            self.calls = 0
            self.conv.register_forward_hook(self.count)
            self.conv.register_forward_pre_hook(lambda module, args: seen.append("before"))
            self.conv.register_forward_hook(Recorder())

        def count(self, module, args, output):
            self.calls += 1

        def forward(self, x):
            return self.conv(x)

    given = Counted()
    found = nn.from_torch(given).module
    found(images())
    assert (found.calls, given.calls) == (1, 0)
    assert seen == ["before", nn.Conv2d]
    given(images())
    assert (found.calls, given.calls) == (1, 1)
    assert seen[2:] == ["before", torch.nn.Conv2d]


def test_lazy_and_frozen():
    model = torch.nn.Sequential(torch.nn.LazyConv2d(4, 3, padding=1), torch.nn.Conv2d(4, 2, 1).requires_grad_(False))
    found = nn.from_torch(model).module
    assert isinstance(found[0], nn.LazyConv2d)
    assert not any(p.requires_grad for p in found[1].parameters())
    found(images())
    assert type(found[0]) is nn.Conv2d
    assert found[0].weight is model[0].weight
    equal(found(images()), model(images()))


@models
def test_the_new_tree_is_a_model(model):
    """It can be saved, copied, converted and exported like any other."""
    found = nn.from_torch(seeded(model).eval()).module
    twin = copy.deepcopy(found)
    twin.load_state_dict(found.state_dict())
    equal(twin(images()), found(images()))
    exported = torch.export.export(found, (images(),))
    torch.testing.assert_close(exported.module()(images()), found(images()))
    last = copy.deepcopy(found)
    last.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] (torch's stub has not got it)
    torch.testing.assert_close(last(images()), found(images()), rtol=1e-4, atol=1e-5)
