"""Models for the porting tests, built here: the two networks that need asymmetric pads, and torch's for the round trip.

GoogLeNet has the pads that Caffe2's exporter wrote, [0, 0, 2, 2] on its four stride-2 pools; tiny YOLOv2 has
``auto_pad`` everywhere and a sixth pool of stride 1, which needs one more row and column at the end. Weights are
random and scaled so that the signal neither dies nor saturates the softmax.
"""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import pyflux_pad
import pyflux_pad.nn as pnn


class Net:
    """An ONNX graph under construction: a call per layer, the name of the last array kept."""

    def __init__(self, name, shape, opset=13, seed=0):
        self.name, self.opset, self.random = name, opset, np.random.default_rng(seed)
        self.nodes, self.arrays = [], []
        self.input = helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)
        self.last, self.channels = "image", shape[1]

    def weight(self, *shape, scale=None):
        scale = (2 / np.prod(shape[1:])) ** 0.5 if scale is None else scale
        name = f"w{len(self.arrays)}"
        array = self.random.standard_normal(shape, np.float32) * np.float32(scale)
        self.arrays.append(numpy_helper.from_array(array, name))
        return name

    def constant(self, array):
        name = f"c{len(self.arrays)}"
        self.arrays.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op, *more, source=None, **attributes):
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [source or self.last, *more], [name], name=name, **attributes))
        self.last = name
        return name

    def conv(self, channels, kernel, source=None, bias=True, **attributes):
        weight = self.weight(channels, self.channels, kernel, kernel)
        more = [self.weight(channels, scale=0.1)] if bias else []
        self.channels = channels
        return self.node("Conv", weight, *more, source=source, kernel_shape=[kernel] * 2, **attributes)

    def model(self, shape):
        output = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, self.name, [self.input], [output], self.arrays)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


# Output channels of an inception block: 1x1; 3x3 after its reduction; 5x5 after its reduction; projection of the pool.
INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32), "3b": (128, 128, 192, 32, 96, 64), "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64), "4c": (128, 128, 256, 24, 64, 64), "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128), "5a": (256, 160, 320, 32, 128, 128), "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(classes=1000):
    """GoogLeNet of 224x224 images with the pads of Caffe2's exporter: 6,998,552 parameters."""
    net = Net("googlenet", (1, 3, 224, 224))

    def relu_conv(channels, kernel, source=None, **attributes):
        net.conv(channels, kernel, source=source, pads=[kernel // 2] * 4, **attributes)
        return net.node("Relu")

    def shrink():  # 112, 56, 28, 14, 7: without the pads at the end 55, 27, 13, 6
        net.node("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 2, 2])

    def inception(block):
        one, reduce3, three, reduce5, five, projection = INCEPTION[block]
        start, channels = net.last, net.channels
        branches = [relu_conv(one, 1, start)]
        for reduction, wide, kernel in ((reduce3, three, 3), (reduce5, five, 5)):
            net.channels = channels
            relu_conv(reduction, 1, start)
            branches.append(relu_conv(wide, kernel))
        net.channels = channels
        net.node("MaxPool", source=start, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
        branches.append(relu_conv(projection, 1))
        net.node("Concat", *branches[1:], source=branches[0], axis=1)
        net.channels = one + three + five + projection

    relu_conv(64, 7, strides=[2, 2])
    shrink()
    net.node("LRN", size=5, alpha=1e-4, beta=0.75, bias=1.0)
    relu_conv(64, 1)
    relu_conv(192, 3)
    net.node("LRN", size=5, alpha=1e-4, beta=0.75, bias=1.0)
    shrink()
    for block in INCEPTION:
        if block in ("4a", "5a"):
            shrink()
        inception(block)
    net.node("AveragePool", kernel_shape=[7, 7], strides=[1, 1], pads=[0, 0, 0, 0])
    net.node("Dropout")
    net.node("Reshape", net.constant(np.array([1, 1024])))
    net.node("Gemm", net.weight(classes, 1024), net.weight(classes, scale=0.1), transB=1)
    net.node("Softmax", axis=1)
    return net.model((1, classes))


def tiny_yolov2(width=16, size=416, anchors=5, classes=20):
    """tiny YOLOv2, 60.5 MiB at full width: 15,867,889 numbers with the batch statistics."""
    net = Net("tiny_yolov2", (1, 3, size, size), opset=8)

    def block(channels):
        net.conv(channels, 3, bias=False, auto_pad="SAME_UPPER", strides=[1, 1])
        scale, variance = (net.constant(net.random.uniform(0.8, 1.2, channels).astype(np.float32)) for _ in range(2))
        shift, mean = net.weight(channels, scale=0.1), net.weight(channels, scale=0.1)
        net.node("BatchNormalization", scale, shift, mean, variance, epsilon=1e-5)
        net.node("LeakyRelu", alpha=0.1)

    def pool(stride):
        net.node("MaxPool", kernel_shape=[2, 2], strides=[stride] * 2, auto_pad="SAME_UPPER")

    net.node("Mul", net.constant(np.array([1 / 255], np.float32)))
    net.node("Add", net.constant(np.zeros((3, 1, 1), np.float32)))
    for step in range(5):
        block(width << step)
        pool(2)
    block(width << 5)
    pool(1)
    block(width << 6)
    block(width << 6)
    net.conv(anchors * (classes + 5), 1, auto_pad="VALID")
    return net.model((1, anchors * (classes + 5), size // 32, size // 32))


# ---------------------------------------------------------------------------------------------------------------- torch


class TCN(nn.Module):
    """A temporal convolutional network: causal, dilated convolutions with residuals."""

    def __init__(self, channels=(3, 8, 8, 6)):
        super().__init__()
        self.blocks = nn.ModuleList()
        self.skips = nn.ModuleList()
        for step, (into, out) in enumerate(itertools.pairwise(channels)):
            self.blocks.append(pnn.CausalConv1d(into, out, 3, dilation=2**step))
            self.skips.append(nn.Conv1d(into, out, 1))

    def forward(self, x):
        for block, skip in zip(self.blocks, self.skips, strict=True):
            x = torch.relu(block(x)) + skip(x)
        return x


class UNet(nn.Module):
    """A U-Net: transposed convolutions with output_padding on the way up, the larger half cropped at the end only."""

    def __init__(self, channels=4):
        super().__init__()
        self.down1 = nn.Conv2d(1, channels, 3, padding=1)
        self.down2 = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(2 * channels)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 3, stride=2, padding=1, output_padding=1)
        self.last = pnn.ConvTranspose2d(2 * channels, 2, 4, stride=2, padding=((1, 2), (0, 3)))

    def forward(self, x):
        skip = F.relu(self.down1(x))
        y = F.relu(self.norm(self.down2(skip)))
        return self.last(torch.cat([skip, F.relu(self.up(y))], 1))


class Mobile(nn.Module):
    """A MobileNet as it comes from TensorFlow: strided depthwise convolutions with SAME, the odd pixel at the end."""

    def __init__(self, channels=(8, 12, 16), classes=5):
        super().__init__()
        self.stem = nn.Conv2d(3, channels[0], 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(channels[0])
        self.depthwise = nn.ModuleList()
        self.pointwise = nn.ModuleList()
        for into, out in itertools.pairwise(channels):
            self.depthwise.append(nn.Conv2d(into, into, 3, stride=2, groups=into))
            self.pointwise.append(nn.Conv2d(into, out, 1))
        self.classifier = nn.Linear(channels[-1], classes)

    def forward(self, x):
        x = F.relu6(self.norm(self.stem(same(x, 3, 2))))
        for depthwise, pointwise in zip(self.depthwise, self.pointwise, strict=True):
            x = F.relu6(pointwise(depthwise(same(x, 3, 2))))
        return self.classifier(x.mean((2, 3)))


def same(x, kernel, stride):
    """Pad as TensorFlow's SAME does."""
    return F.pad(x, pyflux_pad.Padding.same("tf", tuple(x.shape[2:]), kernel, stride).to_torch())


def settled(module, seed=0):
    """Give a module random weights and statistics, and put it in evaluation mode."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.is_floating_point():
                tensor.normal_(0, 0.3)
    return module.eval()
