"""Photos become frames of one size, one view and one exposure; pictures to look at show what they claim."""

from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest
from refusal import refused

from common.io.images import place, read_image, shrink
from common.io.srgb import from_linear, to_linear
from film import alignment, photos
from film.alignment import common_view, corners, grey_thumbnail, register, transform
from film.model import FilmOutput
from film.photos import Preparation, common_size, expose, parse_size, prepare
from film.visualization import FROM_X0, FROM_X1, comparison, flow_picture, inspection_sheet, mixing_weight

SCENE = shrink(read_image(Path(__file__).parents[1] / "data" / "plugins" / "astronaut.webp"), 384)
HEIGHT, WIDTH = SCENE.shape[:2]
MARGIN = 40


def shaken(seed: int, amount: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """The scene as a moved camera sees it, and the homography from the scene to that view."""
    generator = np.random.default_rng(seed)
    angle, zoom = np.radians(generator.uniform(-2, 2) * amount), 1 + generator.uniform(-0.02, 0.02) * amount
    shift, tilt = generator.uniform(-12, 12, 2) * amount, generator.uniform(-3e-5, 3e-5, 2) * amount
    turn = zoom * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = np.eye(3)
    matrix[:2, :2], matrix[2, :2] = turn, tilt
    centre = np.array([WIDTH, HEIGHT]) / 2
    matrix[:2, 2] = centre + shift - turn @ centre
    wide = cv2.copyMakeBorder(SCENE, MARGIN, MARGIN, MARGIN, MARGIN, cv2.BORDER_REFLECT)
    offset = np.array([[1, 0, -MARGIN], [0, 1, -MARGIN], [0, 0, 1]], float)
    view = cv2.warpPerspective(wide, matrix @ offset, (WIDTH, HEIGHT), flags=cv2.INTER_CUBIC)
    return np.clip(view, 0, 1), matrix


def corner_error(found, truth) -> float:
    ends = corners((WIDTH, HEIGHT))
    return float(np.linalg.norm(transform(ends, found) - transform(ends, truth), axis=1).max())


@pytest.mark.parametrize(("sizes", "crop", "pad", "resize"), [
    ([(40, 30), (30, 40)], (30, 30), (40, 40), (40, 30)),
    ([(40, 30), (16, 9)], (16, 9), (16, 12), (16, 9)),
    ([(40, 30), (40, 29)], (40, 29), (40, 30), (40, 29)),
    ([(40, 30), (40, 30)], (40, 30), (40, 30), (40, 30)),
])  # fmt: skip
def test_fit(sizes, crop, pad, resize):
    """No photo is enlarged; crop leaves no bar, pad loses nothing."""
    for fit, expected in {"crop": crop, "pad": pad, "resize": resize}.items():
        assert common_size(sizes, "ab", fit) == expected
        for width, height in sizes:
            framed = place(np.ones((height, width, 3), np.float32), expected, fit)
            assert framed.shape == (*expected[::-1], 3)
            share = min(expected[0] / width, expected[1] / height) ** 2 * width * height / np.prod(expected)
            assert framed.mean() == pytest.approx(share if fit == "pad" else 1, abs=1e-3)


def test_sizes_and_shapes_that_differ_need_a_fit():
    message = refused(ValueError, prepare, [(40, 30), (30, 40)], ["a.jpg", "b.jpg"])
    assert all(part in message for part in ("a.jpg is 40x30", "b.jpg is 30x40", *photos.FITS))
    assert "stretch" in refused(ValueError, common_size, [(4, 3)], "a", "stretch")
    refused(ValueError, prepare, [(40, 30), (30, 40)], "ab", fit="pad", align=True)
    assert prepare([(40, 30)] * 2, "ab") == Preparation((40, 30), (40, 30))
    assert "--fit" in refused(ValueError, prepare, [(40, 30)], "a", size="16x9")
    fitted = prepare([(40, 30)], "a", fit="crop", size="16x9")
    assert fitted.apply(0, np.ones((30, 40, 3), np.float32)).shape == (9, 16, 3)


def test_place_keeps_the_centre():
    image = np.zeros((20, 40, 3), np.float32)
    image[10:, 20:] = 1
    assert place(image, (10, 10), "crop")[[0, -1], [0, -1]].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert place(image, (20, 20), "crop").mean() == place(image, (40, 40), "pad")[10:30].mean() == 0.25
    assert place(image, (40, 20), "crop") is image


@pytest.mark.parametrize(("text", "expected"), [
    ("1080p", (1440, 1080)),
    ("1280", (1280, 960)),
    ("1280x720", (1280, 720)),
    ("9000X20", (9000, 20)),
    ("9000p", (4000, 3000)),
    ("333", (332, 250)),
])  # fmt: skip
def test_parse_size(text, expected):
    assert parse_size(text, (4000, 3000)) == expected
    if "x" not in text.lower():
        assert parse_size(text, (3000, 4000)) == expected[::-1]


@pytest.mark.parametrize("text", ["", "p", "1080i", "-4", "4x", "1x1", "0", "4 x 4 x 4"])
def test_sizes_that_are_none(text):
    refused(ValueError, parse_size, text, (4000, 3000))


@pytest.mark.parametrize("seed", range(2))
def test_a_known_homography_is_found(seed):
    view, truth = shaken(seed)
    found = register(grey_thumbnail(SCENE), grey_thumbnail(view))
    assert found.matrix is not None and corner_error(found.matrix, truth) < 0.25
    assert found.share > 0.7 and found.span > 0.6


def test_the_background_decides():
    """A quarter of the frame moves by 30 pixels of its own, with twice the patterns: it does not count."""
    generator = np.random.default_rng(0)
    subject = cv2.resize(generator.random((48, 48, 3)).astype(np.float32), (WIDTH // 2, HEIGHT // 2))
    view, truth = shaken(1)
    scene, y, x = SCENE.copy(), HEIGHT // 4, WIDTH // 5
    scene[y : y + HEIGHT // 2, x : x + WIDTH // 2] = subject
    view[y : y + HEIGHT // 2, x + 30 : x + 30 + WIDTH // 2] = subject
    found = register(grey_thumbnail(scene), grey_thumbnail(view))
    assert found.matrix is not None and corner_error(found.matrix, truth) < 1


def test_photos_that_do_not_align():
    for other in (np.zeros_like(SCENE), np.random.default_rng(0).random(SCENE.shape).astype(np.float32)):
        message = refused(ValueError, prepare, [(WIDTH, HEIGHT)] * 2, ["a.jpg", "b.jpg"], [SCENE, other], align=True)
        assert "a.jpg and b.jpg" in message and "%" in message


def test_the_common_view_is_the_largest_that_all_cover():
    matrices = [shaken(seed)[1] for seed in range(3)]
    view = common_view(matrices, (WIDTH, HEIGHT))
    assert view.width % 2 == view.height % 2 == 0
    assert view.width / view.height == pytest.approx(WIDTH / HEIGHT, rel=0.02)

    def covered(grow: int) -> bool:
        ends = corners((view.width + 2 * grow, view.height + 2 * grow)) + [view.left - grow, view.top - grow]
        places = np.concatenate([transform(ends, matrix) for matrix in (np.eye(3), *matrices)])
        return bool((places > -1e-3).all() and (places < np.array([WIDTH, HEIGHT]) - 1 + 1e-3).all())

    assert covered(0) and not covered(2)
    assert common_view([np.eye(3)], (WIDTH, HEIGHT)) == (0, 0, WIDTH, HEIGHT)
    apart = np.array([[1, 0, 2.0 * WIDTH], [0, 1, 0], [0, 0, 1]])
    assert common_view([apart], (WIDTH, HEIGHT)).width == 0


def test_a_hand_held_sequence_becomes_one_view():
    """One photo after another; the frames agree where the cameras did not."""
    views = [SCENE, *(shaken(seed)[0] for seed in (1, 2))]
    sizes, names = [(WIDTH, HEIGHT)] * 3, "abc"
    preparation = prepare(sizes, names, iter(views), align=True, match_exposure=True)
    frames = [preparation.apply(number, view) for number, view in enumerate(views)]
    width, height = preparation.size
    assert all(frame.shape == (height, width, 3) and frame.dtype == np.float32 for frame in frames)
    view = preparation.view
    assert view is not None and "aligned" in str(preparation)
    np.testing.assert_array_equal(frames[0], SCENE[view.top : view.top + height, view.left : view.left + width])
    for frame, shot in zip(frames[1:], views[1:], strict=True):
        assert np.abs(frame - frames[0]).mean() < 0.1 * np.abs(shot - SCENE).mean()


def test_exposure_is_matched_to_the_first():
    """Gains of light per channel are found although a third of the frame changes; black and white stay."""
    gains, light = np.float32([1.4, 1.5, 1.7]), 0.6 * to_linear(SCENE)
    photos_of = [from_linear(np.clip(light * gain, 0, 1)) for gain in (np.float32(1), gains, 1 / gains)]
    for photo in photos_of[1:]:
        photo[:, : WIDTH // 3] = photo[::-1, : WIDTH // 3]
    preparation = prepare([(WIDTH, HEIGHT)] * 3, "abc", photos_of, match_exposure=True)
    np.testing.assert_allclose(preparation.gains, [np.ones(3), 1 / gains, gains], rtol=0.03)
    for number in (1, 2):
        error = preparation.apply(number, photos_of[number]) - photos_of[0]
        usable = (photos_of[0] < 0.7).all(axis=-1)[:, WIDTH // 3 :]
        assert np.abs(error[:, WIDTH // 3 :][usable]).mean() < 2 / 255
    ends = np.float32([[[0, 0, 0], [1, 1, 1]]])
    np.testing.assert_allclose(expose(ends, np.float32([0.5, 1, 2])), ends)
    ramp = np.linspace(0, 1, 500, dtype=np.float32).reshape(-1, 1, 1).repeat(3, axis=2)
    assert (np.diff(expose(ramp, np.float32([0.4, 0.9, 1.6])), axis=0) >= 0).all()
    dark = [SCENE, np.zeros_like(SCENE)]
    assert "b" in refused(ValueError, prepare, [(WIDTH, HEIGHT)] * 2, "ab", dark, match_exposure=True)


def test_refinement_leaves_what_it_cannot_improve():
    matrix = np.array([[1, 0, 900], [0, 1, 0], [0, 0, 1]], float)  # no overlap
    grey = grey_thumbnail(SCENE)
    np.testing.assert_array_equal(alignment.refine(grey, grey, matrix), matrix)


def test_flow_is_drawn_with_the_colours_of_the_usual_wheel():
    flow = np.float32([[[5, 0], [0, 5], [-5, 0], [0, 0], [2.5, 0]]])
    red, down, left, still, half = flow_picture(flow, limit=5.0)[0]
    np.testing.assert_allclose(red, [1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(still, 1)
    np.testing.assert_allclose(half, [1, 0.5, 0.5], atol=1e-6)
    assert down[0] == 1 and down[1] > 0.9 and left[0] < 0.2 and left[2] == 1


def test_mixing_weight_recovers_the_blend():
    generator = np.random.default_rng(0)
    x0, x1 = generator.random((2, 40, 60, 3)).astype(np.float32)
    for weight in (0.0, 0.3, 1.0):
        found = mixing_weight(weight * x0 + (1 - weight) * x1, x0, x1, 0.5)
        assert np.abs(found - weight).max() < 0.05
    assert (mixing_weight(x0, x0, x0, 0.25) == 0.75).all()


@pytest.mark.parametrize("size", [(30, 40), (64, 48), (2, 9)])
def test_pictures_to_look_at(size):
    """Of any size: nine cells; a clip of the cross-fade and the frame, beside each other."""
    x0, x1 = np.zeros((*size, 3), np.float32), np.ones((*size, 3), np.float32)
    flow = np.full((1, *size, 2), 3, np.float32)
    output = FilmOutput(x0[None] + 0.5, [flow], [-flow], x0[None], x1[None])
    sheet = inspection_sheet(x0, x1, output, 0.5)
    assert sheet.ndim == 3 and sheet.min() >= 0 and sheet.max() <= 1
    weights = (np.full((1, *size, 1), share, np.float32) for share in (0, 1))
    first, second = (inspection_sheet(x0, x1, output._replace(weight=weight), 0.5) for weight in weights)
    changed = (first != second).any(axis=-1)
    for own, colour in ((first, FROM_X1), (second, FROM_X0)):  # the network's, whatever its colours would tell
        np.testing.assert_allclose(own[changed], np.broadcast_to(colour, (changed.sum(), 3)), atol=1e-2)
    assert changed.any()
    frame = comparison(x1, x0, x1, Fraction(1, 4))
    assert frame.shape == (size[0], 2 * size[1] + 2, 3)
    if min(size) > 2:
        assert (frame[-1, 0, 0], frame[-1, -1, 0]) == (0.25, 1)  # the fade of 0 and 1, and the frame
