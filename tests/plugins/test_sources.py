"""A user's own images are found in every documented layout, and mistakes are named."""

import io
import json
import pickle
import tarfile

import cv2
import numpy as np
import pytest
from made_archives import tar_bytes
from refusal import refused

from common.data.files import expand
from plugins.data import FolderPictures, JsonlPictures, Source, TfdsPictures, WebDatasetPictures, open_source

COUNT = 5
NAMES = ["1", "2", "30", "birds/9", "birds/10"]


def image_of(number: int) -> np.ndarray:
    """An image that no other number has."""
    return np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)


def edges(number: int) -> np.ndarray:
    return 255 - image_of(number)


def png(image: np.ndarray) -> bytes:
    return cv2.imencode(".png", image[..., ::-1])[1].tobytes()


def write(path, content: np.ndarray | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else png(content))


def write_lines(path, entries):
    write(path, "\n".join(json.dumps(entry) for entry in entries) + "\n\n")


def write_folder(folder):
    for number, name in enumerate(NAMES):
        write(folder / "images" / f"{name}.png", image_of(number))
        write(folder / "conditions" / "canny" / f"{name}.png", edges(number))
        write(folder / "captions" / f"{name}.txt", f"thing {number}\n\n also {number} \n")
    return folder


def write_jsonl(folder):
    entries = []
    for k in range(COUNT):
        write(folder / f"{k}.png", image_of(k))
        write(folder / "edges" / f"{k}.png", edges(k))
        conditions = {"canny": f"edges/{k}.png", "face": None}
        entries.append({"image": f"{k}.png", "caption": [f"thing {k}", f"also {k}"], "conditions": conditions})
    write_lines(folder / "mine.jsonl", entries)
    return folder / "mine.jsonl"


def write_tar(path, numbers, mode="w"):
    files: dict[str, bytes] = {"readme.md": b"no image"}
    for number in numbers:
        files[f"{number:04d}.png"] = png(image_of(number))
        files[f"{number:04d}.canny.png"] = png(edges(number))
        files[f"{number:04d}.json"] = json.dumps({"text": [f"thing {number}", f"also {number}"], "w": 8}).encode()
    path.write_bytes(tar_bytes(files, mode))
    return path


LAYOUTS = {
    FolderPictures: write_folder,
    JsonlPictures: write_jsonl,
    WebDatasetPictures: lambda folder: write_tar(folder / "a.tar", range(COUNT)),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_complete_layout(kind, tmp_path):
    source = open_source(LAYOUTS[kind](tmp_path))
    assert len(pickle.dumps(source)) < 1000  # nothing was opened yet
    source = pickle.loads(pickle.dumps(source))
    assert isinstance(source, Source) and isinstance(source, kind) and len(source) == COUNT
    for number in range(COUNT):
        record = source[number]
        np.testing.assert_array_equal(record.image, image_of(number))
        assert record.image.dtype == np.uint8
        assert record.captions == (f"thing {number}", f"also {number}")
        assert list(record.conditions) == ["canny"]
        np.testing.assert_array_equal(record.conditions["canny"].decode(), edges(number))
    assert len({source[i].key for i in range(COUNT)}) == COUNT


def test_folders_have_natural_order_and_are_read_on_access(tmp_path):
    source = open_source(write_folder(tmp_path))
    for damaged in ("conditions/canny/1.png", "images/2.png"):
        write(tmp_path / damaged, "no image")
    assert [source[i].key for i in range(COUNT)] == NAMES
    np.testing.assert_array_equal(source[0].image, image_of(0))
    np.testing.assert_array_equal(source[1].conditions["canny"].decode(), edges(1))
    refused(ValueError, lambda: source[0].conditions["canny"].decode(), match=r"canny/1\.png")
    refused(ValueError, lambda: source[1].image, match=r"images/2\.png")


def test_a_flat_folder_with_captions_beside(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.png", image_of(number))
    write(tmp_path / "1.txt", "a dog")
    write(tmp_path / "2.txt", "")
    write(tmp_path / "conditions" / "depth" / "2.png", edges(2))
    (tmp_path / ".hidden.png").write_bytes(b"")
    source = open_source(tmp_path)
    assert [source[i].captions for i in range(3)] == [(), ("a dog",), ()]
    assert [list(source[i].conditions) for i in range(3)] == [[], [], ["depth"]]


def test_folders_that_cannot_be_paired(tmp_path):
    write(tmp_path / "images" / "1.png", image_of(0))
    write(tmp_path / "conditions" / "canny" / "1_canny.png", edges(0))
    refused(ValueError, lambda: len(open_source(tmp_path)), match="'1_canny'")
    (tmp_path / "images" / "1.JPG").write_bytes(b"")
    refused(ValueError, lambda: len(open_source(tmp_path)), match=r"1\.JPG")
    (tmp_path / "empty").mkdir()
    refused(FileNotFoundError, lambda: len(open_source(tmp_path / "empty")), match="empty")


@pytest.mark.parametrize("condition", ["conditioning_image_file_name", "conditioning_image", "conditioning", "source"])
def test_lists_of_hugging_face_and_fill50k(condition, tmp_path):
    hugging_face, fill50k = ("metadata.jsonl", "file_name", "text"), ("prompt.json", "target", "prompt")
    name, image, text = fill50k if condition == "source" else hugging_face
    entries, folder = [], tmp_path / "train"
    for k in range(3):
        write(folder / "pictures" / f"{k}.png", image_of(k))
        write(folder / f"{k}c.png", edges(k))
        paths = {image: f"pictures/{k}.png", condition: f"{k}c.png", "depth_file_name": f"{k}c.png"}
        entries.append({text: f"thing {k}", **paths})
    write_lines(folder / name, entries)
    for source in (open_source(tmp_path, "train"), open_source(folder / name)):
        assert isinstance(source, JsonlPictures) and len(source) == 3
        record = source[2]
        assert record.captions == ("thing 2",) and sorted(record.conditions) == ["condition", "depth"]
        assert record.key == "pictures/2.png"
        np.testing.assert_array_equal(record.image, image_of(2))
        for kind in ("canny", "depth"):  # the one without a kind stands for any
            stored = record.condition(kind)
            assert stored is not None
            np.testing.assert_array_equal(stored.decode(), edges(2))


def test_other_fields_of_a_list_are_no_conditions(tmp_path):
    for name in ("a.png", "b.png"):
        write(tmp_path / name, image_of(0))
    other = {"image": "a.png", "source": "flickr", "original_file_name": "IMG_7.JPG", "url_file_name": "http://x/y.png"}
    write_lines(tmp_path / "mine.jsonl", [other, {"image": "a.png", "source": "b.png", "segments_file_name": "b.png"}])
    source = open_source(tmp_path / "mine.jsonl")
    assert [list(source[i].conditions) for i in range(2)] == [[], ["segments"]]
    write_lines(tmp_path / "mine.jsonl", [{"file_name": "a.png", "canny_file_name": "c.png"}])
    refused(FileNotFoundError, len, open_source(tmp_path / "mine.jsonl"), match=r"c\.png")


@pytest.mark.parametrize(("line", "kind", "value"), [
    ("{", ValueError, "JSON"),
    ('["a.png"]', ValueError, "JSON"),
    ('{"caption": "a"}', ValueError, "image, file_name"),
    ('{"image": 3}', ValueError, "3"),
    ('{"image": "a.png", "caption": 3}', ValueError, "caption is 3"),
    ('{"image": "a.png", "caption": ["a", 3]}', ValueError, "['a', 3]"),
    ('{"image": "a.png", "conditions": ["a.png"]}', ValueError, "conditions is"),
    ('{"image": "b.png"}', FileNotFoundError, "b.png"),
    ('{"image": "a.png", "conditions": {"canny": "c.png"}}', FileNotFoundError, "c.png"),
])  # fmt: skip
def test_a_wrong_line_is_named_by_its_number(line, kind, value, tmp_path):
    write(tmp_path / "a.png", image_of(0))
    (tmp_path / "mine.jsonl").write_text(f'{{"image": "a.png"}}\n\n{line}\n')
    assert value in refused(kind, len, open_source(tmp_path / "mine.jsonl"), match=r"mine\.jsonl line 3")


def test_a_line_ends_at_a_line_feed_alone(tmp_path):
    """JSON may hold Unicode's line breaks as they are; a file of Windows ends lines with a carriage return too."""
    write(tmp_path / "a.png", image_of(0))
    captions = ["two\u2028lines", "a\u2029b\u0085c"]
    entries = [json.dumps({"image": "a.png", "caption": text}, ensure_ascii=False) for text in captions]
    (tmp_path / "mine.jsonl").write_bytes("\r\n".join(entries).encode())
    source = open_source(tmp_path / "mine.jsonl")
    assert [source[i].captions for i in range(len(source))] == [(text,) for text in captions]


def test_tars_by_folder_glob_and_braces(tmp_path):
    for shard in range(3):
        write_tar(tmp_path / f"t-{shard:02d}.tar", range(2 * shard, 2 * shard + 2))
    for files in (tmp_path, tmp_path / "t-*.tar", tmp_path / "t-{00..02}.tar", tmp_path / "t-0{0,1,2}.tar"):
        source = open_source(files)
        assert isinstance(source, WebDatasetPictures) and len(source) == 6
        assert [source[i].key for i in range(6)] == [f"t-{i // 2:02d}/{i:04d}" for i in range(6)]
        np.testing.assert_array_equal(source[5].image, image_of(5))
    assert expand("{a,b}{08..10}") == ["a08", "a09", "a10", "b08", "b09", "b10"]
    for pattern, value in (("t-{00..03}.tar", r"t-03\.tar"), ("x-*.tar", r"x-\*")):
        refused(FileNotFoundError, len, open_source(tmp_path / pattern), match=value)


def test_tars_with_folders_texts_and_missing_members(tmp_path):
    files = {
        "./a/1.x.y": b"unknown",
        "./a/1.txt": b"one\ntwo",
        "./a/1.png": png(image_of(1)),
        "b/1.PNG": png(image_of(2)),
        "b/2.txt": b"of no image",
        "b/3.png": png(image_of(3)),
        "b/3.json": b'"a string"',
        "b/4.png": png(image_of(3)),
        "b/4.json": b"{",
        "b/5.png": b"no image",
        "b/" + 120 * "long" + ".png": png(image_of(4)),
    }
    (tmp_path / "x.tar").write_bytes(tar_bytes(files, "w"))
    source = open_source(tmp_path / "x.tar")
    assert [source[i].key for i in range(5)] == ["x/a/1", "x/b/1", "x/b/3", "x/b/4", "x/b/5"]
    assert [source[i].captions for i in range(3)] == [("one", "two"), (), ("a string",)]
    np.testing.assert_array_equal(source[5].image, image_of(4))
    refused(ValueError, lambda: source[3].captions, match=r"x\.tar.* b/4\.json")
    refused(ValueError, lambda: source[4].image, match=r"x\.tar.* b/5\.png")


@pytest.mark.parametrize("where", ["head", "content", "header", "garbage", "zip"])
def test_a_damaged_tar_is_named(where, tmp_path):
    path = write_tar(tmp_path / "bad.tar", range(3), "w:gz" if where == "zip" else "w")
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        third = tar.getmembers()[2]
    ends = {"head": 100, "content": third.offset_data + 10, "header": third.offset + 100}
    if where == "garbage":
        data[third.offset : third.offset + 512] = bytes(range(256)) * 2
    path.write_bytes(data[: ends.get(where)])
    refused(ValueError, lambda: len(open_source(path)), match=r"bad\.tar")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A prepared dataset: three records with an image, edges, several captions and a class."""
    import tensorflow_datasets as tfds
    from array_record.python.array_record_module import ArrayRecordWriter

    folder = tmp_path_factory.mktemp("tfds") / "mine" / "1.0.0"
    folder.mkdir(parents=True)
    texts = tfds.features.Sequence({"id": np.int64, "text": tfds.features.Text()})
    label, image = tfds.features.ClassLabel(names=["cat", "dog"]), tfds.features.Image()
    fields = {"photo": image, "lines": image, "texts": texts, "title": tfds.features.Text(), "label": label}
    features = tfds.features.FeaturesDict(fields)
    writer = ArrayRecordWriter(str(folder / "mine-train.array_record-00000-of-00001"), "group_size:1")
    for k in range(3):
        texts = [{"id": 7, "text": f"thing {k}"}, {"id": 8, "text": f"also {k}"}]
        pictures = {"photo": io.BytesIO(png(image_of(k))), "lines": io.BytesIO(png(edges(k)))}
        row = {**pictures, "texts": texts, "title": f"title {k}", "label": k % 2}
        writer.write(features.serialize_example(features.encode_example(row)))
    writer.close()
    info = tfds.core.SplitInfo(name="train", shard_lengths=[3], num_bytes=1)
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=features, split_infos=[info], check_data=False, description="mine"
    )
    return folder


def test_tfds_features_by_name(prepared):
    fields = dict(image="photo", conditions={"canny": "lines"})
    source = TfdsPictures(str(prepared), caption="texts/text", **fields)
    assert len(source) == 3 and source[2].key == "00000002"
    for number in range(3):
        np.testing.assert_array_equal(source[number].image, image_of(number))
        np.testing.assert_array_equal(source[number].conditions["canny"].decode(), edges(number))
        assert source[number].captions == (f"thing {number}", f"also {number}")
    assert TfdsPictures(str(prepared), caption="title", **fields)[1].captions == ("title 1",)
    assert TfdsPictures(str(prepared), caption="label", **fields)[1].captions == ("dog",)
    assert TfdsPictures(str(prepared), **fields)[1].captions == ()
    assert len(TfdsPictures("mine:1.0.0", "train[:2]", data_dir=str(prepared.parents[1]), **fields)) == 2
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source))[1].image, image_of(1))


def test_tfds_errors_are_one_line(prepared):
    assert isinstance(open_source(prepared), TfdsPictures)
    for source, kind, value in (
        (open_source(prepared), ValueError, "'image'"),
        (TfdsPictures(str(prepared), image="photo", caption="words"), ValueError, "'words'"),
        (TfdsPictures(str(prepared), "test", "photo"), ValueError, "test"),
        (open_source("tfds:no_such_set"), FileNotFoundError, "no_such_set"),
        (TfdsPictures(str(prepared.parent / "nowhere")), FileNotFoundError, "nowhere"),
    ):
        refused(kind, len, source, match=value)


@pytest.mark.parametrize(("name", "content"), [
    ("a.jsonl", b"\n\n"),
    ("b.jsonl", b'{"image": "\xff"}'),
    ("a.tar", tar_bytes({"readme.md": b"no image"}, "w")),
    ("a.csv", b"a,b"),
])  # fmt: skip
def test_files_that_are_no_source_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    refused(ValueError, lambda: len(open_source(tmp_path / name)), match=name)
    for arguments, missing in (((tmp_path / "nowhere",), "nowhere"), ((tmp_path, "val"), "val")):
        refused(FileNotFoundError, open_source, *arguments, match=missing)
