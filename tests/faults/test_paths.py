"""Data name files of their own folder alone."""

import json
from pathlib import Path

import numpy as np
import pytest
from memories import build
from own_files import json_lines
from refusal import refused

from common.io.files import contained
from common.io.images import write_image
from common.io.video import write_clip
from common.io.video_reader import probe
from plugins.data import JsonlPictures
from reveal.memory import Memory
from reveal.sources import Skips
from reveal.sources.jsonl import items


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "link.png", "linked/secret.png", "a\0.png", "loop"])
def test_names_that_lead_out(tmp_path, name):
    secret, folder = tmp_path / "secret.png", tmp_path / "data"
    folder.mkdir()
    write_image(secret, np.zeros((2, 2, 3), np.float32))
    (folder / "link.png").symlink_to(secret)
    (folder / "linked").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    write_image(folder / "own.png", np.zeros((2, 2, 3), np.float32))
    (tmp_path / "also").symlink_to(folder)
    assert contained(tmp_path / "also", "own.png").is_file()
    refused(ValueError, contained, folder, name)
    lines = [{"image": "own.png", "text": "a"}, {"image": name, "text": "b"}]
    json_lines(folder / "a.jsonl", lines)
    found = list(items(folder / "a.jsonl", skips=Skips()))
    assert [record.image for record in found] == [folder / "own.png", None] and found[1].fault
    refused(ValueError, lambda: len(JsonlPictures(str(folder / "a.jsonl")).records), match="line 2")


@pytest.mark.parametrize("change", [
    *(None, 7, [7], [[]], "a", [{}]),  # in the place of all shards
    {"name": "../other/v00001-00000"},
    {"name": "/other/v00001-00000"},
    {"name": ".."},
    {"name": 7},
    {"deleted": "../../other/deleted-2.npy"},
    {"files": {"../keys.npy": [1, 2]}},
    {"files": {}},
    {"rows": "many"},
    {"rows": 0},
    {"counts": [1, 2]},
    {"counts": 7},
])  # fmt: skip
def test_a_manifest_of_other_names_and_types(tmp_path, change):
    build(tmp_path / "m", 5)
    path = tmp_path / "m" / "manifest.json"
    fields = json.loads(path.read_text())
    fields["checksum"] = None  # as one who makes a memory can
    fields["shards"] = [fields["shards"][0] | change] if isinstance(change, dict) else change
    path.write_text(json.dumps(fields))
    assert str(path) in refused(ValueError, Memory, tmp_path / "m")


def playlists(folder: Path) -> dict[str, str]:
    clip = folder / "clip.mp4"
    head = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n"
    return {
        "a.m3u8": f"{head}{clip}\n#EXT-X-ENDLIST\n",
        "b.mp4": f"{head}{clip.name}\n#EXT-X-ENDLIST\n",
        "c.ffconcat": f"ffconcat version 1.0\nfile '{clip.name}'\n",
        "d.mp4": f"ffconcat version 1.0\nfile '{clip.name}'\n",
        "e%03d.png": "a pattern",
    }


def test_videos_of_other_files(tmp_path):
    frames = np.random.default_rng(0).random((4, 32, 32, 3), np.float32)
    write_clip(tmp_path / "clip.mp4", iter(frames), 4)
    assert probe(tmp_path / "clip.mp4")
    write_image(tmp_path / "e001.png", frames[0])
    for name, text in playlists(tmp_path).items():
        (tmp_path / name).write_text(text)
        assert name in refused(ValueError, probe, tmp_path / name)
