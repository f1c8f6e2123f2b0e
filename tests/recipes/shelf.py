"""Small archives in the formats of npm and Debian, with a few pictures each, for the tests of `recipes.captioned_pictures`."""

import json

import cv2
import numpy as np
from made_archives import write_deb, write_npm

from recipes.captioned_pictures import clipart, emoji, stamps

RED, GREEN, BLUE = (220, 30, 30), (20, 160, 60), (30, 60, 210)
FRUIT = {"1F34E": "red apple", "1F34C": "banana", "1F347": "grapes", "1F36B": "chocolate bar"}
NOTES = {
    "food/fruit/apple_mo_01": ("Red Apple (B and W)", ["food", "fruit"]),
    "food/fruit/pear": ("pear", ["food", "fruit"]),
    "food/mela_architetto_f_01": ("Mela", ["architetto francesco rollandin"]),
    "people/sexy_lady": ("Sexy Lady", ["fruit"]),
    "shapes/stars/star_01": ("star", ["fruit"]),
}


def png(colour, size=80, alpha=None) -> bytes:
    """A disc on nothing; `alpha`: of the disc."""
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
    """What renders SVG files in the tests: such a file is only the name of its colour."""
    assert width == 4 * 64
    return png({"red": RED, "green": GREEN, "blue": BLUE}[svg_string], width)


def fill(folder):
    """An archive of every package."""
    names_archive(folder)
    noto, fluent, line = emoji.SETS
    codes = [code.lower() for code in FRUIT]
    sizes = dict(zip(codes, (80, 100, 120, 140), strict=True))  # so that no two pictures of a set are alike
    discs = {code: png((size, size, 250 - size), 2 * size) for code, size in sizes.items()}
    write_npm(folder, noto.package, {f"{noto.folder}/{code}.png": discs[code] for code in codes})
    webp = {code: encoded(".webp", cv2.imdecode(np.frombuffer(discs[code], np.uint8), -1)) for code in codes}
    write_npm(folder, fluent.package, {f"{fluent.folder}/{code}.webp": webp[code] for code in codes})
    colours = dict(zip(codes, (b"red", b"green", b"blue", b"red"), strict=True))
    write_npm(folder, line.package, {f"{line.folder}/{code.upper()}.svg": colours[code] for code in codes})
    svg = {f"{clipart.SVG_ROOT}{stem}.svg": note(*text) for stem, text in NOTES.items()}
    write_deb(folder, clipart.TITLES, svg)
    drawings = {f"{clipart.PNG_ROOT}{stem}.png": png((9, 9, 9) if "apple" in stem else GREEN) for stem in NOTES}
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
