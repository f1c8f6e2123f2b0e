"""Interpolation: the reference's frames, and each promise of the module: any moment, nothing twice, little kept."""

import gc
import itertools
import types
import weakref
from fractions import Fraction

import jax
import numpy as np
import pytest
import recipe
from refusal import refused
from toy import CONFIG, DIRECT, network

import film
import film.compiled
from film import moments
from film.compiled import CompiledFilm, Quality
from film.interpolator import Interpolator, interpolate
from film.model import Film
from film.planning import ComputePlan

SIZE = (16, 24)
THIRD = Fraction(1, 3)
REFERENCE = np.load(recipe.DATA / "tiny_inference.npz")
both = pytest.mark.parametrize("config", [CONFIG, DIRECT], ids=["halving", "direct"])  # midpoints alone; any moment


def photos(count: int, size: tuple[int, int] = SIZE) -> list[np.ndarray]:
    return list(np.random.default_rng(7).random((count, *size, 3)).astype(np.float32))


def single() -> list[jax.Device]:
    return jax.local_devices()[:1]


def whole(kept: int = 2, size: tuple[int, int] = SIZE, flow_scale: int = 1) -> ComputePlan:
    return ComputePlan(size, size, flow_scale, kept, 1, 0.0)


def frames_at(model: Film, *wanted: Fraction, **options) -> list[np.ndarray]:
    """New frames between two photos, on one device."""
    interpolator = Interpolator(model, SIZE, **dict(plan=whole(), devices=single()) | options)
    return list(interpolator.between(*photos(2), wanted))


@pytest.fixture
def encodings(monkeypatch):
    """A record of the frames that were encoded, and how many encodings are and were alive."""
    record, encode = types.SimpleNamespace(frames=[], finest=[], devices=set(), alive=0, most=0), CompiledFilm._encode

    def gone() -> None:
        record.alive -= 1

    def recorded(interpolator, image, mirrored, device, levels):
        encoded = encode(interpolator, image, mirrored, device, levels)
        record.devices.add(device)
        if levels == "finest":
            record.finest.append(image.pixels.tobytes())
            return encoded
        record.frames.append(image.pixels.tobytes())
        record.alive += 1
        record.most = max(record.most, record.alive)
        weakref.finalize(encoded[1].packs[0], gone)
        return encoded

    monkeypatch.setattr(CompiledFilm, "_encode", recorded)
    return record


@pytest.fixture
def compilations(encodings):
    """(event, seconds, frames encoded before it) of each event of the compiler."""
    events = []

    def listen(event: str, seconds: float, **more) -> None:
        if event.startswith("/jax/core/compile"):
            events.append((event, seconds, len(encodings.frames)))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.long
@pytest.mark.parametrize("batch", [1, 4])
def test_nine_frames_equal_the_reference(batch):
    given = np.stack([recipe.scene(64, 64, 0), recipe.scene(64, 64, 1), recipe.scene(64, 64, 0)[::-1]])
    frames = list(interpolate(recipe.model("tiny"), given, times=2, batch=batch, align=1, devices=single()))
    np.testing.assert_allclose(recipe.sampled(np.stack(frames)), REFERENCE["rec_times2_out"], atol=2e-5)
    np.testing.assert_array_equal(frames[::4], given)


def test_padding_to_64_equals_the_reference():
    given = [recipe.scene(100, 150, 0), recipe.scene(100, 150, 1)]
    x0, middle, x1 = interpolate(recipe.model("tiny"), given, times=1, align=64)
    np.testing.assert_allclose(recipe.sampled(middle), REFERENCE["pad_out"][0], atol=2e-5)
    np.testing.assert_array_equal([x0, x1], given)
    assert Interpolator(network(CONFIG), (7, 17), align=4).zeros == [(0, 1), (1, 2)]  # the odd pixel goes after


def test_a_moment_is_the_networks_own_or_a_midpoint_of_midpoints():
    (x0, x1), halving, direct = photos(2), network(CONFIG), network(DIRECT)
    third, half = frames_at(direct, THIRD, moments.HALF)
    np.testing.assert_allclose(third, direct(x0[None], x1[None], 1 / 3).image[0], atol=2e-5)
    np.testing.assert_allclose(half, direct(x0[None], x1[None]).image[0], atol=2e-5)
    quarter, half = frames_at(halving, Fraction(1, 4), moments.HALF)
    np.testing.assert_allclose(half, halving(x0[None], x1[None]).image[0], atol=2e-5)
    np.testing.assert_allclose(quarter, halving(x0[None], half[None]).image[0], atol=2e-5)
    nearest, other = frames_at(halving, THIRD), frames_at(halving, Fraction(11, 32))
    np.testing.assert_array_equal(nearest, other)


@both
def test_the_same_moment_gets_the_same_frame_whatever_else_is_asked(config):
    model, wanted = network(config), Fraction(3, 8)
    (alone,) = frames_at(model, wanted)
    for others in (moments.even(7), [Fraction(1, 7), wanted, Fraction(1, 2)], moments.even(15)):
        np.testing.assert_array_equal(frames_at(model, *others)[others.index(wanted)], alone)
    given = [*photos(3)[::-1], photos(2)[1]]  # a gap after others
    *_, last, _ = interpolate(model, given, moments=[wanted], devices=single())
    np.testing.assert_array_equal(last, alone)


def test_midpoints_of_midpoints():
    for count in (2, 199, 383, 999):
        wanted = moments.even(count)
        nearest = moments.of_midpoints(wanted)
        assert nearest == sorted(nearest)
        for moment, near in zip(wanted, nearest, strict=True):
            assert abs(near - moment) <= moments.NEAR and 64 % near.denominator == 0
            assert moments.of_midpoints([moment, THIRD])[0] == near  # whatever else is asked
    assert [moments.halvings(parts) for parts in (1, 2, 32, 3, 0, 2**17)] == [0, 1, 5, 6, 6, 6]
    fine = [Fraction(3, 128), Fraction(5, 256), Fraction(1, 64), Fraction(3, 2**16)]
    assert moments.of_midpoints(fine) == fine and moments.of_midpoints([fine[-1] / 2]) == [0]
    floats = [0.1, 1 / 3, 0.5, 0.7]  # each is k / 2^n, too fine to be reached by midpoints
    assert moments.of_midpoints([Fraction(x) for x in floats]) == [Fraction(k, 32) for k in (3, 11, 16, 22)]
    assert moments.closure([Fraction(3, 8)]) == {Fraction(1, 2), Fraction(1, 4), Fraction(3, 8)}
    assert moments.closure([Fraction(3, 8), Fraction(1)], {Fraction(1, 4), Fraction(1, 2), Fraction(1)}) == {
        Fraction(3, 8)
    }


@pytest.mark.parametrize("most", [1, 4, 32])
def test_a_schedule_makes_all_moments_once_from_those_made_before(most):
    wanted = [Fraction(0), *moments.even(15), Fraction(35, 64), Fraction(35, 64), Fraction(1)]
    made, given = {Fraction(0), Fraction(1)}, []
    for new, ready in moments.schedule(sorted(wanted), most):
        assert not made & set(new) and len({moment.denominator for moment in new}) <= 1 <= len(new) + len(ready)
        assert made.issuperset(source for moment in new for source in moments.sources(moment))
        assert len(new) <= most
        made.update(new)
        assert made.issuperset(ready)
        given += ready
    assert given == sorted(wanted)


@pytest.mark.parametrize("batch", [1, 8])
def test_no_frame_is_made_or_encoded_twice_and_the_last_level_never_encoded(encodings, monkeypatch, batch):
    made, finish = [], film.compiled._finish
    monkeypatch.setattr(film.compiled, "_finish", lambda *words: made.append(1) or finish(*words))
    frames = [frame.tobytes() for frame in interpolate(network(CONFIG), photos(3), 3, batch=batch, devices=single())]
    assert len(set(frames)) == 17 and (len(made) == 14 or batch > 1)
    assert sorted(encodings.frames) == sorted(frames[::2])  # the odd ones are of the last level


@pytest.mark.long
def test_a_batch_has_one_of_a_few_sizes(monkeypatch):
    """An accelerator compiles each; the frames are those of single calls."""
    sizes, finish = [], film.compiled._finish
    monkeypatch.setattr(film.compiled, "_finish", lambda *words: sizes.append(len(words[2])) or finish(*words))
    batched = [frames_at(network(DIRECT), *moments.even(count), batch=6) for count in (15, 5, 2)]
    assert sizes == [6, 6, 4, 6, 2]
    for frames in batched:
        np.testing.assert_allclose(frames, frames_at(network(DIRECT), *moments.even(len(frames)), batch=1), atol=2e-5)


@pytest.mark.parametrize(("kept", "count"), [(0, 30), (1, 16), (2, 16), (4, 10)])
def test_no_more_is_kept_than_planned_and_the_frames_are_the_same(encodings, monkeypatch, kept, count):
    monkeypatch.setattr(film.compiled, "return_freed_memory", lambda: None)  # the heap of the tests is large
    frames = frames_at(network(CONFIG), *moments.even(15), plan=whole(kept))
    gc.collect()
    assert encodings.most <= max(2, kept) and encodings.alive == 0
    assert len(encodings.frames) == count > len(set(encodings.frames))  # dropped and made again
    assert len(encodings.finest) == (30 if kept < 2 else 0)
    np.testing.assert_allclose(frames, frames_at(network(CONFIG), *moments.even(15), plan=whole(8)), atol=2e-5)


def test_a_sequence_encodes_each_frame_once_and_keeps_two(encodings):
    given = photos(5)
    frames = list(interpolate(network(DIRECT), given, moments=moments.even(2), devices=single()))
    gc.collect()
    assert len(frames) == 13
    assert encodings.frames == [frame.tobytes() for frame in given]
    assert encodings.most <= 2 and encodings.alive == 0


def test_an_array_that_is_filled_again_is_another_frame():
    interpolator = Interpolator(network(DIRECT), SIZE, plan=whole(), devices=single())
    x0, x1 = photos(2)
    buffer = x0.copy()
    list(interpolator.between(x1, buffer, [THIRD]))
    buffer[:] = x0[::-1]
    (frame,) = interpolator.between(buffer, x1, [THIRD])
    (expected,) = Interpolator(network(DIRECT), SIZE, plan=whole(), devices=single()).between(x0[::-1], x1, [THIRD])
    np.testing.assert_allclose(frame, expected, atol=1e-6)


def test_inputs_are_consumed_as_needed_up_to_a_bad_one():
    consumed = []

    def source():
        for number, photo in enumerate([*photos(3), *photos(1, (8, 8))]):
            consumed.append(number)
            yield photo

    frames = interpolate(network(CONFIG), source(), times=1, devices=single())
    assert consumed == []
    needed = [len(consumed) for _ in itertools.islice(frames, 5)]
    assert needed == [1, 2, 2, 3, 3]
    refused(ValueError, next, frames, match=r"8x8.*24x16")


def test_other_sizes_of_a_bucket_compile_nothing(compilations):
    def run(height: int, width: int) -> np.ndarray:
        quality, pair = Quality(ensemble=True), photos(2, (height, width))
        interpolator = Interpolator(network(DIRECT), (height, width), quality=quality, devices=single())
        (frame,) = interpolator.between(*pair, [THIRD])
        return frame

    assert run(68, 96).shape == (68, 96, 3) and compilations
    compilations.clear()
    assert run(67, 95).shape == (67, 95, 3) and not compilations


@pytest.mark.long
@pytest.mark.parametrize(("kept", "scale"), [(0, 1), (2, 2)])
def test_the_functions_are_compiled_before_a_frame_is_encoded(encodings, compilations, kept, scale):
    """The compiler's memory would come on top of theirs."""
    size = (40, 48 + 8 * kept)
    interpolator = Interpolator(network(DIRECT), size, plan=whole(kept, size, scale), devices=single())
    next(interpolator.between(*photos(2, size), [THIRD]))
    compiled = sorted(found[1:] for found in compilations if found[0].endswith("backend_compile_duration"))
    assert len(encodings.frames) == 2 and [frames for _, frames in compiled[-3:]] == [0, 0, 0]


@both
def test_several_devices_give_the_same_frames(config, encodings):
    model, devices = network(config), jax.local_devices()
    assert len(devices) > 1
    one = frames_at(model, *moments.even(7))
    encodings.devices.clear()
    np.testing.assert_array_equal(frames_at(model, *moments.even(7), devices=devices), one)
    assert encodings.devices == set(range(len(devices)))


@pytest.mark.parametrize(("config", "batch"), [(CONFIG, 1), (DIRECT, 1), (DIRECT, 2)], ids=str)
def test_one_new_frame_in_each_gap_keeps_all_devices_busy(config, batch, encodings, monkeypatch):
    """In order, with frames that are held between them, no two in a call twice, and not far ahead of what is needed."""
    model, given, calls, consumed = network(config), photos(7), [], []
    expected = list(interpolate(model, given, times=1, devices=single()))
    run = CompiledFilm.frames
    monkeypatch.setattr(CompiledFilm, "frames", lambda *words: calls.append((words[3], len(words[1]))) or run(*words))
    encodings.frames.clear()
    source = (consumed.append(number) or frame for number, frame in enumerate(given))
    frames = interpolate(model, source, times=1, batch=batch, devices=jax.local_devices())
    first = [next(frames) for _ in range(2)]
    assert len(consumed) == 1 + 2 * batch
    np.testing.assert_allclose([*first, *frames], expected, atol=2e-5)
    assert calls == ([(0, 1), (1, 1)] * 3 if batch == 1 else [(0, 2), (1, 2), (0, 2)])
    assert len(encodings.frames) == (12 if batch == 1 else 9)  # once for each call that needs them


def test_what_is_read_ahead_has_an_end_and_an_error_comes_last():
    consumed, given = [], photos(2)

    def items():
        yield *given, [THIRD]
        for number in itertools.count():
            consumed.append(number)
            if number == 50:
                raise OSError("the end")
            yield given[0]

    frames = Interpolator(network(DIRECT), SIZE, plan=whole(), batch=2, devices=jax.local_devices()).stream(items())
    next(frames)
    assert len(consumed) < 20
    made = []
    with pytest.raises(OSError, match="the end"):
        for frame in frames:
            made.append(frame)
    assert len(made) == 50 and all(frame is given[0] for frame in made)


@pytest.mark.parametrize("kept", [0, 2])
def test_an_ensemble_does_not_know_directions(kept):
    """Time backwards gives the same frame, a mirrored pair the mirrored frame, also where nothing is kept."""
    x0, x1 = photos(2)

    def frame(x0, x1, moment, **quality) -> np.ndarray:
        interpolator = Interpolator(
            network(DIRECT), SIZE, plan=whole(kept), quality=Quality(**quality), devices=single()
        )
        return next(interpolator.between(x0, x1, [moment]))

    expected, quarter = frame(x0, x1, Fraction(1, 4), ensemble=True), Fraction(1, 4)
    np.testing.assert_allclose(frame(x1, x0, 1 - quarter, ensemble=True), expected, atol=1e-6)
    mirrored = frame(x0[:, ::-1], x1[:, ::-1], quarter, ensemble=True)
    np.testing.assert_allclose(mirrored[:, ::-1], expected, atol=1e-6)
    plain, rough = frame(x0, x1, quarter), frame(x0, x1, quarter, precision="bfloat16")
    assert np.abs(plain - expected).max() > 1e-3 and np.abs(frame(x1, x0, 1 - quarter) - expected).max() > 1e-3
    assert rough.dtype == np.float32 and 1e-6 < np.abs(rough - plain).mean() < 0.01


@both
def test_where_nothing_moves_the_network_does_not_run(config, monkeypatch):
    x0, _ = photos(2)
    x1 = x0 + np.float32(0.9 / 255)
    monkeypatch.setattr(CompiledFilm, "frames", lambda *_: pytest.fail("a still gap"))
    for after, wanted in ((x1, moments.even(2)), (x0, [Fraction(1, 2)])):
        frames = list(Interpolator(network(config), SIZE, devices=single()).between(x0, after, wanted))
        for frame, moment in zip(frames, wanted, strict=True):
            np.testing.assert_allclose(frame, x0 + float(moment) * (after - x0), atol=1e-6)


@pytest.mark.slow
def test_flow_from_a_lower_scale_is_the_same_motion():
    """Of the shipped weights, also of an ensemble, which mirrors it and exchanges its directions."""
    model, size = film.load(), (128, 192)
    pair = [recipe.scene(*size, time) for time in (0, 1)]

    def frame(scale: int, ensemble: bool) -> np.ndarray:
        interpolator = Interpolator(model, size, plan=whole(2, size, scale), quality=Quality(ensemble))
        return next(interpolator.between(*pair, [Fraction(1, 4)]))

    expected = recipe.scene(*size, 0.25)
    errors = [float(np.abs(frame(*how) - expected).mean()) for how in ((1, False), (2, False), (4, True))]
    assert max(errors) < 2 * errors[0] < 0.25 * np.abs(pair[0] - expected).mean()


@pytest.mark.parametrize(("frames", "options", "value"), [
    ([], {}, "no frames"),
    (photos(1), {}, "one frame"),
    ([*photos(2), *photos(1, (16, 23))], {}, "frame 3 is 23x16, the first 24x16"),
    (photos(2, (1, 1)), {}, "1x1"),
    ([photo[None] for photo in photos(2)], {}, r"\(1, 16, 24, 3\)"),
    (photos(2), {"moments": [Fraction(1, 2), 0.25]}, "1/2, 1/4"),
    (photos(2), {"moments": [Fraction(1)]}, "moments 1:"),
])  # fmt: skip
def test_unfit_inputs_are_refused(frames, options, value):
    refused(ValueError, list, interpolate(network(CONFIG), iter(frames), **options), match=value)


@pytest.mark.parametrize(("name", "value"), [("times", 17), ("batch", 0), ("align", -1)])
def test_unfit_numbers_are_refused_before_any_frame_is_asked_for(name, value):
    refused(ValueError, interpolate, network(CONFIG), iter(()), **{name: value}, match=f"{name}={value}")
