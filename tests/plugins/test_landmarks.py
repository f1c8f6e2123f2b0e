"""Landmarks: checked, written, mirrored, and found.

The search for faces is tested with a stand-in for mediapipe that finds red rectangles (`astronaut.FaceMesh`). The last
tests run mediapipe itself and are skipped without it: the extra `landmarks` needs an environment of its own
(docs/conditions.md).
"""

import json
import sys

import astronaut
import cv2
import numpy as np
import pytest
from refusal import refused

from plugins.conditions import detection, registry
from plugins.conditions.detection import find_faces, find_holistic
from plugins.conditions.landmarks import SHAPES, Landmarks, read_landmarks, write_landmarks


def assert_same(one: Landmarks, other: Landmarks, atol: float = 0.0) -> None:
    for name in SHAPES:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype == np.float32
            np.testing.assert_allclose(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["a.json", "b.npz", "sub/c.JSON"])
def test_landmarks_are_read_as_written(tmp_path, name):
    for landmarks in (astronaut.person(), astronaut.face(), Landmarks()):
        write_landmarks(tmp_path / name, landmarks, overwrite=True)
        assert_same(read_landmarks(tmp_path / name), landmarks, 1e-6 if "son" in name.lower() else 0)
    assert read_landmarks(tmp_path / name).empty
    refused(FileExistsError, write_landmarks, tmp_path / name, Landmarks(), match=name)
    refused(ValueError, lambda: write_landmarks(tmp_path / "a.npy", Landmarks()), match=r"\.npy")


def test_one_face_needs_no_list_around_it(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"faces": astronaut.reference()["face478"].tolist(), "pose": None}))
    assert_same(read_landmarks(tmp_path / "a.json"), astronaut.face())


MESH = np.full((478, 3), 0.5)


@pytest.mark.parametrize(("fields", "value"), [
    ({"faces": MESH[:68]}, r"faces.* \[1, 68, 3\].* \[n, 478, 3\]$"),
    ({"faces": MESH[None, :468]}, r"468.* refine_landmarks"),
    ({"faces": MESH[..., :2]}, r"faces.* \[1, 478, 2\]"),
    ({"pose": MESH[:33]}, r"pose.* \[33, 3\].* \[33, 4\]"),
    ({"left_hand": MESH[None, :21]}, r"left_hand.* \[1, 21, 3\].* \[21, 3\]"),
    ({"faces": np.where(np.arange(3) == 2, np.nan, MESH)}, "faces.* NaN"),
    ({"faces": 512 * MESH}, "faces.* 256"),
    ({"face": MESH}, "'face'.* faces, pose, left_hand, right_hand"),
])  # fmt: skip
def test_wrong_landmarks_are_refused(tmp_path, fields, value):
    np.savez(tmp_path / "a.npz", **fields)
    (tmp_path / "a.json").write_text(json.dumps({name: np.asarray(value).tolist() for name, value in fields.items()}))
    for name in ("a.npz", "a.json"):
        assert refused(ValueError, read_landmarks, tmp_path / name, match=value).startswith(str(tmp_path / name))


@pytest.mark.parametrize(("name", "content"), [
    ("none.json", None),
    ("cut.json", b'{"faces": [['),
    ("bytes.json", b"\xff\xfe\x00"),
    ("list.json", b"[1, 2]"),
    ("words.json", b'{"faces": "many"}'),
    ("a.txt", b"1"),
    ("text.npz", b"no archive"),
])  # fmt: skip
def test_files_without_landmarks_are_refused(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refused((ValueError, OSError), read_landmarks, tmp_path / name, match=name)


def test_left_and_right_are_exchanged():
    person, mirrored = astronaut.person(), astronaut.person().mirrored()
    assert_same(mirrored.mirrored(), person, 1e-6)
    assert_same(Landmarks().mirrored(), Landmarks())
    np.testing.assert_allclose(mirrored.left_hand[:, 0], 1 - person.right_hand[:, 0], atol=1e-6)
    np.testing.assert_allclose(mirrored.left_hand[:, 1:], person.right_hand[:, 1:])
    for points in (mirrored.faces[0], person.faces[0]):  # the outer corners of the eyes
        assert points[263, 0] > points[33, 0]  # a left eye is on the right of the image, in a mirror too
    assert Landmarks(left_hand=person.left_hand).mirrored().left_hand is None


@pytest.fixture
def fake(monkeypatch):
    astronaut.fake_mediapipe(monkeypatch)
    yield
    astronaut.forget()


def found_boxes(landmarks: Landmarks, size: tuple[int, int]) -> list[tuple[int, ...]]:
    height, width = size
    box = detection.boxes(landmarks.faces) * [width, height, width, height]
    return [tuple(np.rint([b[0], b[1], b[2] - b[0], b[3] - b[1]]).astype(int).tolist()) for b in box]


@pytest.mark.parametrize(("size", "boxes"), [
    ((300, 400), [(200, 100, 120, 100), (90, 100, 80, 80), (10, 10, 60, 60)]),  # largest first
    ((512, 512), [(0, 0, 20, 20)]),  # 20 px of 512 are found in squares
    ((512, 512), [(245, 130, 20, 20)]),
    ((512, 512), [(492, 492, 20, 20)]),
    ((300, 400), [(180, 130, 40, 40)]),  # across the middle, where squares of a half begin and end
    ((300, 400), [(0, 100, 40, 40)]),  # cut off by the image itself
])  # fmt: skip
def test_faces_are_found(fake, size, boxes):
    assert found_boxes(find_faces(astronaut.marked(size, *boxes)), size) == boxes


def test_small_faces_are_searched_for_until_there_are_enough(fake):
    size = (240, 400)
    boxes = [(20, 20, 60, 60), (150, 30, 30, 40), (200, 180, 26, 30), (300, 60, 16, 18), (350, 200, 14, 16)]
    image = astronaut.marked(size, *boxes)
    for most, count in ((1, 1), (2, 3), (3, 3), (5, 5), (None, 5)):
        assert sorted(found_boxes(find_faces(image, most), size)) == sorted(boxes[:count])


def test_no_face_is_an_error(fake):
    for size in ((5, 400), (1, 1)):
        refused(ValueError, find_faces, astronaut.marked(size), match="face")


def test_huge_images_are_downscaled(fake, monkeypatch):
    seen = []
    process = astronaut.FaceMesh.process
    monkeypatch.setattr(astronaut.FaceMesh, "process", lambda self, p: seen.append(p.shape) or process(self, p))
    box = (2000, 1000, 1000, 1500)
    (found,) = found_boxes(find_faces(astronaut.marked((3000, 6000), box)), (3000, 6000))
    assert np.abs(np.subtract(found, box)).max() < 8 and seen == [(640, 1280, 3)]


def test_a_person_is_found(fake):
    photograph, truth = astronaut.photograph(), astronaut.person()
    found = find_holistic(photograph)
    assert_same(found, Landmarks(truth.faces, truth.pose, None, truth.right_hand))
    drawn = registry.make("holistic", photograph)
    np.testing.assert_array_equal(drawn, registry.make("holistic", photograph, landmarks=found))
    refused(ValueError, lambda: find_holistic(np.zeros((8, 8, 3), np.float32)), match="person")


@pytest.mark.parametrize(("height", "width", "divisor"), [(100, 333, 4), (720, 1280, 2)])
def test_squares_cover_the_image_and_overlap_by_a_half(height, width, divisor):
    side, squares = -(-max(height, width) // divisor), list(detection.squares(height, width, divisor))
    count = np.zeros((height, width), int)
    for top, left, bottom, right in squares:
        assert bottom <= height and right <= width and right - left == side
        count[top:bottom, left:right] += 1
    assert count.min() >= 1
    half = side // 2 - 1  # whatever is smaller than half a square lies inside one
    for x in range(0, width - half, 7):
        for y in range(0, max(1, height - half), 7):
            assert any(a <= y and b <= x and min(y + half, height) <= c and x + half <= d for a, b, c, d in squares)


def test_a_missing_mediapipe_names_the_extra(monkeypatch):
    without_models = type(sys)("mediapipe")
    without_models.__version__ = "1.2.2"  # pyright: ignore[reportAttributeAccessIssue]
    for module, value in ((None, "'landmarks'.* --landmarks"), (without_models, r"1\.2\.2.* 'landmarks'")):
        monkeypatch.setitem(sys.modules, "mediapipe", module)
        for find in (find_faces, find_holistic):
            astronaut.forget()
            refused(ImportError, find, astronaut.photograph(), match=value)


@pytest.fixture
def mediapipe():
    pytest.importorskip("mediapipe", reason="the extra `landmarks` needs an environment of its own")
    astronaut.forget()
    yield
    astronaut.forget()


def group(size: tuple[int, int], *heads: tuple[int, int, int]) -> np.ndarray:
    """A plain image with the photograph's head at each left, top, width; its face is half as wide."""
    image, head = np.full((*size, 3), 0.5, np.float32), astronaut.photograph()[10:125, 70:160]
    for left, top, width in heads:
        height = round(width * head.shape[0] / head.shape[1])
        resized = cv2.resize(head, (width, height), interpolation=cv2.INTER_AREA)
        image[top : top + height, left : left + width] = resized
    return image


def test_mediapipe_finds_the_reference(mediapipe):
    assert_same(find_faces(astronaut.photograph()), astronaut.face(), 1e-6)
    person = astronaut.person()
    assert_same(find_holistic(astronaut.photograph()), Landmarks(person.faces, person.pose), 1e-6)


def test_mediapipe_finds_five_faces(mediapipe):
    heads = [(10, 20, 90), (120, 30, 150), (300, 40, 110), (450, 50, 130), (600, 10, 80)]
    found = detection.boxes(find_faces(group((400, 700), *heads), 5).faces) * [700, 400, 700, 400]
    centres = (found[:, :2] + found[:, 2:]) / 2
    assert len(found) == 5
    for left, _, width in heads:
        assert (abs(centres[:, 0] - (left + width / 2)) < 0.1 * width).sum() == 1
    assert found[0, 2] - found[0, 0] > 70 and abs(centres[0, 0] - 195) < 15  # the widest comes first


@pytest.mark.parametrize("at", [(30, 40), (241, 130), (400, 380)])
def test_mediapipe_finds_a_face_of_20_px(mediapipe, at):
    found = find_faces(group((512, 512), (*at, 37))).faces
    left, top, right, bottom = detection.boxes(found)[0] * 512
    assert len(found) == 1 and 16 < right - left < 24
    assert abs((left + right) / 2 - (at[0] + 18)) < 4 and at[1] < top and bottom < at[1] + 48


def test_mediapipe_finds_the_mirrored_landmarks_in_the_mirrored_image(mediapipe):
    photograph = astronaut.photograph()
    flipped = find_faces(np.ascontiguousarray(photograph[:, ::-1])).faces[0]
    expected = find_faces(photograph).mirrored().faces[0]
    distance = np.linalg.norm((flipped - expected)[:, :2], axis=-1)
    assert np.median(distance) < 0.003 and distance.max() < 0.012  # of the image's side
