"""Weights by address, from a server on this machine that answers as the hub does: only what is needed is fetched,
resumed, checked, and used offline afterwards."""

import hashlib
import re

import numpy as np
import pytest
from fake_hub import hub
from huggingface_hub import close_session, constants
from refusal import refused

from common.io.files import cache_folder
from common.weights import at_hand
from common.weights.remote import is_address, local, needed_files

DIFFUSERS = [
    "model_index.json",
    "v1-5-pruned.safetensors",
    "unet/config.json",
    *(f"unet/diffusion_pytorch_model{kind}.safetensors" for kind in ("", ".fp16", ".non_ema")),
    "unet/diffusion_pytorch_model.bin",
    *(f"vae/diffusion_pytorch_model-0000{n}-of-00002.safetensors" for n in (1, 2)),
    "vae/diffusion_pytorch_model.safetensors.index.json",
    "text_encoder/model.fp16.safetensors",
    "text_encoder/pytorch_model.bin",
    "tokenizer/vocab.json",
    "tokenizer/merges.txt",
    "safety_checker/model.safetensors",
    "picture.png",
]


@pytest.fixture
def server(tmp_path, monkeypatch):
    with hub(tmp_path, monkeypatch) as running:
        for name in DIFFUSERS:
            path = running.root / "who" / "diffusion" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode() * 1000)
        yield running


def below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(("variant", "pickles", "tag"), [(None, False, ""), ("fp16", False, ".fp16"), (None, True, "")])
def test_one_precision_and_no_pickle_is_needed(variant, pickles, tag):
    needed = needed_files(DIFFUSERS, variant, pickles)
    assert [name for name in needed if name.endswith(("safetensors", ".bin"))] == [
        "text_encoder/model.fp16.safetensors",
        f"unet/diffusion_pytorch_model{tag}.safetensors",
        *(f"vae/diffusion_pytorch_model-0000{n}-of-00002.safetensors" for n in (1, 2)),
    ]
    index = "vae/diffusion_pytorch_model.safetensors.index.json"
    assert {"model_index.json", "tokenizer/merges.txt", index} < set(needed) and "picture.png" not in needed
    assert needed_files(["a.bin", "config.json"]) == ["config.json"]
    assert needed_files(["a.bin", "config.json"], pickles=True) == ["a.bin", "config.json"]


def test_a_repository_is_fetched_in_part_and_used_offline(server, monkeypatch):
    folder = local("hf:who/diffusion", variant="fp16")
    assert below(folder) == needed_files(DIFFUSERS, "fp16")
    assert len(server.sent) == len(below(folder))
    assert local("hf:who/diffusion", variant="fp16") == folder and len(server.sent) == len(below(folder))
    server.shutdown()
    server.server_close()
    close_session()  # its connection outlives the server
    monkeypatch.setattr("time.sleep", None)  # nothing waits for a server that cannot be reached
    for offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        assert local("hf:who/diffusion", variant="fp16") == folder
        assert "hf:who/other" in refused(ConnectionError, local, "hf:who/other")


def test_a_file_or_a_folder_of_a_repository(server):
    one = local("hf:who/diffusion/unet/diffusion_pytorch_model.non_ema.safetensors@v1")
    assert one.read_bytes().startswith(b"unet/diffusion_pytorch_model.non_ema")
    assert below(local("hf:who/diffusion/tokenizer/")) == ["merges.txt", "vocab.json"]
    assert sorted(name for name, _ in server.sent) == [one.name, "merges.txt", "vocab.json"]


def test_a_broken_download_is_resumed(server, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    file = server.root / "who" / "diffusion" / "model_index.json"
    file.write_bytes(np.random.default_rng(0).bytes(3_000_000))
    server.breaks = [1_000_000]
    assert local("hf:who/diffusion/model_index.json").read_bytes() == file.read_bytes()
    assert [start > 0 for _, start in server.sent] == [False, True]


def test_a_web_address_is_kept_and_its_digest_checked(server, monkeypatch):
    address = f"{server.address}/who/diffusion/tokenizer/vocab.json"
    content = (server.root / "who/diffusion/tokenizer/vocab.json").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert "sha256" in refused(ValueError, local, f"{address}#sha256={'0' * 64}")
    path = local(f"{address}#sha256={digest}")
    assert path.read_bytes() == content and path.name.endswith("-vocab.json")
    count = len(server.sent)
    assert local(f"{address}#sha256={digest}") == local(address) == path and len(server.sent) == count
    monkeypatch.setenv("FILM_LARGEST_DOWNLOAD", "100")
    assert "FILM_LARGEST_DOWNLOAD" in refused(ValueError, local, f"{server.address}/who/diffusion/picture.png")
    assert "FILM_LARGEST_DOWNLOAD" in refused(ValueError, local, "hf:who/diffusion/picture.png")
    monkeypatch.setenv("FILM_LARGEST_DOWNLOAD", "1GB")
    assert "1GB" in refused(ValueError, local, f"{server.address}/who/diffusion/picture.png")
    assert local(f"{address}#sha256={digest.upper()}") == path
    assert "#sha256" in refused(ValueError, local, "http://example.com/weights.safetensors")


def test_a_page_in_place_of_a_file_is_not_kept(server):
    (server.root / "model.html").write_text("<html>Sign in</html>")
    assert "page" in refused(ValueError, local, f"{server.address}/model.html")
    assert list(cache_folder().rglob("*model*")) == []


def test_bytes_are_counted_whatever_the_server_says(server, monkeypatch):
    """Of an answer without a length, as of a server that compresses."""
    monkeypatch.setenv("FILM_LARGEST_DOWNLOAD", "1000")
    monkeypatch.setattr("common.weights.remote.PART", 100)
    monkeypatch.setattr("requests.structures.CaseInsensitiveDict.get", lambda *_: None)
    (server.root / "long.bin").write_bytes(bytes(1001))
    (server.root / "short.bin").write_bytes(bytes(1000))
    assert "FILM_LARGEST_DOWNLOAD" in refused(ValueError, local, f"{server.address}/long.bin")
    assert local(f"{server.address}/short.bin").stat().st_size == 1000
    assert [path.name for path in cache_folder().rglob("*long.bin*")] == []


def test_what_was_fetched_is_listed_with_its_address_and_licence(server):
    (server.root / "who" / "diffusion" / "README.md").write_text("---\nlicense: openrail\n---\n# A network\n")
    address = f"{server.address}/who/diffusion/tokenizer/vocab.json"
    path, folder = local(address), local("hf:who/diffusion@v1", variant="fp16")
    web, hub = at_hand.cached("film")
    assert (web.name, web.source, web.bytes, web.path) == (address, "downloaded", path.stat().st_size, str(path))
    assert (hub.name, hub.source, hub.licence, hub.path) == ("hf:who/diffusion@v1", "hub", "openrail", str(folder))
    assert hub.bytes == sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    (folder / "README.md").unlink()
    (folder / "README.md").write_text("---\n[]\n---\n")
    assert [row.name for row in at_hand.cached("film")] == [address, "hf:who/diffusion@v1"]


@pytest.mark.parametrize(("address", "kind", "value"), [
    ("hf:diffusion", ValueError, "OWNER/NAME"),
    ("hf:who/diffusion#sha256=abc", ValueError, "64"),
    ("hf:who/nothing", FileNotFoundError, "hf:who/nothing"),
    ("hf:who/diffusion@v7", FileNotFoundError, "v7"),
    ("hf:who/diffusion/none.bin", FileNotFoundError, "none.bin"),
    ("hf:who/licensed", PermissionError, "HF_TOKEN"),
    ("{server}/who/nothing.bin", ConnectionError, "404"),
])  # fmt: skip
def test_addresses_without_weights(server, address, kind, value):
    (server.root / "who" / "licensed").mkdir()
    server.gated.add("who/licensed")
    assert re.search(value, refused(kind, local, address.format(server=server.address)))


def test_paths_are_paths(tmp_path):
    assert local(tmp_path) == tmp_path and not is_address(tmp_path) and not is_address("film-small")
