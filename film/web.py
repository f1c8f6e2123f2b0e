"""`film web`: photos or a video are dropped on a page, which makes a clip by the functions of the command, and shows
it, each of its frames under a slider, and the network's flow."""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from common.io.images import READABLE, image_size, read_image, shrink, to_uint8, write_image
from common.io.video_reader import read_video
from common.web import BAR, EXAMPLES, QUEUE, cancel, folder, gr, job, one_line
from film.clip import compute_plan, run
from film.interpolator import Frame
from film.io.options import Options
from film.io.plan import make_plan
from film.io.pretrained import SHIPPED
from film.io.weights import load
from film.model import Film

MOST_FRAMES = 1000  # of a clip
SHOWN = 65  # frames under the slider
PREVIEW = 320  # longer side of a preview in pixels
MOST_FILES = 24
PAIR = [str(EXAMPLES / f"cup_{number}.jpg") for number in (0, 1)]


class Clips:
    """Makes clips by the shipped weights, and by `weights` as of `film.load`, which come first in `choices`."""

    def __init__(self, weights: str | None):
        self.network = functools.lru_cache(maxsize=2)(load)
        self.weights = weights
        self.choices = list(dict.fromkeys([weights or SHIPPED.default, *SHIPPED.names()]))
        self.load(self.choices[0])  # wrong weights are refused before the page is there

    def load(self, name: str) -> Film:
        return self.network(name if name == self.weights else SHIPPED.folder / name)

    def make(
        self,
        files: list[str] | None,
        frames: int,
        factor: float,
        slow: bool,
        size: str,
        suffix: str,
        name: str,
        flow: bool,
        request: gr.Request,
        progress: gr.Progress = BAR,
    ) -> list[Any]:
        """The clip, its frames, the flow of its first gap and what was made, as the page shows them."""
        with job(request, progress) as step:
            if not files:
                raise ValueError("nothing to make a clip of: drop two photos or more, or one video")
            target = folder(request)
            movie = is_movie(files)
            given: dict[str, Any] = {"factor": str(factor), "slow_motion": slow}
            if not movie:
                given = {"frames": int(frames), "fit": "crop" if len(set(map(image_size, files))) > 1 else None}
            sheet = str(target / "flow.png") if flow else None
            plan = make_plan(files, target / f"film{suffix}", Options(size=size, inspect=sheet, **given))
            if plan.frames is None or plan.frames > MOST_FRAMES:
                raise ValueError(
                    f"the clip would have {plan.frames or 'any number of'} frames, more than {MOST_FRAMES} of"
                    " this page: take fewer, or the `film` command"
                )
            chosen = np.linspace(0, plan.frames - 1, min(SHOWN, plan.frames)).round()
            stills: list[str] = []

            def keep(number: int, image: Frame) -> None:
                """A file of each frame under the slider. Not all formats of clips can be read again."""
                if number in chosen:
                    stills.append(str(target / f"frame_{number:04d}.jpg"))
                    write_image(stills[-1], image)

            model = self.load(name)
            run(model, plan, compute_plan(model, plan), progress=step, look=keep)
        clip = str(plan.output)
        is_video = suffix == ".mp4"
        middle = len(stills) // 2
        return [
            gr.Video(clip if is_video else None, visible=is_video),
            gr.Image(None if is_video else clip, visible=not is_video),
            gr.DownloadButton(value=clip, visible=True),
            stills,
            gr.Slider(0, len(stills) - 1, middle, visible=True),
            gr.Image(stills[middle], visible=True),
            gr.Image(sheet, visible=flow),
            str(plan).rsplit(" -> ", 1)[0],
        ]


def page(weights: str | None = None) -> gr.Blocks:
    clips = Clips(weights)
    with gr.Blocks() as blocks:
        gr.Markdown("# FILM\nNew frames between two photos, or between the frames of a video.")
        with gr.Row():
            with gr.Column(scale=2, min_width=320):
                files = gr.File(label="Two photos or more, or one video", file_count="multiple", height=130)
                preview = gr.Gallery(
                    label="In this order", columns=2, height=210, object_fit="contain", visible=False, buttons=[]
                )
                frames = gr.Slider(1, 63, 15, step=1, label="New frames between two photos")
                factor = gr.Slider(2, 8, 2, step=0.5, label="Times as many frames", visible=False)
                slow = gr.Checkbox(True, label="Slow motion: as many frames a second as before", visible=False)
                with gr.Accordion("More", open=False):
                    size = gr.Dropdown(["480", "640", "960", "1280", "1920"], value="640", label="Longer side, pixels")
                    suffix = gr.Radio([".mp4", ".gif", ".webp"], value=".mp4", label="File")
                    name = gr.Dropdown(clips.choices, value=clips.choices[0], label="Weights")
                    flow = gr.Checkbox(False, label="Show the flow of the first gap")
                with gr.Row():
                    start = gr.Button("Make the clip", variant="primary", min_width=140)
                    stop = gr.Button("Cancel", min_width=90)
                if Path(PAIR[0]).is_file():
                    gr.Examples([[PAIR]], files, label="An example")
            with gr.Column(scale=3, min_width=320):
                video = gr.Video(label="Clip", autoplay=True, loop=True, buttons=[])
                animation = gr.Image(label="Clip", visible=False, interactive=False, buttons=["download"])
                about = gr.Markdown(elem_classes="hint")
                save = gr.DownloadButton("Download the clip", visible=False)
                place = gr.Slider(0, 1, 0, step=1, label="Frame", visible=False)
                still = gr.Image(
                    label="One frame", elem_id="one-frame", visible=False, interactive=False, buttons=["download"]
                )
                sheet = gr.Image(
                    label="Flow, warped photos, and which was taken where",
                    visible=False,
                    interactive=False,
                    buttons=["fullscreen"],
                )
        stills = gr.State([])
        outputs = [video, animation, save, stills, place, still, sheet, about]
        files.change(show, files, [preview, frames, factor, slow], show_progress="hidden")
        inputs = [files, frames, factor, slow, size, suffix, name, flow]
        work = start.click(clips.make, inputs, outputs, concurrency_id=QUEUE, show_progress_on=[video, animation])
        stop.click(cancel, cancels=[work], queue=False)
        place.change(lambda paths, number: paths[int(number)], [stills, place], still, show_progress="hidden")
    return blocks


def is_movie(files: list[str]) -> bool:
    return len(files) == 1 and Path(files[0]).suffix.lower() not in READABLE


def show(files: list[str] | None) -> list[Any]:
    """Small images of what was dropped, and the options that fit."""
    files = files or []
    if len(files) > MOST_FILES:
        raise gr.Error(
            f"{len(files)} files: drop at most {MOST_FILES}, or take the `film` command", print_exception=False
        )
    movie = is_movie(files)

    def small(path: str) -> tuple[np.ndarray, str]:
        image = next(read_video(path)).image if movie else read_image(path)
        return to_uint8(shrink(image, PREVIEW)), Path(path).name

    try:
        images = list(map(small, files))  # one large image at a time
    except (ValueError, OSError, StopIteration) as error:
        raise one_line(error) from error
    return [
        gr.Gallery(images, visible=bool(files)),
        gr.Slider(visible=not movie),
        gr.Slider(visible=movie),
        gr.Checkbox(visible=movie),
    ]
