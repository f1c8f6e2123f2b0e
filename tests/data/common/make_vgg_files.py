"""Write the VGG files that the tests read, each with what the program that wrote it computes from it.

    python tests/data/common/make_vgg_files.py torch      # needs torch
    python tests/data/common/make_vgg_files.py keras      # needs tensorflow (extra `convert`)

| file | what it is |
| --- | --- |
| vgg16_torchvision.pth | state dict named as torchvision's vgg16, with a classifier |
| vgg19_keras_model.h5 | a whole model of Keras 3, layers named as in keras.applications.VGG19 |
| vgg19_keras.weights.h5 | its weights alone, numbered layers |
| vgg_torch.npz, vgg_keras.npz | activations that torch and Keras computed from PICTURE |

PICTURE is 1 h w 3, RGB in [0, 1]; the activations are those of some layers after ReLU, of the first at every third row
and column, each program using its own normalisation and max pooling. The networks have 2, 2, 3, 3, 3 channels in their
blocks and random weights. Written with torch 2.13.0 and keras 3.15.1.
"""

import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
WIDTHS = (2, 2, 3, 3, 3)
LAYERS = ("conv1_1", "conv2_2", "conv3_2", "conv5_2")
PICTURE = np.random.default_rng(0).random((1, 48, 64, 3)).astype(np.float32)


def write_torch() -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers, names, inputs = [], {}, 3
    for block, (count, width) in enumerate(zip((2, 2, 3, 3, 3), WIDTHS, strict=True), 1):
        for i in range(1, count + 1):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
            nn.init.kaiming_normal_(layers[-2].weight)
            nn.init.normal_(layers[-2].bias, 0.3, 0.3)  # few and dead channels would show little
            names[f"conv{block}_{i}"] = len(layers) - 1
            inputs = width
        layers.append(nn.MaxPool2d(2, 2))
    network = nn.ModuleDict({"features": nn.Sequential(*layers), "classifier": nn.Sequential(nn.Linear(3, 4))})
    torch.save(network.state_dict(), FOLDER / "vgg16_torchvision.pth")
    x = torch.from_numpy(PICTURE).permute(0, 3, 1, 2)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = ((x - mean[:, None, None]) / std[:, None, None]).double()
    found = {}
    for i, layer in enumerate(network["features"].double()):
        x = found[i] = layer(x)
    save("vgg_torch.npz", {name: found[names[name]].detach().permute(0, 2, 3, 1).numpy() for name in LAYERS})


def write_keras() -> None:
    import keras

    keras.utils.set_random_seed(0)
    outputs, x = {}, keras.Input((None, None, 3))
    first = x
    for block, (count, width) in enumerate(zip((2, 2, 4, 4, 4), WIDTHS, strict=True), 1):
        for i in range(1, count + 1):
            layer = keras.layers.Conv2D(
                width, 3, padding="same", activation="relu", name=f"block{block}_conv{i}", bias_initializer="normal"
            )
            x = outputs[f"conv{block}_{i}"] = layer(x)
        x = keras.layers.MaxPooling2D((2, 2), (2, 2), name=f"block{block}_pool")(x)
    model = keras.Model(first, keras.layers.Dense(4, name="predictions")(x), name="vgg19")
    model.compile("adam")
    model.save(FOLDER / "vgg19_keras_model.h5")
    model.save_weights(FOLDER / "vgg19_keras.weights.h5")
    inputs = keras.applications.vgg19.preprocess_input(255 * PICTURE.copy())
    found = keras.Model(first, [outputs[name] for name in LAYERS]).predict(inputs, verbose=0)
    save("vgg_keras.npz", dict(zip(LAYERS, found, strict=True)))


def save(name: str, activations: dict[str, np.ndarray]) -> None:
    arrays = {layer: value.astype(np.float32) for layer, value in activations.items()}
    np.savez_compressed(FOLDER / name, **arrays | {"conv1_1": arrays["conv1_1"][:, ::3, ::3]})


if __name__ == "__main__":
    {"torch": write_torch, "keras": write_keras}[sys.argv[1]]()
