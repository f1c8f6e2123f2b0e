"""The controls of `plugins generate`: from its words to what a pipeline is given.

    --control canny --image photo.jpg                      the plugin that comes for it, on the photo's edges
    --control canny depth --plugin A B --image photo.jpg   two at once
    --plugin A --condition edges.png                       a condition picture as it is
    --control plug_and_play --image photo.jpg              no plugin is needed

A photo is scaled to cover the picture that is asked for, and cropped from its middle, before its condition is made: a
plugin saw conditions of pictures of that size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float

from common import terminal
from common.io.images import read_image
from plugins.cli.commands import PLUG_AND_PLAY, Generate
from plugins.conditions.registry import emptiness, make
from plugins.control import pretrained
from plugins.control.loading import load
from plugins.control.plug_and_play import PlugAndPlay
from plugins.diffusion.io.base import Base


def controls_of(command: Generate, base: Base) -> list[Any]:
    """What `Pipeline` takes as `controls`. Raises ValueError and OSError in one line."""
    kinds = check_words(command)
    if not kinds:
        return []
    height, width = command.height or base.side, command.width or base.side
    strengths = spread(command.control_strength or (1.0,), len(kinds))
    steps = command.control_steps or (0.0, 1.0)
    plugins, controls = list(command.plugin), []
    for i, (kind, strength) in enumerate(zip(kinds, strengths, strict=True)):
        if kind in PLUG_AND_PLAY:
            picture = covering(read_image(str(command.image)), height, width)
            controls.append(PlugAndPlay(picture, strength=strength, steps=steps, prompt_only=command.prompt_only))
            continue
        network = load(plugins.pop(0) if plugins else shipped(str(kind)))
        picture = condition(command, kind, i, height, width)
        half = command.prompt_only or None  # without the word it is as the network is meant
        controls.append(network.on(picture, strength=strength, steps=steps, prompt_only=half))
    return controls


def check_words(command: Generate) -> list[str | None]:
    """The kind of each control, None for a condition that is given as it is. ValueError for words that clash."""
    if not command.control and not command.plugin:
        stray = [name for name in ("condition", "control_strength", "control_steps") if getattr(command, name)]
        if stray or command.prompt_only:
            name = (stray or ["prompt_only"])[0].replace("_", "-")
            raise ValueError(f"--{name} is about a control; add --control canny, or --plugin FOLDER")
        return []
    if command.strength is not None:
        raise ValueError(f"--strength {command.strength:g} redraws a picture; a control takes --control-strength")
    kinds: list[str | None] = list(command.control) or [None] * len(command.plugin)
    networks = [kind for kind in kinds if kind not in PLUG_AND_PLAY]
    if command.plugin and len(command.plugin) != len(networks):
        raise ValueError(f"{len(command.plugin)} plugins for {len(networks)} controls; give one --plugin for each")
    if command.condition and len(command.condition) != len(networks):
        raise ValueError(f"{len(command.condition)} conditions for {len(networks)} controls; give one for each")
    if command.image is None and (not command.condition or set(kinds) & {*PLUG_AND_PLAY}):
        raise ValueError("a control needs a picture to look at; give --image PHOTO, or --condition EDGES")
    return kinds


def condition(command: Generate, kind: str | None, i: int, height: int, width: int) -> Float[np.ndarray, "h w 3"]:
    """The condition picture of control `i`: given, or made of the photo."""
    if command.condition:
        place = sum(other not in PLUG_AND_PLAY for other in command.control[:i])
        return covering(read_image(command.condition[place]), height, width)
    if kind is None:
        raise ValueError("--plugin does not say what it looks for in --image; add --control canny, or give --condition")
    picture = make(kind, covering(read_image(str(command.image)), height, width))
    if (told := emptiness(kind, picture)) and not command.quiet:
        terminal.complain(f"{command.image}: {told} (`plugins condition` has these options)")
    return picture


def shipped(kind: str) -> str:
    """The plugin that comes for this kind. Raises FileNotFoundError if none does."""
    name = f"{kind}-small"
    if name not in pretrained.names():
        there = ", ".join(pretrained.names()) or "none"
        raise FileNotFoundError(f"no plugin for {kind} comes with the program ({there}); name one with --plugin")
    return name


def spread(values: Sequence[float], count: int) -> list[float]:
    """One for all, or one each. Raises ValueError."""
    if len(values) not in (1, count):
        raise ValueError(f"{len(values)} strengths for {count} controls; give one for all, or one for each")
    return [float(values[i % len(values)]) for i in range(count)]


def covering(image: Float[np.ndarray, "_ _ 3"], height: int, width: int) -> Float[np.ndarray, "h w 3"]:
    """Scaled so that it covers height x width, and cut from its middle."""
    h, w, _ = image.shape
    scale = max(height / h, width / w)
    size = max(width, round(w * scale)), max(height, round(h * scale))
    if size != (w, h):
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
    top, left = (size[1] - height) // 2, (size[0] - width) // 2
    return np.clip(image[top : top + height, left : left + width], 0, 1)
