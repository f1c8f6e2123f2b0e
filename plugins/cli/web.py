"""`plugins web`: a page on which a drawing or a photo steers a diffusion model.

The condition appears while one draws; images of several controls stand below each other, their seeds side by side. It
runs what `plugins generate` runs: `conditions.make`, `control.load`, `Pipeline.run`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from common.io.images import from_uint8, place, to_uint8
from common.web import BAR, EXAMPLES, QUEUE, cancel, gr, job, one_line, serve
from plugins.cli.commands import Web
from plugins.conditions.registry import CONDITIONS, OF_IMAGE, emptiness, make
from plugins.control.loading import CONTROLS, load
from plugins.control.plug_and_play import PlugAndPlay
from plugins.diffusion.io.base import BASES, read_base
from plugins.diffusion.pipeline import from_files
from plugins.diffusion.request import make_request

PROMPT_ALONE, PLUG_AND_PLAY = "prompt alone", "plug_and_play"
MOST_SEEDS, MOST_STEPS = 4, 50
# Parameters; up to here the bar moves batch by batch, as compiled functions that report their steps are not cached.
SMALL = 50_000_000
APPLE = EXAMPLES / "apple.png"

Image = Float[np.ndarray, "h w 3"]


class Studio:
    """A base with its plugins, and what the page computes with them. Raises as `plugins generate`."""

    def __init__(self, command: Web):
        files = read_base(command.base, tokenizer=command.tokenizer, prediction=command.prediction, vae=command.vae)
        self.base, self.side, self.stepwise = files.base, files.base.side, files.parameters > SMALL
        self.pipeline = from_files(files, command.dtype)
        self.networks = networks_of(command, files.path)
        self.methods = [PROMPT_ALONE, *self.networks, PLUG_AND_PLAY]
        self.about = f"{files.path.name}, {files.parameters / 1e6:,.1f} M parameters, {self.side}x{self.side} pixels"

    def conditions(self, drawing: Mapping[str, Any] | None) -> list[tuple[Any, str]]:
        """The condition images of a drawing, for all plugins."""
        source = picture_of(drawing)
        if source is None:
            return []
        try:
            source = place(source, (self.side, self.side), "crop")
            return [(to_uint8(make(kind, source, **options_of(kind, drawing))), kind) for kind in self.networks]
        except (ValueError, ImportError) as error:
            raise one_line(error) from error

    def generate(
        self,
        drawing: Mapping[str, Any] | None,
        prompt: str,
        chosen: list[str],
        strength: float,
        seeds: int,
        negative: str,
        guidance: float,
        steps: int,
        seed: int,
        request: gr.Request,
        progress: gr.Progress = BAR,
    ) -> tuple[Any, str]:
        """The images of all chosen controls, a row each, and what they were made with."""
        with job(request, progress) as step:
            source = picture_of(drawing)
            if not chosen:
                raise ValueError("no control is chosen: choose one or more, or the prompt alone")
            if source is None and chosen != [PROMPT_ALONE]:
                raise ValueError("a control needs an image: draw or upload one, or choose the prompt alone")
            source = None if source is None else place(source, (self.side, self.side), "crop")
            first = int(seed or 0)  # an emptied field is None
            seeds_of_all = range(first, first + int(seeds))
            images = []
            chosen = [method for method in self.methods if method in chosen]
            for number, method in enumerate(chosen):
                checked = make_request(
                    self.base,
                    prompt,
                    negative=negative,
                    seeds=seeds_of_all,
                    controls=[] if source is None else self.controls(method, source, drawing, strength),
                    steps=int(steps),
                    guidance=guidance,
                    sampler="ddim" if method == PLUG_AND_PLAY else None,  # the only one with an inversion
                )
                for line in checked.truncated:
                    gr.Warning(line)

                def show(done: int, total: int, number: int = number) -> None:
                    step(number * total + done, len(chosen) * total)

                rows = np.concatenate(list(self.pipeline.run(checked, progress=show, stepwise=self.stepwise)))
                images += [(to_uint8(row), f"{method}, seed {n}") for row, n in zip(rows, seeds_of_all, strict=True)]
        return gr.Gallery(images, columns=int(seeds)), f"{self.about}, {int(steps)} steps"

    def controls(self, method: str, source: Image, drawing: Mapping[str, Any] | None, strength: float) -> list[Any]:
        """The control of a method, none for the prompt alone."""
        if method == PROMPT_ALONE:
            return []
        if method == PLUG_AND_PLAY:
            return [PlugAndPlay(source, strength=min(strength, 1.0))]
        condition = make(method, source, **options_of(method, drawing))
        if warning := emptiness(method, condition):
            gr.Warning(warning)
        return [self.networks[method].on(condition, strength=strength)]


def page(command: Web) -> gr.Blocks:
    """The page of a base and its plugins. Raises as `Studio`."""
    studio = Studio(command)
    with gr.Blocks() as blocks:
        gr.Markdown("# Control plugins\nA drawing or a photo steers a text-to-image model.")
        with gr.Row():
            with gr.Column(scale=2, min_width=320):
                drawing = gr.ImageEditor(
                    label="Draw, or upload",
                    sources=["upload", "clipboard"],
                    brush=gr.Brush(default_size=12, colors=["#111111", "#c0392b", "#2e7d32", "#1565c0"]),
                    layers=False,
                    transforms=[],
                    canvas_size=(512, 512),
                    height=420,
                )
                condition = gr.Gallery(
                    label="Conditions",
                    columns=2,
                    object_fit="contain",
                    buttons=[],
                    visible=bool(studio.networks),
                )
                prompt = gr.Textbox("green apple, 3d emoji", label="Prompt", max_length=1000)
                first = [*studio.networks, PROMPT_ALONE][:1]
                chosen = gr.CheckboxGroup(studio.methods, value=first, label="Controls, to compare")
                strength = gr.Slider(0, 1.5, 1, step=0.05, label="Strength")
                seeds = gr.Slider(1, MOST_SEEDS, 2, step=1, label="Images of each")
                with gr.Accordion("More", open=False):
                    negative = gr.Textbox("", label="What to avoid", max_length=1000)
                    guidance = gr.Slider(1, 15, 5, step=0.5, label="Guidance")
                    steps = gr.Slider(4, MOST_STEPS, 20, step=1, label="Steps")
                    seed = gr.Number(0, minimum=0, maximum=2**31, precision=0, label="First seed")
                with gr.Row():
                    start = gr.Button("Generate", variant="primary", min_width=140)
                    stop = gr.Button("Cancel", min_width=90)
            with gr.Column(scale=3, min_width=320):
                results = gr.Gallery(label="Images", height="auto", object_fit="contain")
                about = gr.Markdown(studio.about, elem_classes="hint")
                if APPLE.is_file():
                    gr.Examples([[str(APPLE), "green apple, 3d emoji"]], [drawing, prompt], label="An example")
        inputs = [drawing, prompt, chosen, strength, seeds, negative, guidance, steps, seed]
        for event in (drawing.change, drawing.upload):
            event(studio.conditions, drawing, condition, show_progress="hidden", trigger_mode="always_last")
        work = start.click(studio.generate, inputs, [results, about], concurrency_id=QUEUE, show_progress_on=results)
        stop.click(cancel, cancels=[work], queue=False)
    return blocks


def networks_of(command: Web, base: Path) -> dict[str, Any]:
    """By kind of condition: the command's plugins, or for the shipped `base` the shipped ones. Raises ValueError."""
    if base.resolve() == BASES.find().resolve() and not command.plugin:
        return {name.removesuffix("-small"): load(CONTROLS.folder / name) for name in CONTROLS.names()}
    given = {kind: path for kind, _, path in (one.partition("=") for one in command.plugin)}
    if wrong := [kind for kind, path in given.items() if kind not in CONDITIONS or not path]:
        raise ValueError(f"--plugin {wrong[0]}: write KIND=PLUGIN, with a kind of {', '.join(CONDITIONS)}")
    return {kind: load(path) for kind, path in given.items()}


def picture_of(drawing: Mapping[str, Any] | None) -> Image | None:
    """What was drawn or uploaded, on white, RGB in [0, 1]; None: nothing."""
    composite = None if drawing is None else drawing["composite"]
    if composite is None or not composite[..., 3].any():
        return None
    rgba = from_uint8(np.asarray(composite))
    return rgba[..., :3] * rgba[..., 3:] + 1 - rgba[..., 3:]


def options_of(kind: str, drawing: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of a condition: without an uploaded image, a scribble is the strokes of the brush themselves."""
    background = None if drawing is None else drawing.get("background")
    drawn = kind == "scribble" and (background is None or not background[..., 3].any())
    return {"drawing": True} if drawn else dict(OF_IMAGE.get(kind, {}))


def web(command: Web) -> None:
    """Serves the page until Ctrl-C. Raises as `page`, and OSError for a port that is taken."""
    serve(lambda: page(command), command.serving, "Control plugins")
