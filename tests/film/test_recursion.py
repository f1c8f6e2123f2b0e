"""Recursion: the reference's frames, and each promise of the module: encoded once, lazy, bounded, inputs unchanged."""

import gc
import itertools
import types
import weakref

import numpy as np
import pytest
import recipe
from film.recursion import Interpolator, interpolate
from toy import toy as make_toy

from film.model import Film

SIZE = (16, 24)


@pytest.fixture(scope="module")
def tiny() -> Film:
    return recipe.model("tiny")


@pytest.fixture(scope="module")
def inference() -> dict[str, np.ndarray]:
    return dict(np.load(recipe.DATA / "tiny_inference.npz"))


@pytest.fixture(scope="module")
def toy() -> Film:
    return make_toy()


def photos(count: int, size: tuple[int, int] = SIZE) -> list[np.ndarray]:
    return list(np.random.default_rng(7).random((count, *size, 3)).astype(np.float32))


@pytest.fixture
def encodings(monkeypatch):
    """A record of `Interpolator.encode`: which frames were encoded, and how many encodings are and were alive."""

    record, encode = types.SimpleNamespace(frames=[], alive=0, most=0), Interpolator.encode

    def gone() -> None:
        record.alive -= 1

    def recorded(interpolator, frame):
        record.frames.append(np.asarray(frame).tobytes())
        encoded = encode(interpolator, frame)
        record.alive += 1
        record.most = max(record.most, record.alive)
        weakref.finalize(encoded.packs[0], gone)
        return encoded

    monkeypatch.setattr(Interpolator, "encode", recorded)
    return record


@pytest.mark.parametrize("batch", [1, 4])
def test_nine_frames_equal_the_reference(tiny, inference, batch):
    given = np.stack([recipe.scene(64, 64, 0), recipe.scene(64, 64, 1), recipe.scene(64, 64, 0)[::-1]])
    frames = list(interpolate(tiny, given, times=2, batch=batch))
    np.testing.assert_allclose(recipe.sampled(np.stack(frames)), inference["rec_times2_out"], atol=2e-5)
    np.testing.assert_array_equal(frames[::4], given)


def test_padding_to_64_equals_the_reference(tiny, inference):
    given = [recipe.scene(100, 150, 0), recipe.scene(100, 150, 1)]
    x0, middle, x1 = interpolate(tiny, given, times=1, align=64)
    np.testing.assert_allclose(recipe.sampled(middle), inference["pad_out"][0], atol=2e-5)
    np.testing.assert_array_equal([x0, x1], given)


@pytest.mark.parametrize(("size", "align", "padding"), [((100, 150), 64, (14, 14, 21, 21)), ((7, 17), 4, (0, 1, 1, 2))])
def test_the_odd_pixel_of_the_padding_goes_after(toy, size, align, padding):
    assert sum(Interpolator(toy, size, align=align).padding, ()) == padding


@pytest.mark.parametrize(("inputs", "times"), [(2, 0), (4, 1), (3, 3)])
def test_the_number_of_frames(toy, inputs, times):
    given = photos(inputs)
    frames = list(interpolate(toy, given, times))
    assert len(frames) == (inputs - 1) * 2**times + 1
    np.testing.assert_array_equal(frames[:: 2**times], given)
    assert all(frame.shape == (*SIZE, 3) and frame.dtype == np.float32 for frame in frames)


@pytest.mark.parametrize("batch", [1, 8])
def test_no_frame_is_encoded_twice_and_the_last_level_never(toy, encodings, batch):
    frames = [frame.tobytes() for frame in interpolate(toy, photos(3), 3, batch=batch)]
    assert len(set(frames)) == 17
    assert sorted(encodings.frames) == sorted(frames[::2])  # the odd ones are of the last level


def test_inputs_are_consumed_as_needed_up_to_a_bad_one(toy):
    consumed = []

    def source():
        for number, photo in enumerate([*photos(3), *photos(1, (8, 8))]):
            consumed.append(number)
            yield photo

    frames = interpolate(toy, source(), times=1)
    assert consumed == []
    needed = [len(consumed) for _ in itertools.islice(frames, 5)]
    assert needed == [1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match="8x8"):
        next(frames)


@pytest.mark.parametrize(("batch", "most"), [(1, 6), (4, 8)])
def test_few_encodings_are_alive_however_many_frames_come(toy, encodings, batch, most):
    for _ in itertools.islice(interpolate(toy, itertools.cycle(photos(3)), times=4, batch=batch), 70):
        pass
    gc.collect()
    assert len(encodings.frames) >= 35 and encodings.most <= most and encodings.alive == 0


@pytest.mark.parametrize(
    ("frames", "options", "value"),
    [
        ([], {}, "no frames"),
        (photos(1), {}, "one frame"),
        ([*photos(2), *photos(1, (16, 23))], {}, "frame 3 is 23x16, the first 24x16"),
        (photos(2, (1, 1)), {}, "1x1"),
        *(
            (None, {name: value}, f"{name}={value}")
            for name, value in (("times", -1), ("times", 17), ("batch", 0), ("align", 0))
        ),
    ],
)
def test_unfit_inputs_and_numbers_are_refused(toy, frames, options, value):
    """Numbers at the call: before any frame is asked for."""
    with pytest.raises(ValueError, match=value):
        list(interpolate(toy, iter(frames), **options)) if frames is not None else interpolate(toy, iter(()), **options)
