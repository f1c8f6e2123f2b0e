"""Values that a network would take in silence are refused by name, before anything is traced."""

import jax
import jaxtyping
import numpy as np
import pytest
from assistants import with_memory
from networks import folder
from refusal import refused
from tiny_base import diffusion_base
from toy import toy

from common.io.images import check_image
from film.interpolator import interpolate
from film.model import Film, check_frame
from plugins.conditions.registry import make
from plugins.control.loading import load
from reveal.assistant import Assistant

FRAME = np.linspace(0, 1, 16 * 16 * 3, dtype=np.float32).reshape(16, 16, 3)


@pytest.fixture(autouse=True)
def no_annotations(monkeypatch):
    """The tests check annotations of shapes at each call; users do not, and see the project's own errors."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="module")
def model() -> Film:
    return toy()


@pytest.mark.parametrize(("frame", "value"), [
    ((FRAME * 255).astype(np.uint8), "255"),
    ((FRAME * 65535).astype(np.uint16), "65535"),
    (np.dstack([FRAME, FRAME[..., :1]]), "[..., :3]"),
    (FRAME[..., :1], "repeat"),
    (FRAME[..., 0], "(16, 16)"),
    (FRAME * 255, "255"),
    (np.where(FRAME > 0.5, np.nan, FRAME).astype(np.float32), "nan"),
    (np.where(FRAME > 0.5, np.inf, FRAME).astype(np.float32), "inf"),
])  # fmt: skip
def test_frames(frame, value):
    assert value in refused(ValueError, check_frame, "x0", frame)


def test_frames_that_a_network_made_pass():
    check_frame("x0", FRAME * 1.5 - 0.2)
    jax.jit(lambda frame: check_frame("x0", frame))(FRAME)


@pytest.mark.parametrize("time", [-0.1, 1.01, float("nan"), np.array([[0.5], [2.0]], np.float32)])
def test_times(model, time):
    batch = np.stack([FRAME] * 2)
    assert "time" in refused(ValueError, model, batch, batch, time)


def test_the_model_and_the_interpolator_check(model):
    assert "x1" in refused(ValueError, model, FRAME[None], FRAME[None] * 255)
    assert "second" in refused(ValueError, list, interpolate(model, [FRAME, FRAME * np.float32(255)]))


WRONG = {
    "bytes": ((FRAME * 255).astype(np.uint8), "uint8"),
    "0 to 255": (FRAME * 255, "255"),
    "alpha": (np.dstack([FRAME, FRAME[..., :1]]), "(16, 16, 4)"),
    "grey": (FRAME[..., 0], "(16, 16)"),
    "NaN": (np.where(FRAME > 0.5, np.nan, FRAME).astype(np.float32), ""),
    "negative": (FRAME - 0.5, ""),
    "nothing": (FRAME[:0], "(0, 16, 3)"),
}


@pytest.fixture(scope="module")
def assistant(tmp_path_factory) -> Assistant:
    place = with_memory(tmp_path_factory.mktemp("w"), 20)
    return Assistant.load(place / "weights.safetensors", memory=place / "facts")


@pytest.mark.parametrize("kind", WRONG)
def test_pictures(assistant, kind):
    picture, value = WRONG[kind]
    assert value in refused(ValueError, check_image, "x", picture)
    for call in (
        lambda: make("canny", picture),
        lambda: load(folder("t2i_adapter")).on(picture),
        lambda: diffusion_base()("a", image=picture, strength=0.5, steps=2),
        lambda: assistant.ask(picture, "what is it", k=2),
    ):
        refused(ValueError, call)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"seeds": 1.5}, "1.5"),
        ({"steps": 0}, "0"),
        ({"steps": 10**6}, "1000000"),
        ({"height": -16, "width": 16}, "-16"),
        ({"image": FRAME, "strength": 1.5, "steps": 2}, "1.5"),
    ],
)
def test_generation(options, value):
    assert value in refused(ValueError, diffusion_base(), ["a", "b"], **options)


def test_an_empty_prompt_is_a_prompt_and_no_prompt_is_refused():
    assert np.isfinite(diffusion_base()("", steps=2)).all()
    refused(ValueError, diffusion_base(), [], steps=2)


@pytest.mark.parametrize("k", [0, -1, 21, 10**9])
def test_more_items_than_there_are(assistant, k):
    assert str(k) in refused(ValueError, assistant.search, None, "what", k)
    if k:
        assert str(k) in refused(ValueError, assistant.ask, None, "what is it", k)


def test_questions(assistant):
    size = assistant.processor.image_size
    assert f"{size}x{size}" in refused(ValueError, assistant.ask, np.zeros((3, 5, 3), np.float32), "what", 2)
    refused(ValueError, assistant.search, None, " ")
    refused(ValueError, assistant.ask, None, "what " * 500, 2)
    refused(ValueError, assistant.ask, None, "what", 2, ["nowhere"])
    memory = assistant.memory
    width = memory.layout.key_dim
    query = np.ones((1, width), np.float32)
    for wrong in (query * np.nan, query[0], query[:, 1:]):
        refused(ValueError, memory.search, wrong, 2)
    refused(ValueError, memory.search, query, 0)
    refused(ValueError, memory.add, memory.items([memory.rows().ids[0]])[:1], query * np.nan, memory.values([0]))
    assert (memory.search(query, 30).ids[0, 20:] == -1).all()
