"""Captioned pictures: labels, splits and the written folder, from small packages in the real formats; the tokenizer."""

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

from plugins.data.captioned import Picture
from plugins.diffusion.io.tokenizer import END, START, WORD_END, Tokenizer
from recipes.captioned_pictures import clipart, emoji, splits, stamps
from recipes.captioned_pictures.prepare import Settings, prepare
from recipes.captioned_pictures.train_tokenizer import SMALLEST, train_bpe, write_tokenizer

RED, GREEN, BLUE = (220, 30, 30), (20, 160, 60), (30, 60, 210)
FRUIT = {"1F34E": "red apple", "1F34C": "banana", "1F347": "grapes", "1F36B": "chocolate bar"}
DRAWINGS = {
    "food/fruit/apple_mo_01": ("Red Apple (B and W)", ["food", "fruit"]),
    "food/fruit/pear": ("pear", ["food", "fruit"]),
    "food/mela_architetto_f_01": ("Mela", ["architetto francesco rollandin"]),
    "people/sexy_lady": ("Sexy Lady", ["fruit"]),
    "shapes/stars/star_01": ("star", ["fruit"]),
}


def png(colour, size=80, alpha=None) -> bytes:
    """A disc on a transparent ground; `alpha`: of the disc."""
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    image = np.zeros((size, size, 4), np.uint8)
    image[..., :3] = colour[::-1]
    image[..., 3] = np.where(np.hypot(x, y) < size * 0.4, 255 if alpha is None else alpha, 0)
    return encoded(".png", image)


def encoded(suffix, image) -> bytes:
    return cv2.imencode(suffix, image)[1].tobytes()


def names_archive(folder):
    groups = {"groups": {"2": "component", "4": "food-drink", "8": "symbols", "9": "flags"}}
    skins = [dict(label="red apple: dark skin tone", hexcode="1F34E-1F3FF")]
    entries = [dict(label=label, hexcode=code, group=4, tags=["fruit", label]) for code, label in FRUIT.items()]
    entries[0]["skins"] = skins
    entries += [
        dict(label="keycap: 7", hexcode="0037-FE0F-20E3", group=8),
        dict(label="woman\u2019s “here” button", hexcode="1F201", group=8),
        dict(label="flag: Åland Islands", hexcode="1F1E6-1F1FD", group=9, tags=["AX"]),
        dict(label="dark skin tone", hexcode="1F3FF", group=2),
        dict(label="regional indicator A", hexcode="1F1E6"),
    ]
    files = {
        "package/en/data.json": json.dumps(entries).encode(),
        "package/meta/groups.json": json.dumps(groups).encode(),
    }
    return write_npm(folder, emoji.NAMES, files)


def svg_to_bytes(*, svg_string, width, **_) -> bytes:
    """Stands in for the renderer; an SVG file is the name of its colour."""
    assert width == 4 * 64
    return png({"red": RED, "green": GREEN, "blue": BLUE}[svg_string], width)


def fill(folder):
    """Archives of all packages."""
    names_archive(folder)
    noto, fluent, line = emoji.SETS
    codes = [code.lower() for code in FRUIT]
    discs = {code: png((80 + 20 * n, 80 + 20 * n, 170 - 20 * n), 160 + 40 * n) for n, code in enumerate(codes)}
    write_npm(folder, noto.package, {f"{noto.folder}/{code}.png": discs[code] for code in codes})
    webp = {code: encoded(".webp", cv2.imdecode(np.frombuffer(discs[code], np.uint8), -1)) for code in codes}
    write_npm(folder, fluent.package, {f"{fluent.folder}/{code}.webp": webp[code] for code in codes})
    colours = dict(zip(codes, (b"red", b"green", b"blue", b"red"), strict=True))
    write_npm(folder, line.package, {f"{line.folder}/{code.upper()}.svg": colours[code] for code in codes})
    svg = {f"{clipart.SVG_ROOT}{stem}.svg": note(*text) for stem, text in DRAWINGS.items()}
    write_deb(folder, clipart.TITLES, svg)
    drawings = {f"{clipart.PNG_ROOT}{stem}.png": png((9, 9, 9) if "apple" in stem else GREEN) for stem in DRAWINGS}
    write_deb(folder, clipart.PIXELS, drawings)
    write_stamps(folder)


def note(title, keywords) -> bytes:
    words = "".join(f"<rdf:li>{word}</rdf:li>" for word in keywords)
    return f"<svg><dc:title>{title}</dc:title><rdf:Bag>{words}</rdf:Bag></svg>".encode()


def write_stamps(folder):
    files = {
        "animals/mammals/zebra.png": png((90, 90, 90)),
        "animals/mammals/zebra.txt": "A “zebra”.\nfr.utf8=Un zèbre.\n".encode(),
        "animals/mammals/zebra.dat": b"nomirror\n",
        "animals/mammals/cow.png": png(BLUE),
        "animals/mammals/cow.txt": b"A cow.",
        "animals/mammals/mute.png": png(RED),
        "animals/birds/cartoon/duck.png": png(RED),
        "animals/birds/cartoon/duck.txt": b"A duck.",
        "symbols/math/plus.png": png(RED),
        "symbols/math/plus.txt": b"Plus.",
    }
    return write_deb(folder, stamps.STAMPS, {stamps.ROOT + name: content for name, content in files.items()})


@pytest.fixture
def archives(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", types.SimpleNamespace(svg_to_bytes=svg_to_bytes))
    folder = tmp_path / "archives"
    folder.mkdir()
    fill(folder)
    return folder


def test_emoji_names_leave_out_skin_tones_parts_and_flags(tmp_path):
    path = names_archive(tmp_path)
    names = emoji.read_names(path)
    assert [name.label for name in names.values()] == [*FRUIT.values(), "keycap, 7", "woman's here button"]
    assert names["1f34e"] == emoji.Emoji("red apple", ("fruit",), "food-drink")
    assert emoji.read_names(path, flags=True)["1f1e6-1f1fd"].group == "flags"


def test_emoji_are_found_whatever_their_file_is_called(tmp_path):
    names = emoji.read_names(names_archive(tmp_path))
    noto = emoji.SETS[0]
    files = {f"{noto.folder}/37-20e3.png": png(RED), f"{noto.folder}/1f34e.png": png(GREEN)}
    files |= {f"{noto.folder}/0037-fe0f-20e3.png": png(RED), f"{noto.folder}/1f34e-1f3ff.png": png(BLUE)}
    found = list(emoji.pictures(noto, write_npm(tmp_path, noto.package, files), names, 64))
    assert [(p.label, p.style, p.mirror) for p in found] == [
        ("red apple", "noto emoji", True),
        ("keycap, 7", "noto emoji", False),
    ]


def test_an_archive_of_something_else(tmp_path):
    path = write_npm(tmp_path, emoji.NAMES, {"package/index.js": b""})
    with pytest.raises(ValueError, match=r"lacks package/en/data\.json"):
        emoji.read_names(path)
    with pytest.raises(ValueError, match="holds no stamps"):
        stamps.pictures(write_deb(tmp_path, clipart.PIXELS, {"a": b""}), 64)


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("AfricanDrum_02 (B and W)", "african drum"),
        ("Clipart by Nicu Buculei - pear", "pear"),
        ("mouth - body part", "mouth"),
        ("Trumpet B Flat (colour)", "trumpet flat"),
        ("crème brûlée #3", "creme brulee"),
        ("cup_icon", "cup"),
    ],
)
def test_titles_are_cleaned(title, expected):
    assert clipart.clean(title) == expected


def test_a_title_that_many_drawings_share_gives_way_to_the_file_name():
    notes = {
        f"a/{name}": clipart.Metadata("Various Things", ()) for name in ("dog_ganson_01", "cat2", "cavallo", "owl")
    }
    notes |= {"b/x1": clipart.Metadata("stick man", ()), "b/bw": clipart.Metadata("a dog", ())}
    known = {"dog", "cat", "owl", "man"}
    assert clipart.labels(notes, known) == {
        "a/dog_ganson_01": "dog",
        "a/cat2": "cat",
        "a/owl": "owl",
        "b/x1": "stick man",
        "b/bw": "dog",
    }


def test_only_words_of_several_drawings_are_known():
    notes = {str(i): clipart.Metadata("", ("fruit", "hash(0x1)", "rollandin")) for i in range(3)}
    notes["last"] = clipart.Metadata("", ("mela",))
    assert clipart.known_words(notes, ["Red apple"]) == {"red", "apple", "fruit"}


def test_clip_art_is_named_by_what_its_titles_tell(archives):
    notes = clipart.read_metadata(next(archives.glob("openclipart-svg*")))
    assert set(notes) == set(DRAWINGS) - {"shapes/stars/star_01"}
    known = {"red", "apple", "pear", "fruit", "food", "lady"}
    found = {p.label: p for p in clipart.pictures(next(archives.glob("openclipart-png*")), notes, known, 64)}
    assert {label: p.style for label, p in found.items()} == {
        "red apple": "black and white clip art",
        "pear": "clip art",
    }
    assert found["pear"].tags == ("food", "fruit")


def test_stamps_have_sentences(tmp_path):
    cow, zebra = stamps.pictures(write_stamps(tmp_path), 64)
    assert (cow.label, cow.style, cow.mirror, cow.group, cow.tags) == ("A cow.", "", True, "animals", ("mammals",))
    assert (zebra.label, zebra.mirror) == ("A zebra.", False)


def made(label, style, shade, source="s", group="food-drink") -> Picture:
    return Picture(np.full((64, 64, 3), shade, np.uint8), label, style, (), group, source)


def test_alike_pictures_of_one_source_are_kept_once():
    pictures = [made("a", "x", 8), made("b", "x", 9), made("c", "x", 32), made("d", "x", 8, source="other")]
    assert [p.label for p in splits.distinct(pictures)] == ["a", "c", "d"]


def test_labels_are_held_back():
    styles = ["x", "y", "z"]
    pictures = [made(f"label {i}", style, 0) for i in range(20) for style in styles]
    pictures += [made(f"label {i}", "clip art", 0, source="clips", group="food") for i in range(20)]
    pictures += [
        made("label 3", "", 0, source="stamps"),
        made("rare", "x", 0),
        made("OK button", "x", 0, group="symbols"),
    ]
    parts = splits.assign(pictures, "stamps", styles, 5, 4)
    split = {(p.label, p.style, p.source): part for p, part in zip(pictures, parts, strict=True)}
    unseen = {label for (label, *_), part in split.items() if part == "unseen"}
    partly = [(label, style) for (label, style, _), part in split.items() if part == "unseen_style"]
    assert len(unseen) == 5
    assert all(part == "unseen" for (label, _, source), part in split.items() if label in unseen and source != "stamps")
    assert len(partly) == len({label for label, _ in partly} - unseen) == 4
    assert {style for _, style in partly} == set(styles)
    assert [key[2] for key, part in split.items() if part == "test"] == ["stamps"]
    assert split["rare", "x", "s"] == split["OK button", "x", "s"] == "train"
    again = splits.assign(pictures[::-1], "stamps", styles, 5, 4)[::-1]
    assert parts == again  # whatever the order


def test_a_prepared_folder_holds_what_the_archives_held(archives, tmp_path):
    folder = tmp_path / "out"
    counts = prepare(folder, archives, Settings(unseen=1, unseen_style=1, tokens=540))
    images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
    index = json.loads((folder / "index.json").read_text("utf-8"))
    entries = index["pictures"]
    assert images.shape == (len(entries), 64, 64, 3)
    assert images.dtype == np.uint8
    held = min(("red apple", "banana", "grapes"), key=splits.digest)  # two of the line emoji are alike
    unseen = 4 if held == "red apple" else 3  # a clip art has that label too; of the pear nothing is known here
    assert counts == {"train": 11 - unseen, "unseen": unseen, "unseen_style": 1, "test": 2}
    assert {entry["label"] for entry in entries if entry["split"] == "unseen"} == {held}
    red = next(i for i, e in enumerate(entries) if (e["label"], e["style"]) == ("red apple", "line emoji"))
    np.testing.assert_array_equal(images[red, 32, 32], RED)
    np.testing.assert_array_equal(images[red, 0, 0], 255)
    assert [source["package"] for source in index["sources"]][-1] == stamps.STAMPS.name
    assert all(len(source["sha256"]) == 64 and source["licence"] for source in index["sources"])
    tokenizer = Tokenizer.from_folder(folder)
    assert len(tokenizer.vocab) == 540
    assert tokenizer.decode(tokenizer.encode("banana, 3d emoji")) == "banana , 3 d emoji"


def test_the_same_archives_give_the_same_folder_and_an_old_one_is_kept(archives, tmp_path):
    for name in ("one", "two"):
        prepare(tmp_path / name, archives, Settings(tokens=520))
    for path in sorted((tmp_path / "one").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes(), path
    with pytest.raises(FileExistsError):
        prepare(tmp_path / "one", archives)


def test_a_missing_package_leaves_nothing_behind(archives, tmp_path, monkeypatch):
    next(archives.glob("tuxpaint*")).unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConnectionError, match="tuxpaint-stamps-default"):
        prepare(tmp_path / "new" / "out", archives)
    assert not (tmp_path / "new").exists()


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="unseen -1"):
        Settings(unseen=-1)


# ---- the tokenizer

SENNRICH = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3  # the paper's example


def random_captions(seed=0, count=60) -> list[str]:
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcd"), rng.integers(1, 8))) for _ in range(25)]
    return [" ".join(rng.choice(words, 4)) for _ in range(count)]


def by_definition(captions, count) -> list[tuple[str, str]]:
    """Everything is counted anew for each merge, over words of ASCII letters."""
    words = [[*word[:-1], word[-1] + WORD_END] for text in captions for word in text.split()]
    merges = []
    while len(merges) < count:
        pairs = Counter(pair for word in words for pair in itertools.pairwise(word))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < 2:
            break
        merges.append(best)
        for word in words:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [word[i] + word[i + 1]]
                i += 1
    return merges


def test_the_papers_example():
    """es 9, est 9 (t ends the word here), lo 7, then what occurs six times, in alphabetical order."""
    merges = train_bpe(SENNRICH, SMALLEST + 6)[1]
    assert merges[:3] == [("e", "s"), ("es", "t</w>"), ("l", "o")]
    assert merges[3:] == [("e", "w"), ("ew", "est</w>"), ("n", "ewest</w>")]


def test_counting_only_what_changed_gives_the_same_merges():
    captions = random_captions()
    merges = train_bpe(captions, SMALLEST + 80)[1]
    assert len(merges) > 60
    assert merges == by_definition(captions, len(merges))


def test_the_order_of_captions_does_not_matter():
    captions = random_captions(seed=3)
    assert train_bpe(captions, 600) == train_bpe(captions[::-1], 600)


def test_the_vocabulary_is_full_and_ordered_as_clips(tmp_path):
    vocab, merges = train_bpe(random_captions(), 570)
    assert len(vocab) == 570
    assert sorted(vocab.values()) == list(range(570))
    assert (vocab[START], vocab[END]) == (568, 569)
    lines = ["bpe_simple_vocab", *(" ".join(pair) for pair in merges)]
    with gzip.open(tmp_path / "merges.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines))
    read = Tokenizer.from_bpe_file(tmp_path / "merges.txt.gz")
    assert (read.vocab, read.merges) == (vocab, merges)  # numbers that follow from OpenAI's format alone


def test_few_captions_give_a_smaller_vocabulary():
    vocab, merges = train_bpe(["ab ab"], 2048)
    assert merges == [("a", "b</w>")]
    assert len(vocab) == SMALLEST + 1


@pytest.mark.parametrize("text", ["abba dab", "a 3d emoji, twelve o'clock", "zebra! crème 🍎 안녕", ""])
def test_any_text_comes_back_from_the_files(tmp_path, text):
    write_tokenizer(tmp_path / "tokenizer", *train_bpe(random_captions(), 600))
    tokenizer = Tokenizer.from_folder(tmp_path)
    ids = tokenizer.encode(text)
    assert (ids[0], ids[-1]) == (tokenizer.start_id, tokenizer.end_id)
    assert tokenizer.decode(ids).replace(" ", "") == text.replace(" ", "")


def test_learnt_words_are_single_tokens(tmp_path):
    write_tokenizer(tmp_path / "t", *train_bpe(SENNRICH, SMALLEST + 20))
    tokenizer = Tokenizer.from_folder(tmp_path / "t")
    assert [len(tokenizer.encode(word)) - 2 for word in ("newest", "Widest", "low", "tow")] == [1, 1, 1, 3]


def test_too_small_a_size():
    with pytest.raises(ValueError, match=r"513.*514"):
        train_bpe(["a"], 513)
