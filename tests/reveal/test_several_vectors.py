"""`reveal build --vectors N`: crops of an image and sentences of a text in a memory without training."""

from pathlib import Path

import numpy as np
import pytest
from assistants import mistake, output_of
from PIL import Image
from published_folders import SIDE, clip_folder

from reveal import reader
from reveal.build import memory_build
from reveal.cli.main import main
from reveal.memory import Item, Memory
from reveal.processing.images import crops
from reveal.two_tower_assistant import TwoTowerAssistant

SENTENCES = ["The cup is blue.", "Nobody drinks.", "It is old."]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A CLIP, four photographs and two notes."""
    monkeypatch.setattr("common.runtime.setup", lambda: None)
    monkeypatch.setattr("reveal.pretrained.DATA", tmp_path / "nothing")
    monkeypatch.chdir(tmp_path)
    clip_folder(Path("clip"))
    rng = np.random.default_rng(0)
    for folder in ("photos", "notes"):
        Path(folder).mkdir()
    for n in range(4):
        small = rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)
        Image.fromarray(small).resize((72, 48), Image.Resampling.NEAREST).save(f"photos/{n}.png")
    Path("photos/1.txt").write_text("Vase 1 was made by Ann.")
    Path("notes/cup.txt").write_text(" ".join(SENTENCES))
    Path("notes/dog.txt").write_text("A dog barks.")
    return tmp_path


def build(capsys, vectors: int, memory: str = "m", *sources: str) -> dict:
    words = ["--encoder", "clip", "--quiet", "--vectors", str(vectors), "-o", memory]
    return output_of(capsys, "build", *(sources or ("photos", "notes")), *words)


def vectors_of(memory: Memory, number: int) -> np.ndarray:
    return np.asarray(memory.keys([number]))[0].reshape(memory.layout.key_vectors, -1)


@pytest.mark.parametrize("shape", [(48, 72), (72, 48), (1, 9)])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 9])
def test_crops_lie_in_a_grid_and_overlap(shape, count):
    image = np.arange(np.prod(shape) * 3).reshape(*shape, 3).astype(np.uint8)
    seen, found = np.zeros(shape, int), crops(image, count)
    base = image.__array_interface__["data"][0]
    assert len(found) == count
    for one in found:
        top, left = divmod((one.__array_interface__["data"][0] - base) // 3, shape[1])
        assert 0 < one.shape[0] <= shape[0] - top and 0 < one.shape[1] <= shape[1] - left
        np.testing.assert_array_equal(one, image[top : top + one.shape[0], left : left + one.shape[1]])
        seen[top : top + one.shape[0], left : left + one.shape[1]] += 1
    assert (seen.min() > 0) == (count > 1) or count == 1
    if min(shape) > 1 and count in (4, 9):
        assert len(np.unique([one.shape for one in found], axis=0)) == 1 and seen.max() == 4
        share = {4: 2 / 3, 9: 1 / 2}[count]
        assert found[0].shape[:2] == (round(share * shape[0]), round(share * shape[1]))
    if count == 1 and min(shape) > 1:
        assert not seen[0].any() and not seen[:, -1].any() and seen[shape[0] // 2, shape[1] // 2]


def test_a_key_has_the_views_of_its_item(here, capsys, monkeypatch):
    """Each is what the towers make of that crop or sentence; the image is decoded once."""
    assistant = TwoTowerAssistant.load("clip", sources=["own"], vectors=3)
    towers, processor, dim = assistant.vectors, assistant.processor, assistant.config.projection_dim
    pixels = np.asarray(Image.open("photos/2.png"))
    whole = Item("own", {"title": "Cups", "text": " ".join(SENTENCES)}, Path("photos/2.png").read_bytes())
    short = Item("own", {"text": SENTENCES[0]})
    decoded, decode = [], Item.pixels
    monkeypatch.setattr(Item, "pixels", lambda item: decoded.append(item) or decode(item))
    keys, values = assistant.reader(4).encode([whole, short])
    assert len(decoded) == 2 and keys.shape == (2, 3 * (2 * dim + 2)) and values.shape == (2, 1, 1)
    assert assistant.layout().key_dim == keys.shape[1]
    vectors = keys.reshape(2, 3, -1)
    texts = [f"Cups . {' '.join(SENTENCES)}", *SENTENCES[:2]]
    tokens = np.stack([processor.tokenizer(text)[0] for text in texts])
    views = np.stack([processor.preparation.resized(one) for one in (pixels, *crops(pixels, 2))])
    wanted = towers({"tokens": tokens, "image": views}, 4)
    np.testing.assert_allclose(vectors[0, :, :dim], wanted["image"], atol=1e-5)
    np.testing.assert_allclose(vectors[0, :, dim:-2], wanted["text"], atol=1e-5)
    assert (vectors[0, :, -2:] == 1).all()
    # of one sentence there is one vector, and padding
    assert not vectors[1, 1:].any() and vectors[1, 0, -2:].tolist() == [0, 1]


def test_the_towers_compile_once(here, capsys, monkeypatch):
    """Whatever the number of items, and with several vectors as with one."""
    monkeypatch.setattr(memory_build, "BATCH", 4)
    build(capsys, 1)
    compiled = reader.call._cache_size()
    build(capsys, 3, "several")
    assert reader.call._cache_size() == compiled
    assert Memory("several").layout.key_vectors == 3 and len(Memory("several")) == len(Memory("m"))


def test_the_memory_remembers(here, capsys):
    """Built with three vectors once; then searched, asked, added to, edited and encoded anew as any other."""
    report = build(capsys, 3)
    layout, dim = Memory("m").layout, 24
    assert report["counts"] == {"photos": 4, "notes": 2} and layout.key_vectors == 3
    assert layout.key_dim == 3 * (2 * dim + 2)
    assert output_of(capsys, "info", "m")["key_vectors"] == 3
    main(["info", "m"])
    assert f"key 3 x {2 * dim + 2} float32" in capsys.readouterr().out
    for n in range(4):
        found = output_of(capsys, "search", "m", "--image", f"photos/{n}.png", "-k", "1")["items"]
        assert found[0]["fields"]["from"]["file"] == f"{n}.png"
    # a sentence finds its text, by cosine alone
    sentence = TwoTowerAssistant.load("clip", "m")
    (row,) = sentence._query(None, SENTENCES[1])
    query = np.concatenate([np.zeros(dim), row, [0, 1]])
    found = sentence.memory.search(query[None], 1)
    assert Memory("m").items(found.ids[0])[0].fields["text"] == " ".join(SENTENCES)
    assert found.scores[0, 0] == pytest.approx(2, abs=1e-5)
    assert output_of(capsys, "ask", "-", "Nobody drinks", "--memory", "m")["answer"] == "Nobody drinks."

    words = ["--text", "A zeppelin flies. Quilla painted it.", "--source", "notes", "--quiet"]
    number = output_of(capsys, "add", "m", *words)["ids"][0]
    assert (vectors_of(Memory("m"), number)[:, -1] == [1, 1, 1]).all()
    output_of(capsys, "add", "m", "--edit", "--id", str(number), "--text", "Oona painted the zeppelin.", "--quiet")
    assert (vectors_of(Memory("m"), number)[:, -1] == [1, 0, 0]).all()
    ids = Memory("m").rows().ids
    before = np.asarray(Memory("m").keys(ids))
    output_of(capsys, "refresh", "m", "--quiet")
    assert Memory("m").layout == layout
    np.testing.assert_allclose(Memory("m").keys(ids), before, atol=1e-5)
    for vectors in (1, 5):
        memory_build.refresh(Memory("m"), TwoTowerAssistant.load("clip", sources=layout.sources, vectors=vectors))
        assert vectors_of(Memory("m"), number).shape == (vectors, 2 * dim + 2)
        assert output_of(capsys, "search", "m", "Oona", "-k", "1")["items"][0]["id"] == number


def test_a_small_object_in_a_photograph_is_found(here, capsys, monkeypatch):
    """Of towers that see how red an image is, a red corner is in a crop more than a faint red of a whole image."""

    def colours(assistant: TwoTowerAssistant, rows, batch: int):
        found, dim = {}, assistant.config.projection_dim
        if "tokens" in rows:
            found["text"] = np.eye(dim, dtype=np.float32)[np.zeros(len(rows["tokens"]), int)]
        if "image" in rows:
            mean = rows["image"].mean(axis=(1, 2)) / np.linalg.norm(rows["image"].mean(axis=(1, 2)), axis=1)[:, None]
            found["image"] = np.pad(mean.astype(np.float32), ((0, 0), (0, dim - 3)))
        return found

    monkeypatch.setattr(TwoTowerAssistant, "vectors", colours)
    Path("drawn").mkdir()
    sea = np.full((160, 160, 3), (0, 0, 200), np.uint8)
    boat = sea.copy()
    boat[8:48, 112:152] = (200, 0, 0)
    for name, image in (("boat", boat), ("sea", sea), ("dusk", np.full_like(sea, (20, 0, 200)))):
        Image.fromarray(image).save(f"drawn/{name}.png")
    first = {}
    for vectors in (1, 5, 10):
        build(capsys, vectors, f"of{vectors}", "drawn")
        found = output_of(capsys, "search", f"of{vectors}", "red", "-k", "3")["items"]
        first[vectors] = found[0]["fields"]["from"]["file"]
    assert first == {1: "dusk.png", 5: "boat.png", 10: "boat.png"}


def test_stored_images_have_the_pixels_of_a_crop(here):
    found = {n: TwoTowerAssistant.load("clip", sources=["own"], vectors=n).processor for n in (1, 2, 3, 5, 10, 17)}
    halves = {1: 2, 2: 3, 3: 3, 5: 3, 10: 4, 17: 5}
    assert {n: processor.image_size for n, processor in found.items()} == {n: SIDE * h // 2 for n, h in halves.items()}


@pytest.mark.parametrize(("words", "value"), [
    (["build", "notes", "--encoder", "clip", "--vectors", "0", "-o", "x"], "--vectors 0"),
    (["build", "notes", "--encoder", "clip", "--vectors", "100000", "-o", "x"], "--vectors 100000"),
    (["build", "notes", "--vectors", "3", "-o", "x"], "--encoder"),
    (["search", "m", "cup", "--engine", "faiss"], "--engine exact"),
])  # fmt: skip
def test_mistakes_are_one_line(here, capsys, words, value):
    pytest.importorskip("faiss")
    if words[0] == "search":
        build(capsys, 2)
    assert value in mistake(capsys, *words)
