"""The controls of `plugins generate`, from its options.

    --control canny --image photo.jpg                      the shipped plugin, on the photo's edges
    --control depth --image object.png                     on the inflated silhouette; or --condition depth.png
    --control canny depth --plugin A B --image photo.jpg   two plugins
    --plugin A --condition edges.png                       a finished condition image
    --plugin A --condition edges.png --image photo.jpg     the same, starting from the photo
    --control plug_and_play --image photo.jpg              needs no plugin
    --image-prompt photo.jpg --ip-adapter A                a picture as part of the prompt

The photo is resized to cover the output's size and cropped at its centre before its condition is made, because plugins
were trained so. Where the base repairs or edits the photo, that size is the photo's.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from common import terminal
from common.io.images import place, read_image
from plugins.cli.commands import PLUG_AND_PLAY, Generate
from plugins.conditions.registry import OF_IMAGE, emptiness, make
from plugins.control.ip_adapter import load_ip_adapter
from plugins.control.loading import load
from plugins.control.plug_and_play import PlugAndPlay
from plugins.diffusion.io.base import TEXT_TO_IMAGE, Base

Image = Float[np.ndarray, "h w 3"]


def make_controls(command: Generate, base: Base, image: Image | None) -> list[Any]:
    """The `controls` of a pipeline, from `--image`. Raises ValueError and OSError."""
    kinds = control_kinds(command)
    source_only = reads_image(command) and base.task == TEXT_TO_IMAGE
    if source_only and command.strength is not None:
        raise ValueError(f"--strength {command.strength:g} is for image to image; a control has --control-strength")
    if len(command.control_strength) not in (0, 1, len(kinds)):
        given = f"{len(command.control_strength)} strengths for {len(kinds)} controls"
        raise ValueError(f"--control-strength: {given}; give one for all, or one for each")
    strengths = command.control_strength or (1.0,)
    own = (base.side, base.side) if image is None or source_only else image.shape[:2]
    size = command.width or own[1], command.height or own[0]
    source: Any = place(image, size, "crop") if image is not None and reads_image(command) else None
    steps = command.control_steps or (0.0, 1.0)
    plugins, conditions = iter(command.plugin), iter(command.condition)
    controls = []
    for i, kind in enumerate(kinds):
        strength = strengths[i % len(strengths)]
        if kind in PLUG_AND_PLAY:
            controls.append(PlugAndPlay(source, strength=strength, steps=steps, prompt_only=command.prompt_only))
            continue
        network = load(next(plugins, None) or f"{kind}-small")
        trained_on = getattr(network.config, "condition", None)
        if None not in (kind, trained_on) and kind != trained_on:
            raise ValueError(f"--control {kind}: this plugin was trained on {trained_on}; add --control {trained_on}")
        if command.condition:
            condition = place(read_image(next(conditions)), size, "crop")
        else:
            condition = make(str(kind), source, **OF_IMAGE.get(str(kind), {}))
            if (warning := emptiness(str(kind), condition)) and not command.quiet:
                terminal.complain(f"{command.image}: {warning} (`plugins condition` has these options)")
        prompt_only = command.prompt_only or None  # None: as the network was trained
        controls.append(network.on(condition, strength=strength, steps=steps, prompt_only=prompt_only))
    return controls


def reads_image(command: Generate) -> bool:
    """Whether a control takes its condition, or the layout, from --image."""
    return not PLUG_AND_PLAY.isdisjoint(command.control) or bool(command.control and not command.condition)


def make_image_prompt(command: Generate) -> list[Any]:
    """The control of --image-prompt, if it is given. Raises ValueError and OSError."""
    if command.image_prompt is None:
        unset = {"ip_adapter": None, "image_encoder": None, "image_prompt_strength": 1.0}
        if given := [name.replace("_", "-") for name, value in unset.items() if getattr(command, name) != value]:
            raise ValueError(f"--{given[0]} reads an image prompt; add --image-prompt IMAGE")
        return []
    if command.ip_adapter is None:
        raise ValueError("--image-prompt needs a network that reads it; add --ip-adapter FILE")
    adapter = load_ip_adapter(command.ip_adapter, command.image_encoder)
    return [adapter.on(read_image(command.image_prompt), strength=command.image_prompt_strength)]


def control_kinds(command: Generate) -> list[str | None]:
    """The kind of each control, None for a plugin with a finished condition. Raises ValueError if options conflict."""
    if not command.control and not command.plugin:
        for name in ("condition", "control_strength", "control_steps", "prompt_only"):
            if getattr(command, name):
                option = name.replace("_", "-")
                raise ValueError(f"--{option} is an option of a control; add --control canny, or --plugin FOLDER")
        return []
    kinds: list[str | None] = list(command.control) or [None] * len(command.plugin)
    networks = [kind for kind in kinds if kind not in PLUG_AND_PLAY]
    for name, values in (("plugin", command.plugin), ("condition", command.condition)):
        if values and len(values) != len(networks):
            raise ValueError(f"{len(values)} {name}s for {len(networks)} controls; give one --{name} for each")
    if command.image is None and (not command.condition or len(networks) < len(kinds)):
        raise ValueError("a control needs an image; give --image PHOTO, or --condition EDGES")
    if not command.control and not command.condition:
        raise ValueError("--plugin does not say which condition of --image it needs; add --control, or --condition")
    return kinds
