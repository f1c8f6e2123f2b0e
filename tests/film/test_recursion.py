"""Recursion: the reference's frames, and each promise of the module: once encoded, lazy, bounded, exact inputs."""

import gc
import itertools
import weakref

import numpy as np
import pytest
import recipe
from toy import toy as make_toy

import film
from film.model import Film
from film.recursion import Interpolator, centred, default_batch, frame_count, interpolate

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


class Watch:
    """Stands in for `Interpolator.encode` and keeps account of what is encoded and how much of it is alive."""

    def __init__(self, monkeypatch):
        self.contents: list[bytes] = []
        self.alive, self.most = 0, 0
        encode = Interpolator.encode

        def watched(interpolator, frame):
            self.contents.append(np.asarray(frame).tobytes())
            encoded = encode(interpolator, frame)
            self.alive += 1
            self.most = max(self.most, self.alive)
            weakref.finalize(encoded.packs[0], self._gone)
            return encoded

        monkeypatch.setattr(Interpolator, "encode", watched)

    def _gone(self) -> None:
        self.alive -= 1


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_nine_frames_equal_the_reference(tiny, inference, batch):
    given = np.stack([recipe.scene(64, 64, 0), recipe.scene(64, 64, 1), recipe.scene(64, 64, 0)[::-1]])
    frames = list(interpolate(tiny, given, times=2, batch=batch))
    np.testing.assert_allclose(recipe.sampled(np.stack(frames)), inference["rec_times2_out"], atol=2e-5)
    for out, photo in zip(frames[::4], given, strict=True):
        np.testing.assert_array_equal(out, photo)


def test_padding_to_64_equals_the_reference(tiny, inference):
    given = [recipe.scene(100, 150, 0), recipe.scene(100, 150, 1)]
    x0, middle, x1 = interpolate(tiny, given, times=1, align=64)
    np.testing.assert_allclose(recipe.sampled(middle), inference["pad_out"][0], atol=2e-5)
    np.testing.assert_array_equal([x0, x1], given)


def test_halves_of_the_padding():
    assert centred(100, 64) == (14, 14) and centred(150, 64) == (21, 21)
    assert centred(7, 4) == (0, 1) and centred(64, 64) == centred(17, 1) == (0, 0)


@pytest.mark.parametrize(("inputs", "times"), [(2, 0), (3, 0), (2, 1), (2, 3), (3, 2), (4, 1), (3, 3)])
def test_as_many_frames_as_said(toy, inputs, times):
    given = photos(inputs)
    frames = list(interpolate(toy, given, times))
    assert len(frames) == frame_count(inputs, times) == (inputs - 1) * 2**times + 1
    for out, photo in zip(frames[:: 2**times], given, strict=True):
        np.testing.assert_array_equal(out, photo)
    assert all(frame.shape == given[0].shape and frame.dtype == np.float32 for frame in frames)


def test_three_photos_three_times_are_17_frames(toy):
    assert len(list(film.interpolate(toy, photos(3), times=3))) == 17


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_no_frame_is_encoded_twice_and_the_last_level_never(toy, monkeypatch, batch):
    watch, times = Watch(monkeypatch), 3
    frames = [frame.tobytes() for frame in interpolate(toy, photos(3), times, batch=batch)]
    assert len(set(frames)) == 17
    assert len(watch.contents) == len(set(watch.contents)) == frame_count(3, times - 1)
    assert set(watch.contents) == set(frames[::2])  # the odd ones are of the last level


def test_order_of_work_does_not_change_a_frame(toy):
    depth_first, by_level = (np.stack(list(interpolate(toy, photos(2), 3, batch=b))) for b in (1, 4))
    np.testing.assert_allclose(depth_first, by_level, atol=1e-5)  # float32: the batch decides how sums are ordered


def test_inputs_are_taken_only_when_their_turn_comes(toy):
    taken = []

    def source():
        for number, photo in enumerate(photos(4)):
            taken.append(number)
            yield photo

    frames = interpolate(toy, source(), times=1)
    assert taken == []
    needed = []
    for _ in frames:
        needed.append(len(taken))
    assert needed == [1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize(("batch", "most"), [(1, 6), (4, 8)])
def test_few_frames_are_alive_however_many_come(toy, monkeypatch, batch, most):
    watch = Watch(monkeypatch)
    endless = itertools.cycle(photos(3))
    for _ in itertools.islice(interpolate(toy, endless, times=4, batch=batch), 100):
        pass
    gc.collect()
    assert len(watch.contents) >= 50
    assert watch.most <= most
    assert watch.alive == 0


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([], "at least two"),
        (photos(1), "at least two"),
        ([*photos(2), *photos(1, (16, 23))], "frame 3 is 23x16, the first 24x16"),
        (photos(2, (1, 1)), "1x1"),
    ],
)
def test_unfit_inputs_are_refused_in_one_line(toy, frames, said):
    with pytest.raises(ValueError, match=said) as error:
        list(interpolate(toy, iter(frames), times=1))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("options", [{"times": -1}, {"times": 17}, {"times": 10**6}, {"batch": 0}, {"align": 0}])
def test_unfit_numbers_are_refused_at_the_call(toy, options):
    with pytest.raises(ValueError, match="at least"):
        interpolate(toy, photos(2), **options)


def test_frames_before_a_bad_one_still_come(toy):
    frames = interpolate(toy, iter([*photos(2), *photos(1, (8, 8))]), times=1)
    assert len(list(itertools.islice(frames, 3))) == 3
    with pytest.raises(ValueError, match="8x8"):
        next(frames)


def test_a_processor_takes_one_pair_at_a_time():
    assert default_batch(1) == 1
