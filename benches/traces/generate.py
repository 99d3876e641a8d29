#!/usr/bin/env python3
"""Write the gradient traces from the published layer shapes.

One line per parameter, `name count type`, in the order in which a backward pass finishes the
gradients: the reverse of the forward order. Run it in this folder; it needs nothing but Python.

ResNet-50: He et al., "Deep Residual Learning for Image Recognition", table 1, with the stride in the
3x3 convolution (it changes no shape) and a 1000-class head. GPT-2 small: Radford et al., "Language
Models are Unsupervised Multitask Learners": 12 layers, width 768, 1024 positions, 50257 tokens; the
output layer shares the token embedding's weight, whose gradient is ready last.
"""

from math import prod
from pathlib import Path


def resnet50():
    """Parameters in forward order."""
    yield from convolution("conv1", 64, 3, 7)
    yield from normalisation("bn1", 64)
    channels = 64
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            yield from convolution(f"{name}.conv1", width, channels, 1)
            yield from normalisation(f"{name}.bn1", width)
            yield from convolution(f"{name}.conv2", width, width, 3)
            yield from normalisation(f"{name}.bn2", width)
            yield from convolution(f"{name}.conv3", 4 * width, width, 1)
            yield from normalisation(f"{name}.bn3", 4 * width)
            if block == 0:
                yield from convolution(f"{name}.downsample.0", 4 * width, channels, 1)
                yield from normalisation(f"{name}.downsample.1", 4 * width)
            channels = 4 * width
    yield from linear("fc", channels, 1000)


def convolution(name, outputs, inputs, kernel):
    yield f"{name}.weight", (outputs, inputs, kernel, kernel)


def normalisation(name, width):
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def linear(name, inputs, outputs):
    yield f"{name}.weight", (inputs, outputs)
    yield f"{name}.bias", (outputs,)


def gpt2_small():
    """Parameters in forward order."""
    width = 768
    yield "wte.weight", (50257, width)
    yield "wpe.weight", (1024, width)
    for layer in range(12):
        name = f"h.{layer}"
        yield from normalisation(f"{name}.ln_1", width)
        yield from linear(f"{name}.attn.c_attn", width, 3 * width)
        yield from linear(f"{name}.attn.c_proj", width, width)
        yield from normalisation(f"{name}.ln_2", width)
        yield from linear(f"{name}.mlp.c_fc", width, 4 * width)
        yield from linear(f"{name}.mlp.c_proj", 4 * width, width)
    yield from normalisation("ln_f", width)


def write(name, title, parameters, total):
    parameters = [(parameter, prod(shape)) for parameter, shape in parameters]
    assert sum(count for _, count in parameters) == total, name
    lines = [f"# {title}: {total:,} parameters, gradients in backward order"]
    lines += [f"{parameter} {count} float" for parameter, count in reversed(parameters)]
    Path(__file__).with_name(name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write("resnet50.txt", "ResNet-50", resnet50(), 25_557_032)
    write("gpt2-small.txt", "GPT-2 small", gpt2_small(), 124_439_808)
