"""Captioned pictures: labels, splits and the written folder, from small packages in the real formats; the tokenizer."""

import dataclasses
import gzip
import itertools
import json
import sys
import types
from collections import Counter

import cv2
import numpy as np
import pytest
from made_archives import write_deb, write_npm
from refusal import refused

from common.io.clip_tokenizer import END, START, WORD_END, Tokenizer
from plugins.data.captioned import caption, is_sided
from recipes.captioned_pictures import clipart, emoji, stamps, thumbnails
from recipes.captioned_pictures import prepare as splits
from recipes.captioned_pictures.prepare import Settings, prepare
from recipes.captioned_pictures.thumbnails import Picture
from recipes.captioned_pictures.train_tokenizer import SMALLEST, train_bpe

RED, GREEN, BLUE = (220, 30, 30), (20, 160, 60), (30, 60, 210)
FRUIT = {"1F34E": "red apple", "1F34C": "banana", "1F347": "grapes", "1F36B": "chocolate bar"}
DRAWINGS = {
    "food/fruit/apple_mo_01": ("Red Apple (B and W)", ["food", "fruit"]),
    "food/fruit/pear": ("pear", ["food", "fruit"]),
    "food/mela_architetto_f_01": ("Mela", ["architetto francesco rollandin"]),
    "people/sexy_lady": ("Sexy Lady", ["fruit"]),
    "shapes/stars/star_01": ("star", ["fruit"]),
}


def encoded(suffix, image) -> bytes:
    return cv2.imencode(suffix, image)[1].tobytes()


def disc(colour, size=80, alpha=255, suffix=".png") -> bytes:
    """On a transparent ground."""
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    image = np.zeros((size, size, 4), np.uint8)
    image[..., :3] = colour[::-1]
    image[..., 3] = np.where(np.hypot(x, y) < size * 0.4, alpha, 0)
    return encoded(suffix, image)


def names_archive(folder):
    groups = {"groups": {"2": "component", "4": "food-drink", "8": "symbols", "9": "flags"}}
    entries = [dict(label=label, hexcode=code, group=4, tags=["fruit", label]) for code, label in FRUIT.items()]
    entries[0]["skins"] = [dict(label="red apple: dark skin tone", hexcode="1F34E-1F3FF")]
    entries += [
        dict(label="keycap: 7", hexcode="0037-FE0F-20E3", group=8),
        dict(label="woman\u2019s “here” button", hexcode="1F201", group=8),
        dict(label="flag: Åland Islands", hexcode="1F1E6-1F1FD", group=9, tags=["AX"]),
        dict(label="dark skin tone", hexcode="1F3FF", group=2),
        dict(label="regional indicator A", hexcode="1F1E6"),
    ]
    files = {"package/en/data.json": entries, "package/meta/groups.json": groups}
    return write_npm(folder, emoji.NAMES, {name: json.dumps(value).encode() for name, value in files.items()})


def stamps_archive(folder):
    files = {
        "animals/mammals/zebra.png": disc((90, 90, 90)),
        "animals/mammals/zebra.txt": "A “zebra”.\nfr.utf8=Un zèbre.\n".encode(),
        "animals/mammals/zebra.dat": b"nomirror\n",
        "animals/mammals/cow.png": disc(BLUE),
        "animals/mammals/cow.txt": b"A cow.",
        "animals/mammals/mute.png": disc(RED),
        "animals/birds/cartoon/duck.png": disc(RED),
        "animals/birds/cartoon/duck.txt": b"A duck.",
        "symbols/math/plus.png": disc(RED),
        "symbols/math/plus.txt": b"Plus.",
    }
    return write_deb(folder, stamps.STAMPS, {stamps.ROOT + name: content for name, content in files.items()})


def svg(title, keywords) -> bytes:
    words = "".join(f"<rdf:li>{word}</rdf:li>" for word in keywords)
    return f"<svg><dc:title>{title}</dc:title><rdf:Bag>{words}</rdf:Bag></svg>".encode()


def render(*, svg_string, width, **_) -> bytes:
    """Stands in for the renderer; an SVG file is the name of its colour."""
    assert width == 4 * 64
    return disc({"red": RED, "green": GREEN, "blue": BLUE}[svg_string], width)


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """Small archives of all packages, with digests of their own."""
    unpinned = [dataclasses.replace(one, package=dataclasses.replace(one.package, sha256="")) for one in emoji.SETS]
    monkeypatch.setattr(emoji, "SETS", unpinned)
    monkeypatch.setattr(emoji, "NAMES", dataclasses.replace(emoji.NAMES, sha256=""))
    monkeypatch.setitem(sys.modules, "resvg_py", types.SimpleNamespace(svg_to_bytes=render))
    folder = tmp_path / "archives"
    folder.mkdir()
    names_archive(folder)
    stamps_archive(folder)
    noto, fluent, line = emoji.SETS
    discs, webp, drawings = {}, {}, {}
    for n, code in enumerate(FRUIT):  # all discs of a set differ, two drawings are the same
        size = 80 + 20 * n
        discs[f"{noto.folder}/{code.lower()}.png"] = disc((size, size, 250 - size), 2 * size)
        webp[f"{fluent.folder}/{code.lower()}.webp"] = disc((size, size, 250 - size), 2 * size, suffix=".webp")
        drawings[f"{line.folder}/{code}.svg"] = (b"red", b"green", b"blue", b"red")[n]
    for style, files in ((noto, discs), (fluent, webp), (line, drawings)):
        write_npm(folder, style.package, files)
    write_deb(folder, clipart.TITLES, {f"{clipart.SVG_ROOT}{stem}.svg": svg(*text) for stem, text in DRAWINGS.items()})
    shapes = {f"{clipart.PNG_ROOT}{stem}.png": disc((9, 9, 9) if "apple" in stem else GREEN) for stem in DRAWINGS}
    write_deb(folder, clipart.PIXELS, shapes)
    return folder


def test_emoji_are_matched_by_code_points(tmp_path):
    path, noto = names_archive(tmp_path), emoji.SETS[0]
    names = emoji.read_names(path)
    assert [name.label for name in names.values()] == [*FRUIT.values(), "keycap, 7", "woman's here button"]
    assert names["1f34e"] == emoji.Emoji("red apple", ("fruit",), "food-drink")
    assert emoji.read_names(path, flags=True)["1f1e6-1f1fd"].group == "flags"
    codes = ("37-20e3", "1f34e", "0037-fe0f-20e3", "1f34e-1f3ff")
    archive = write_npm(tmp_path, noto.package, {f"{noto.folder}/{code}.png": disc(RED) for code in codes})
    found = [(p.label, p.style, p.mirror) for p in emoji.pictures(noto, archive, names, 64)]
    assert found == [("red apple", "noto emoji", True), ("keycap, 7", "noto emoji", False)]


def test_titles_are_cleaned():
    titles = {
        "AfricanDrum_02 (B and W)": "african drum",
        "Clipart by Nicu Buculei - pear": "pear",
        "mouth - body part": "mouth",
        "Trumpet B Flat (colour)": "trumpet flat",
        "crème brûlée #3": "creme brulee",
        "cup_icon": "cup",
    }
    assert {title: clipart.clean(title) for title in titles} == titles


def test_clip_art_is_labelled_by_known_words(archives):
    shared = {f"a/{name}": clipart.Metadata("Various Things", ()) for name in ("dog_ganson_01", "cat2", "gatto", "owl")}
    titled = {"b/x1": clipart.Metadata("stick man", ()), "b/bw": clipart.Metadata("a dog", ())}
    labels = {"a/dog_ganson_01": "dog", "a/cat2": "cat", "a/owl": "owl", "b/x1": "stick man", "b/bw": "dog"}
    assert clipart.labels(shared | titled, {"dog", "cat", "owl", "man"}) == labels
    keywords = {str(i): clipart.Metadata("", ("fruit", "hash(0x1)", "rollandin")) for i in range(3)}
    keywords["last"] = clipart.Metadata("", ("mela",))
    assert clipart.known_words(keywords, ["Red apple"]) == {"red", "apple", "fruit"}
    metadata = clipart.read_metadata(next(archives.glob("openclipart-svg*")))
    assert set(metadata) == set(DRAWINGS) - {"shapes/stars/star_01"}
    known = {"red", "apple", "pear", "fruit", "food", "lady"}
    found = {p.label: p for p in clipart.pictures(next(archives.glob("openclipart-png*")), metadata, known, 64)}
    styles = {label: picture.style for label, picture in found.items()}
    assert styles == {"red apple": "black and white clip art", "pear": "clip art"}
    assert found["pear"].tags == ("food", "fruit")


def test_stamps_have_sentences(tmp_path):
    cow, zebra = stamps.pictures(stamps_archive(tmp_path), 64)
    assert (cow.label, cow.style, cow.mirror, cow.group, cow.tags) == ("A cow.", "", True, "animals", ("mammals",))
    assert (zebra.label, zebra.mirror) == ("A zebra.", False)


def square(side) -> bytes:
    """A red square on white, with a margin of a tenth."""
    image = np.full((side, side, 3), 255, np.uint8)
    image[side // 10 : -side // 10, side // 10 : -side // 10] = RED[::-1]
    return encoded(".png", image)


def test_hidden_colours_do_not_bleed_into_edges():
    """Blue and opaque beside red that cannot be seen: the mean of each block is weighted by alpha."""
    image = np.zeros((128, 128, 4), np.uint8)
    image[..., :3] = RED[::-1]
    image[:, :65] = (*BLUE[::-1], 255)
    thumbnail = thumbnails.decode(encoded(".png", image), 64, trim=False)
    assert thumbnail is not None
    np.testing.assert_array_equal(thumbnail[:, :32], np.broadcast_to(BLUE, (64, 32, 3)))
    np.testing.assert_array_equal(thumbnail[:, 33:], 255)
    half = np.broadcast_to((np.array(BLUE) + 255) / 2, (64, 3))
    np.testing.assert_allclose(thumbnail[:, 32], half, atol=0.51)


def test_a_drawing_is_cut_out_centred_and_squared():
    page = np.full((300, 500, 3), 255, np.uint8)
    page[20:60, 30:190] = GREEN[::-1]  # 160 by 40, in a corner
    thumbnail = thumbnails.decode(encoded(".png", page), 64, trim=True)
    assert thumbnail is not None
    ys, xs = np.nonzero(thumbnail.min(axis=-1) < 200)
    assert (xs.min(), xs.max()) == (2, 61)  # a margin of 1/32
    assert (ys.min() + ys.max(), np.ptp(ys) + 1) == (63, 16)  # 15 of 64, not on whole pixels


def test_small_empty_unreadable_and_huge_pictures_are_left_out(monkeypatch):
    monkeypatch.setattr(thumbnails, "MAX_PIXELS", 80 * 80 - 1)
    for content in (square(40), encoded(".png", np.full((70, 70), 255, np.uint8)), b"no picture", square(80)):
        assert thumbnails.decode(content, 64, trim=True) is None
    assert thumbnails.decode(square(79), 64, trim=True) is not None


def test_captions():
    assert caption("red apple", "3d emoji", "fruit") == "red apple, fruit, 3d emoji"
    assert caption("A zebra.") == "A zebra."
    assert not is_sided("bright leftovers")
    sided = ("Left hand", "down-right arrow", "arrow pointing left, blue", "on the left.", "(left) hand", "leftward")
    assert all(is_sided(text) for text in sided)


def made(label, style, shade=0, source="s", group="food-drink") -> Picture:
    return Picture(np.full((64, 64, 3), shade, np.uint8), label, style, (), group, source)


def test_duplicates_of_one_source_are_removed():
    pictures = [made("a", "x", 8), made("b", "x", 9), made("c", "x", 32), made("d", "x", 8, source="other")]
    assert [picture.label for picture in splits.distinct(pictures)] == ["a", "c", "d"]


def test_labels_are_held_out():
    styles = ["x", "y", "z"]
    pictures = [made(f"label {i}", style) for i in range(20) for style in styles]
    pictures += [made(f"label {i}", "clip art", source="clips", group="food") for i in range(20)]
    pictures += [made("label 3", "", source="stamps"), made("rare", "x"), made("OK button", "x", group="symbols")]
    names = splits.assign(pictures, "stamps", styles, 5, 4)
    split = {(p.label, p.style, p.source): name for p, name in zip(pictures, names, strict=True)}
    unseen = {label for (label, *_), name in split.items() if name == "unseen"}
    partly = [(label, style) for (label, style, _), name in split.items() if name == "unseen_style"]
    assert len(unseen) == 5 and {style for _, style in partly} == set(styles)
    assert {name for (label, _, source), name in split.items() if label in unseen and source != "stamps"} == {"unseen"}
    assert len(partly) == len({label for label, _ in partly} - unseen) == 4
    assert [key[2] for key, name in split.items() if name == "test"] == ["stamps"]
    assert split["rare", "x", "s"] == split["OK button", "x", "s"] == "train"
    assert splits.assign(pictures[::-1], "stamps", styles, 5, 4)[::-1] == names


def test_a_prepared_folder(archives, tmp_path):
    folder, settings = tmp_path / "out", Settings(unseen=1, unseen_style=1, tokens=540)
    counts = prepare(folder, archives, settings)
    images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
    index = json.loads((folder / "index.json").read_text("utf-8"))
    entries = index["pictures"]
    assert images.shape == (len(entries), 64, 64, 3) and images.dtype == np.uint8
    held_out = min(("red apple", "banana", "grapes"), key=splits.digest)  # two line emoji are duplicates
    unseen = 4 if held_out == "red apple" else 3  # a clip art has that label too; the pear has none here
    assert counts == {"train": 11 - unseen, "unseen": unseen, "unseen_style": 1, "test": 2}
    assert {entry["label"] for entry in entries if entry["split"] == "unseen"} == {held_out}
    red = next(i for i, e in enumerate(entries) if (e["label"], e["style"]) == ("red apple", "line emoji"))
    np.testing.assert_array_equal(images[red, [32, 0], [32, 0]], [RED, (255, 255, 255)])
    assert [source["package"] for source in index["sources"]][-1] == stamps.STAMPS.name
    assert all(len(source["sha256"]) == 64 and source["licence"] for source in index["sources"])
    tokenizer = Tokenizer.from_folder(folder)
    assert len(tokenizer.vocab) == 540
    assert tokenizer.decode(tokenizer.encode("banana, 3d emoji")) == "banana , 3 d emoji"
    prepare(tmp_path / "again", archives, settings)
    for path in sorted(folder.rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(folder)).read_bytes(), path
    refused(FileExistsError, prepare, folder, archives)


def test_other_and_missing_packages_leave_nothing_behind(archives, tmp_path, monkeypatch):
    refused(ValueError, stamps.pictures, write_deb(tmp_path, clipart.PIXELS, {"a": b""}), 64, match=r"openclipart-png")
    next(archives.glob("tuxpaint*")).unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(ConnectionError, prepare, tmp_path / "new" / "out", archives, match="tuxpaint-stamps-default")
    assert not (tmp_path / "new").exists()
    refused(ValueError, Settings, unseen=-1, match="unseen is -1")
    refused(ValueError, Settings, tokens=513, match="tokens is 513")


SENNRICH = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3  # the paper's example


def random_captions(seed=0, count=60) -> list[str]:
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcd"), rng.integers(1, 8))) for _ in range(25)]
    return [" ".join(rng.choice(words, 4)) for _ in range(count)]


def by_definition(captions, count) -> list[tuple[str, str]]:
    """All pairs are recounted for each merge, over words of ASCII letters."""
    words = [[*word[:-1], word[-1] + WORD_END] for text in captions for word in text.split()]
    merges = []
    while len(merges) < count:
        pairs = Counter(pair for word in words for pair in itertools.pairwise(word))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word in words:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [word[i] + word[i + 1]]
                i += 1
    return merges


def test_merges_are_those_of_the_definition():
    """In the paper's example es 9, est 9 (t ends the word here), lo 7, then pairs that occur six times, sorted."""
    merges = train_bpe(SENNRICH, SMALLEST + 6)[1]
    assert merges[:3] == [("e", "s"), ("es", "t</w>"), ("l", "o")]
    assert merges[3:] == [("e", "w"), ("ew", "est</w>"), ("n", "ewest</w>")]
    captions = random_captions()
    merges = train_bpe(captions, SMALLEST + 80)[1]
    assert len(merges) > 60 and merges == by_definition(captions, len(merges))
    assert train_bpe(captions, 600) == train_bpe(captions[::-1], 600)


def test_the_vocabulary_is_numbered_as_clips(tmp_path):
    vocab, merges = train_bpe(random_captions(), 570)
    assert sorted(vocab.values()) == list(range(570)) and (vocab[START], vocab[END]) == (568, 569)
    with gzip.open(tmp_path / "merges.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(["bpe_simple_vocab", *(" ".join(pair) for pair in merges)]))
    read = Tokenizer.from_bpe_file(tmp_path / "merges.txt.gz")
    assert (read.vocab, read.merges) == (vocab, merges)  # numbers that follow from OpenAI's format alone
    vocab, merges = train_bpe(["ab ab"], 2048)
    assert merges == [("a", "b</w>")] and len(vocab) == SMALLEST + 1
