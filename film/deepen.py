"""Weights for a network with more convolutions in its flow predictors than they were trained with.

New convolutions stand behind the last 3x3 one and begin as identities (Chen et al., Net2Net, ICLR 2016), each channel's
own tap being 1. Only what is negative changes, which another leaky ReLU shrinks again; a training has to go on from
there.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from flax import nnx

from common.training.task import Params
from film.model import Film, FilmConfig


def deepened(model: Film, config: FilmConfig) -> Params:
    """The parameters of `model` for a network of shape `config`; its own where the shapes are equal.

    Raises ValueError unless the two differ in nothing but `flow_convs`, none of which is smaller in `config`.
    """
    old, new = model.config.flow_convs, config.flow_convs
    alike = len(old) == len(new) and dataclasses.replace(config, flow_convs=old) == model.config
    if not alike or any(after < before for before, after in zip(old, new, strict=True)):
        raise ValueError(f"these are weights of {model.config}, which cannot be made those of {config}")
    params = nnx.to_pure_dict(nnx.state(model))
    for number, (before, after) in enumerate(zip(old, new, strict=True)):
        convs = params["flow"]["predictors"][number]["convs"]
        layers = [convs[i] for i in sorted(convs)]
        width = layers[before - 1]["bias"].shape[0]
        layers[before:before] = [_identity(width) for _ in range(after - before)]
        params["flow"]["predictors"][number]["convs"] = dict(enumerate(layers))
    return params


def _identity(width: int) -> Params:
    kernel = np.zeros((3, 3, width, width), np.float32)
    kernel[1, 1] = np.eye(width)
    return {"kernel": kernel, "bias": np.zeros(width, np.float32)}
