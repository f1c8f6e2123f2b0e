"""Edges and drawings against MediaPipe's own (tests/data/plugins), depth maps of files and models, all by name."""

import sys

import astronaut
import cv2
import numpy as np
import pytest
from onnx_models import MEAN_OF_CHANNELS, save_model
from refusal import refused

from common.io.images import write_image
from plugins import conditions
from plugins.conditions import connections
from plugins.conditions.canny import canny
from plugins.conditions.depth import OnnxDepth, draw_depth, inflated, normalise, read_depth
from plugins.conditions.drawing import draw_face, draw_holistic
from plugins.conditions.landmarks import Landmarks
from plugins.conditions.registry import emptiness, mirror

SIZE = (512, 512)
FACE = {group.name: group for group in connections.FACE}
BODY = {group.name: group for group in connections.BODY + connections.HEAD}


def test_edges_equal_the_reference():
    image, truth = astronaut.photograph(), astronaut.reference()
    for l2, name in ((False, "canny_100_200"), (True, "canny_100_200_l2")):
        edges, mask = canny(image, l2=l2), np.unpackbits(truth[name]).reshape(image.shape[:2])
        assert edges.dtype == np.float32 and mask.sum() > 7_000
        np.testing.assert_array_equal(edges, np.repeat(mask[..., None], 3, -1).astype(np.float32))
    counts = [canny(image, *thresholds).sum() for thresholds in ((300, 400), (100, 200), (20, 40), (0, 0))]
    assert counts == sorted(counts) and counts[0] > 0
    for shape in ((1, 1, 3), (1, 7, 3), (33, 17, 3)):
        assert canny(np.full(shape, 0.3, np.float32)).tolist() == np.zeros(shape).tolist()


def test_the_connections_are_those_of_mediapipe():
    theirs, total = astronaut.connections(), 0
    for name, group in FACE.items():
        key = f"FACEMESH_{'FACE_OVAL' if name == 'oval' else name.replace(' ', '_').upper()}"
        assert set(group.edges) == theirs[key] and len(group.edges) == len(theirs[key])
        total += len(group.edges)
    assert total == 132
    pose = connections.BODY + connections.HEAD + connections.LEFT_PALM + connections.RIGHT_PALM
    edges = [edge for group in pose for edge in group.edges]
    assert set(edges) == theirs["POSE_CONNECTIONS"] and len(edges) == 35
    for hand in (connections.LEFT_HAND, connections.RIGHT_HAND):
        assert {edge for group in hand for edge in group.edges} == theirs["HAND_CONNECTIONS"]


def undirected(edges) -> set[frozenset[int]]:
    return {frozenset(edge) for edge in edges}


def swapped(edges, table) -> set[frozenset[int]]:
    return undirected((int(table[a]), int(table[b])) for a, b in edges)


def test_the_mirror_maps_left_onto_right():
    for table in (connections.FACE_SWAP, connections.POSE_SWAP, connections.HAND_SWAP):
        np.testing.assert_array_equal(table[table], np.arange(len(table)))
    for groups, table in ((FACE, connections.FACE_SWAP), (BODY, connections.POSE_SWAP)):
        for name, group in groups.items():
            partner = groups[name.replace("left", "right")]  # the middle is its own
            assert swapped(group.edges, table) == undirected(partner.edges) or "right" in name
    fixed = np.flatnonzero(np.arange(478) == connections.FACE_SWAP).tolist()
    assert len(fixed) == 28 and {10, 152, 0, 17, 13, 14, 1, 4, 168, 6} <= set(fixed)  # forehead, chin, lips, nose


def test_the_mirror_keeps_the_mesh():
    """A table with two points exchanged by mistake breaks the edges around both; six diagonals are not symmetric."""
    mesh = undirected(astronaut.connections()["FACEMESH_TESSELATION"])
    assert len(mesh) == 1322
    assert len(swapped([tuple(edge) for edge in mesh], connections.FACE_SWAP) - mesh) == 6
    assert swapped(astronaut.connections()["FACEMESH_NOSE"], connections.FACE_SWAP) <= mesh


def near(mask: np.ndarray) -> np.ndarray:
    """Within one pixel of the mask."""
    return cv2.dilate(mask.astype(np.uint8), np.ones((3, 3), np.uint8)).astype(bool)


@pytest.mark.parametrize(("kind", "size"), [("face", (200, 300)), ("holistic", (97, 61))])
def test_a_mirrored_drawing_is_the_drawing_of_mirrored_landmarks(kind, size):
    """Within one pixel, in the same colours: lines are rounded to pixels from another side."""
    draw, found = (draw_face, astronaut.face()) if kind == "face" else (draw_holistic, astronaut.person())
    flipped, drawn = mirror(kind, draw(found, size)), draw(found.mirrored(), size)
    assert colours(flipped) == colours(drawn)
    for one, other in ((flipped, drawn), (drawn, flipped)):
        for colour in colours(one):
            mask, partner = ((np.rint(255 * image) == colour).all(-1) for image in (one, other))
            # where lines of two colours cross, the visible pixels of the lower one depend on rounding
            assert (mask & ~near(partner)).sum() <= 0.02 * mask.sum() + 1, colour


def test_mirroring_twice_gives_the_image_back():
    image = np.random.default_rng(0).random((2, 5, 7, 3), np.float32)
    for kind in conditions.CONDITIONS:
        np.testing.assert_array_equal(mirror(kind, mirror(kind, image)), image)
        plain = np.array_equal(mirror(kind, image), image[:, :, ::-1])
        assert plain == (kind in ("canny", "depth", "mask", "scribble"))


def colours(image) -> set[tuple[int, ...]]:
    levels = np.rint(255 * image).astype(np.uint32)
    found = np.unique(levels @ np.array([1 << 16, 1 << 8, 1], np.uint32))
    return {(int(c) >> 16, int(c) >> 8 & 255, int(c) & 255) for c in found} - {(0, 0, 0)}


def has(image, group) -> bool:
    return tuple(round(255 * value) for value in group.colour) in colours(image)


def test_a_face_is_drawn_as_mediapipe_renders_it():
    truth = astronaut.reference()
    (top, bottom, left, right), render = truth["render_crop_yx"], truth["render_rgb"]
    drawn = draw_face(Landmarks(faces=truth["render_face478"][None]), SIZE)
    assert drawn.dtype == np.float32 and drawn.shape == (*SIZE, 3)
    np.testing.assert_array_equal(np.rint(255 * drawn[top:bottom, left:right]), render)
    assert (drawn.any(-1)).sum() == render.any(-1).sum()  # and there is nothing else


def test_several_faces_and_cut_ones():
    faces = astronaut.faces_of((0.1, 0.1, 0.8, 0.8), (0.4, 0.3, 0.3, 0.3))
    both, first = draw_face(Landmarks(faces=faces), (128, 128)), draw_face(Landmarks(faces=faces[:1]), (128, 128))
    lines = first.any(-1)
    np.testing.assert_array_equal(both[lines], first[lines])  # the larger lies on top
    assert both.any(-1).sum() > lines.sum()
    cut = draw_face(Landmarks(faces=astronaut.faces_of((-0.3, -4, 0.8, 5))), (64, 96))
    assert cut[:, :48].any() and not cut[:, 60:].any()


def test_a_person_is_drawn_with_what_was_found():
    person = astronaut.person()
    drawn = draw_holistic(person, SIZE)
    assert has(drawn, BODY["trunk"]) and has(drawn, connections.LEFT_HAND[0]) and has(drawn, FACE["oval"])
    assert not has(drawn, BODY["left leg"])  # the legs are below the picture, and probably not visible
    no_hand = draw_holistic(Landmarks(person.faces, person.pose, None, person.right_hand), SIZE)
    assert has(no_hand, connections.RIGHT_HAND[0]) and no_hand.any(-1).sum() < drawn.any(-1).sum()
    no_face = draw_holistic(Landmarks(pose=person.pose), SIZE)
    assert has(no_face, BODY["left of the head"]) and no_face.any(-1).sum() < no_hand.any(-1).sum()
    hidden = person.pose.copy()
    hidden[:, 3] = 0.49
    assert not draw_holistic(Landmarks(pose=hidden), SIZE).any()


def test_bodies_get_wider_lines_in_larger_images():
    """The upper arm of a pose that stands straight, across: OpenCV makes a line of 4 px 5 wide, of 8 px 9."""
    pose = np.full((33, 4), 0.5, np.float32)
    pose[:, 3] = 0
    pose[[11, 13]] = [[0.5, 0.2, 0, 1], [0.5, 0.8, 0, 1]]
    widths = [draw_holistic(Landmarks(pose=pose), (n, n))[n // 2].any(-1).sum() for n in (64, 128, 512, 1024)]
    assert widths == [1, 1, 5, 9]


def test_conditions_are_made_by_name():
    image, face, person = astronaut.photograph(), astronaut.face(), astronaut.person()
    size = image.shape[:2]
    np.testing.assert_array_equal(conditions.make("canny", image, low=50), canny(image, 50))
    np.testing.assert_array_equal(conditions.make("face", image, landmarks=face), draw_face(face, size))
    np.testing.assert_array_equal(conditions.make("holistic", image, landmarks=person), draw_holistic(person, size))
    ramp = np.tile(np.arange(256, dtype=np.float32), (256, 1))
    np.testing.assert_allclose(conditions.make("depth", image, depth=ramp)[..., 0], ramp / 255, atol=1e-6)
    flat = conditions.make("depth", image, model=lambda image: image[..., 0])
    assert flat.min() == 0 and flat.max() == 1


def test_of_many_landmarks_the_largest_face_is_drawn_with_a_note():
    faces = astronaut.faces_of((0.1, 0.1, 0.1, 0.1), (0.5, 0.5, 0.3, 0.3), (0.1, 0.6, 0.2, 0.2))
    notes: list[str] = []
    image = np.zeros((64, 64, 3), np.float32)
    drawn = conditions.make("face", image, landmarks=Landmarks(faces=faces), note=notes.append)
    np.testing.assert_array_equal(drawn, draw_face(Landmarks(faces=faces[1:2]), (64, 64)))
    conditions.make("face", image, landmarks=Landmarks(faces=faces), note=notes.append, most=3)
    assert len(notes) == 1 and "--faces 3" in notes[0]


def test_a_mask_is_the_object_on_its_background():
    image = np.full((20, 30, 3), [0.2, 0.5, 0.9], np.float32)
    image[5:15, 10:20] = [0.2, 0.5, 0.7]  # one channel differs by 0.2
    expected = np.zeros((20, 30, 3), np.float32)
    expected[5:15, 10:20] = 1
    np.testing.assert_array_equal(conditions.make("mask", image), expected)
    assert not conditions.make("mask", image, threshold=0.3).any()
    known = np.zeros((20, 30), np.float32)
    known[:3], known[3:5] = 0.5, 0.4
    drawn = conditions.make("mask", image, mask=known)
    assert drawn[:3].all() and not drawn[3:].any()


def test_a_scribble_is_the_large_contours_in_thick_lines():
    image = np.full((96, 128, 3), [0.2, 0.5, 0.9], np.float32)
    image[24:72, 32:96] = [0.2, 0.5, 0.7]  # a faint square in one channel
    image[40:44:2, 40:88:2] += 0.05  # a fine pattern in it
    lines = conditions.make("scribble", image)[..., 0]
    rows, columns = np.nonzero(lines)
    assert lines.any() and set(np.unique(lines)) == {0, 1}
    assert abs(rows.min() - 24) <= 3 and abs(rows.max() - 71) <= 3 and abs(columns.min() - 32) <= 3
    assert not lines[30:66, 38:90].any()
    thick = conditions.make("scribble", image, width=0.08)[..., 0]
    assert thick.sum() > 2 * lines.sum() and thick[lines > 0].all()
    assert not conditions.make("scribble", np.full((8, 8, 3), 0.5, np.float32)).any()
    np.testing.assert_array_equal(conditions.make("scribble", image.astype(np.float64))[..., 0], lines)


def test_a_scribble_wobbles_by_its_seed():
    image = np.zeros((64, 64, 3), np.float32)
    image[16:48, 16:48] = 1
    exact, one, same, other = (
        conditions.make("scribble", image, wobble=wobble, seed=seed)
        for wobble, seed in ((0.0, 1), (0.05, 1), (0.05, 1), (0.05, 2))
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any() and (one != exact).any()
    near = cv2.dilate(exact[..., 0], np.ones((9, 9), np.uint8))  # 0.05 of 64 px, and the brush
    assert near[one[..., 0] > 0].all() and one.sum() > 0.5 * exact.sum()


def test_a_drawing_keeps_its_strokes():
    paper = np.full((20, 30, 3), 0.95, np.float32)
    paper[10, 5:25] = [0.1, 0.1, 0.3]
    strokes = conditions.make("scribble", paper, drawing=True)
    assert strokes[10, 5:25].all() and strokes.sum() == 60


IMAGE = np.zeros((6, 8, 3), np.float32)
RAMP = np.linspace(1, 4, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(("call", "value"), [
    (lambda: canny(IMAGE, low=200, high=100), "200 and 100"),
    (lambda: canny(IMAGE, high=float("nan")), "nan"),
    (lambda: draw_face(Landmarks(), (8, 8)), "face"),
    (lambda: draw_holistic(Landmarks(), (8, 8)), "landmarks"),
    (lambda: mirror("pose", IMAGE), "'pose'.* canny, face, holistic, depth"),
    (lambda: conditions.make("pose", IMAGE), "'pose'.* canny, face, holistic, depth"),
    (lambda: canny(IMAGE, aperture=4), "aperture 4"),
    (lambda: conditions.make("canny", IMAGE, most=2), "'most'.* low, high, aperture, l2"),
    (lambda: conditions.make("face", IMAGE, landmarks=astronaut.face(), most=0), "0"),
    (lambda: conditions.make("mask", IMAGE, mask=np.zeros((3, 3), np.float32)), r"\(3, 3\).* \(6, 8\)"),
    (lambda: conditions.make("mask", IMAGE, threshold=1), "threshold 1"),
    (lambda: conditions.make("scribble", IMAGE, width=1), "width 1"),
    (lambda: conditions.make("scribble", IMAGE, wobble=-0.1), "wobble -0.1"),
    (lambda: conditions.make("depth", IMAGE, depth=RAMP), r"4x3.* 8x6"),
    (lambda: conditions.make("depth", IMAGE, model=lambda image: RAMP), "4x3"),
    (lambda: conditions.make("depth", IMAGE, depth=RAMP, model=lambda image: RAMP), r"depth=.* model="),
    (lambda: conditions.make("depth", IMAGE), r"depth=.* model=.* inflate="),
    (lambda: conditions.make("depth", IMAGE, depth=RAMP, inflate=True), r"depth=.* inflate="),
])  # fmt: skip
def test_invalid_values_are_refused(call, value):
    refused(ValueError, call, match=value)


def test_near_is_bright():
    """A map of inverse depth, and one of distances in any unit, give the same image."""
    nearness = normalise(RAMP)
    np.testing.assert_allclose(nearness, (RAMP - 1) / 3, atol=1e-6)
    for unit in (1, 7):
        np.testing.assert_allclose(normalise(unit / RAMP, "low"), nearness, atol=1e-6)
    image = draw_depth(RAMP)
    assert image.dtype == np.float32
    np.testing.assert_array_equal(image, np.repeat(nearness[..., None], 3, -1))


def test_a_disc_is_inflated_to_half_a_ball():
    y, x = np.mgrid[:65, :65] - 32
    away = np.hypot(x, y)
    image = np.ones((65, 65, 3), np.float32)
    image[away < 20] = (0.8, 0.1, 0.1)
    made = conditions.make("depth", image, inflate=True)
    height = 2 * made[..., 0] - 1  # above a base of a half
    assert made.dtype == np.float32 and (made[away >= 20] == 0).all() and made[32, 32, 0] == 1
    inside = away < 18
    np.testing.assert_allclose(height[inside], np.sqrt(1 - (away[inside] / 20) ** 2), atol=0.05)
    sloped = inflated(away < 20, base=0.25, floor=0.5)
    assert sloped[0, 0] == 0 and sloped[-1, 0] == 0.5 and 0.25 < sloped[32, 13] < sloped[32, 32] == 1
    assert not inflated(np.zeros((8, 8), bool)).any()
    assert "inflate" in emptiness("depth", conditions.make("depth", np.ones_like(image), inflate=True))


def test_what_was_not_measured_is_black():
    holes = RAMP.copy()
    holes[0, 1], holes[1, 1] = np.nan, np.inf
    found = normalise(holes)
    assert found[0, 1] == found[1, 1] == 0 and found[0, 0] == 0 and found[-1, -1] == 1
    distances = 1 / RAMP
    distances[0, 1] = 0  # as depth cameras write it
    np.testing.assert_allclose(normalise(distances, "low")[1:], normalise(RAMP)[1:], atol=1e-6)
    assert normalise(distances, "low")[0, 1] == 0


@pytest.mark.parametrize(("depth", "near", "value"), [
    (np.full((2, 2), 3.0), "high", "depth is 3"),
    (np.full((2, 2), np.nan), "high", "NaN"),
    (np.zeros((2, 2)), "low", "0"),
    (np.array([[-1.0, 2.0]]), "low", "-1.* near='high'"),
])  # fmt: skip
def test_maps_without_information_are_refused(depth, near, value):
    refused(ValueError, lambda: normalise(depth, near), match=value)


def test_every_kind_of_file_gives_the_same_map(tmp_path):
    steps = np.round((RAMP - 1) / 3 * 65535).astype(np.uint16)
    cv2.imwrite(str(tmp_path / "a.png"), steps)
    np.save(tmp_path / "b.npy", RAMP)
    np.save(tmp_path / "c.npy", RAMP.astype(np.float64)[None, :, :, None])
    np.savez(tmp_path / "d.npz", anything=RAMP)
    np.savez(tmp_path / "e.npz", depth=RAMP, mask=RAMP > 2, pickled=np.array([{}], object))
    np.save(tmp_path / "f.npy", steps)
    for path in sorted(tmp_path.iterdir()):
        depth = read_depth(path)
        assert depth.shape == (3, 4) and depth.dtype == np.float32
        np.testing.assert_allclose(normalise(depth), (RAMP - 1) / 3, atol=1e-5)


@pytest.mark.parametrize(("name", "write", "value"), [
    ("none.npy", lambda path: None, ""),
    ("a.exr", lambda path: path.write_bytes(b"1"), r"'\.exr'"),
    ("colour.npy", lambda path: np.save(path, np.zeros((3, 4, 3))), r"\[3, 4, 3\] of float64"),
    ("words.npy", lambda path: np.save(path, np.array([["near", "far"]])), r"\[1, 2\]"),
    ("pickled.npy", lambda path: np.save(path, np.array([{"a": 1}])), "pickle"),
    ("text.npz", lambda path: path.write_text("no archive"), ""),
    ("two.npz", lambda path: np.savez(path, near=RAMP, far=RAMP), "near, far.* 'depth'"),
    ("colours.png", lambda path: write_image(path, np.random.default_rng(0).random((4, 4, 3), np.float32)), "grey"),
])  # fmt: skip
def test_files_that_are_no_maps_are_refused(tmp_path, name, write, value):
    write(tmp_path / name)
    refused((ValueError, OSError), read_depth, tmp_path / name, match=f"{name}.*{value}")


@pytest.mark.parametrize("shape", [[1, 3, "h", "w"], [1, 3, 28, 42], [1, "h", "w", 3], ["n", 3, None, None]])
def test_an_onnx_model_gives_a_map_of_the_images_size(tmp_path, shape):
    """The model is the mean of the channels: the map is the image's own grey, normalised."""
    pytest.importorskip("onnxruntime")
    save_model(tmp_path / "mean.onnx", shape, MEAN_OF_CHANNELS)
    image = np.repeat(np.tile(np.linspace(0, 1, 60, dtype=np.float32), (40, 1))[..., None], 3, -1)
    model = OnnxDepth(tmp_path / "mean.onnx", side=42)
    depth = model(image)
    assert depth.shape == (40, 60) and depth.dtype == np.float32
    np.testing.assert_allclose(depth[:, 30], np.mean((image[0, 30] - model.mean) / model.std), atol=0.05)
    np.testing.assert_allclose(conditions.make("depth", image, model=model), image, atol=0.03)


def test_files_that_are_no_depth_model_are_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "text.onnx").write_text("no model")
    save_model(tmp_path / "flat.onnx", [1, 10], [("Identity", ["x"], {})])
    save_model(tmp_path / "same.onnx", [1, 3, 14, 14], [("Identity", ["x"], {})])
    for name, value in (("none", ""), ("text", ""), ("flat", r"\[1, 10\]"), ("same", r"\[1, 3, 14, 14\]")):
        path = tmp_path / f"{name}.onnx"
        refused((ValueError, OSError), lambda path: OnnxDepth(path)(IMAGE), path, match=f"{path}.*{value}")


def test_a_missing_onnxruntime_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "a.onnx").write_bytes(b"1")
    refused(ImportError, OnnxDepth, tmp_path / "a.onnx", match=r"a\.onnx.*\[onnx\]")
