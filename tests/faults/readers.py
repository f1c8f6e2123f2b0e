"""A good file for each public reader, and how it is read: the rows of `mutations.py`.

A row is a function that writes the file, with all that belongs to it, into a folder and gives its path, and the reader
of that path. Files are as small as their formats allow, so that random changes meet the structure.
"""

import gzip
import json
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np

ROOT = Path(__file__).parents[2]
if str(ROOT / "tests" / "reveal") not in sys.path:  # as a program; pytest has them by pyproject.toml
    sys.path += [str(ROOT / "tests" / name) for name in ("common", "plugins", "recipes", "reveal")]

import networks  # noqa: E402
import own_files  # noqa: E402
import published  # noqa: E402
import published_files  # noqa: E402
import safetensors.numpy  # noqa: E402
import weight_files  # noqa: E402
from flax import serialization  # noqa: E402
from onnx_models import MEAN_OF_CHANNELS, save_model  # noqa: E402

from common.io.arrays import mapped, open_arrays  # noqa: E402
from common.io.clip_tokenizer import Tokenizer  # noqa: E402
from common.io.flax_files import read_flax  # noqa: E402
from common.io.images import read_image, write_image  # noqa: E402
from common.io.tensor_files import TensorFiles, about, open_folder, read_json  # noqa: E402
from common.io.tf_checkpoint import read_tf_checkpoint  # noqa: E402
from common.io.torch_file import read_torch  # noqa: E402
from common.io.video_reader import probe, read_video  # noqa: E402
from common.perceptual import vgg  # noqa: E402
from common.perceptual.vgg_weights import load_vgg  # noqa: E402
from common.weights.model_file import load_weights, save_weights  # noqa: E402
from common.weights.two_tower_files import load_two_towers  # noqa: E402
from film.data.record_sources import TFRecordTriplets  # noqa: E402
from plugins.control.loading import load as load_control  # noqa: E402
from plugins.data import JsonlPictures, WebDatasetPictures  # noqa: E402
from plugins.diffusion.io.components import load_component  # noqa: E402
from plugins.diffusion.io.lora import Lora  # noqa: E402
from plugins.diffusion.io.textual_inversion import TextualInversion  # noqa: E402
from plugins.diffusion.samplers.scheduler_config import from_json  # noqa: E402
from plugins.onnx_model import ImageModel  # noqa: E402
from reveal.memory import Builder, Item, Layout, Memory  # noqa: E402
from reveal.network.published import read_t5, read_vit  # noqa: E402
from reveal.processing import tokenizers  # noqa: E402
from reveal.sources import Items, Questions, Skips  # noqa: E402
from reveal.sources.jsonl import items  # noqa: E402

DATA = ROOT / "tests" / "data"
FRAME = np.linspace(0, 1, 24 * 32 * 3, dtype=np.float32).reshape(24, 32, 3)

Make, Read = Callable[[Path], Path], Callable[[Path], object]


def picture(name: str, folder: Path, bits: int = 8) -> Path:
    write_image(folder / name, FRAME, bits=bits)
    return folder / name


def encoded(name: str, folder: Path) -> Path:
    import pillow_heif
    from PIL import Image

    pillow_heif.register_heif_opener()
    Image.fromarray((FRAME * 255).astype(np.uint8)).save(folder / name)
    return folder / name


def movie(name: str, folder: Path) -> Path:
    from common.io.video import write_clip

    write_clip(folder / name, iter([FRAME] * 4), 4)
    return folder / name


def frames(path: Path) -> None:
    probe(path)
    for _ in read_video(path, on_damage=lambda line: None):
        pass


def copied(name: str, *beside: str) -> Make:
    def make(folder: Path) -> Path:
        for one in (name, *beside):
            (folder / Path(one).name).write_bytes((DATA / one).read_bytes())
        return folder / Path(name).name

    return make


def network(kind: str, name: str, folder: Path) -> Path:
    """A file of a network's folder."""
    return Path(shutil.copytree(networks.folder(kind), folder / "n")) / name


def transformers(name: str, folder: Path) -> Path:
    return published.folder(name, folder / "n") / "model.safetensors"


def lora(writer: str, folder: Path) -> Path:
    return Path(shutil.copy(networks.lora(writer), folder))


def read_lora(path: Path) -> None:
    for updates in Lora.load(path).updates.values():
        for update in updates.values():
            update.delta()


def embedding(folder: Path) -> Path:
    safetensors.numpy.save_file({"emb_params": np.ones((2, 16), np.float32)}, folder / "w.safetensors")
    return folder / "w.safetensors"


def written(make: Callable[[Path, dict], Path], name: str, folder: Path) -> Path:
    """A VGG with two or three channels in a layer."""
    with mock.patch.object(vgg, "WIDTHS", (2, 2, 3, 3, 3)):
        return make(folder / name, weight_files.random_params())


def read_vgg(path: Path) -> None:
    with mock.patch.object(vgg, "WIDTHS", (2, 2, 3, 3, 3)):
        load_vgg(path)


def depth_model(folder: Path) -> Path:
    save_model(folder / "d.onnx", (1, 3, 8, 8), MEAN_OF_CHANNELS)
    return folder / "d.onnx"


def array(folder: Path) -> Path:
    np.save(folder / "a.npy", FRAME)
    return folder / "a.npy"


def archive(folder: Path) -> Path:
    np.savez_compressed(folder / "a.npz", a=FRAME, b=np.arange(9))
    return folder / "a.npz"


def read_archive(path: Path) -> None:
    with open_arrays(path) as arrays:
        for name in arrays:
            arrays[name].copy()


def flax_file(folder: Path) -> Path:
    state = {"optimizer": {"target": {"a": {"kernel": FRAME, "bias": np.ones(3, np.float32)}}, "step": 7}}
    (folder / "checkpoint_7").write_bytes(serialization.to_bytes(state))
    return folder / "checkpoint_7"


def bin_file(folder: Path) -> Path:
    return weight_files.write_torch(folder / "pytorch_model.bin", {"a": FRAME, "b": FRAME[0]})


def weights(folder: Path) -> Path:
    return save_weights(folder / "w.safetensors", {"a": FRAME, "b": {"c": FRAME}}, kind="film", config={"levels": 3})


def text(folder: Path) -> Path:
    return own_files.json_file(folder / "a.json", {"a": [1, 2.5, {"b": None}], "c": "text" * 20})


def scheduler(folder: Path) -> Path:
    fields = {"_class_name": "DDIMScheduler", "beta_start": 0.001, "beta_end": 0.01, "timestep_spacing": "leading"}
    return own_files.json_file(folder / "s.json", fields | {"num_train_timesteps": 1000, "clip_sample": False})


def read_scheduler(path: Path) -> None:
    with about(path):
        from_json(read_json(path))


def pieces(folder: Path) -> Path:
    (folder / "p.model").write_bytes(tokenizers.trained(iter([f"a vase of potter {n}" for n in range(99)]), 90))
    return folder / "p.model"


def words(folder: Path) -> Path:
    tokenizers.Words.of_texts(["a gull over the sea"]).save(folder / "w.json")
    return folder / "w.json"


def lines(folder: Path) -> Path:
    rows = [{"id": n, "source": "a", "image": "a.png", "text": "a fact" * n} for n in range(9)]
    return own_files.json_lines(folder / "a.jsonl", rows)


def captioned(folder: Path) -> Path:
    own_files.picture(folder / "a.png")
    return own_files.json_lines(folder / "a.jsonl", [{"image": "a.png", "caption": ["a", "b"]} for _ in range(9)])


def pictures_of(source: type, path: Path) -> None:
    for record in source(str(path)).records:
        assert len(record.image) and isinstance(record.captions, tuple)


def packed(folder: Path) -> Path:
    data = own_files.picture(folder / "p.jpg").read_bytes()
    (folder / "p.jpg").unlink()
    members = {"0.jpg": data, "0.txt": b"a gull", "1.jpg": data, "1.json": b'{"caption": "a cup"}'}
    return own_files.tar(folder / "00.tar", members)


def set_of(name: str, folder: Path) -> Path:
    """A file of the published sets, beside the others."""
    return published_files.write(folder) / name


def source(kind: type, reader: str, **options: str) -> Read:
    """All records of a reader, an item or a question each; options that name files are of its folder."""

    def read(path: Path) -> None:
        places = {key: str(path.parent / value) for key, value in options.items()}
        list(kind(reader, str(path), places).read(Skips()))

    return read


def vqa(path: Path) -> None:
    list(Items("vqa", str(path.with_name("questions.json")), {"annotations": str(path)}).read(Skips()))


def wit(folder: Path) -> Path:
    rows = [{"image_url": f"https://x.org/{n}.jpg", "page_title": 'a "q"', "is_main_image": "true"} for n in range(4)]
    return own_files.wit_table(folder / "wit.tsv.gz", rows)


def wit_plain(folder: Path) -> Path:
    path = wit(folder)
    (folder / "wit.tsv").write_bytes(gzip.decompress(path.read_bytes()))
    return folder / "wit.tsv"


def wit_records(folder: Path) -> Path:
    pages = [own_files.page(name, caption_alt_text_description="a bird") for name in ("gull", "tern")]
    return own_files.tfrecord(folder / "wit-train.tfrecord-00000-of-00001", *pages)


def pairs(folder: Path) -> Path:
    own_files.picture(folder / "1.jpg")
    (folder / "c.tsv").write_text("".join(f"https://x.org/{n}.jpg\tgull {n}\n" for n in range(4)))
    return folder / "c.tsv"


def triples(folder: Path) -> Path:
    (folder / "t.tsv").write_text("".join(f"Q{n}\tP{n % 3}\tQ{n % 4}\n" for n in range(12)))
    return folder / "t.tsv"


def dump(folder: Path) -> Path:
    claim = {"snaktype": "value", "datatype": "time", "datavalue": {"type": "time", "value": {"time": "+1889-03-31"}}}
    entity = {"type": "item", "labels": {"en": {"value": "a"}}, "claims": {"P1": [{"mainsnak": claim}]}}
    (folder / "d.json").write_text("[\n" + ",\n".join(json.dumps(entity | {"id": f"Q{n}"}) for n in range(4)) + "\n]\n")
    return folder / "d.json"


def document(name: str, data: bytes, folder: Path) -> Path:
    (folder / "d").mkdir()
    (folder / "d" / name).write_bytes(data)
    (folder / "d" / "other.txt").write_text("another text")
    return folder / "d" / name


def read_documents(path: Path) -> None:
    list(Items("documents", str(path.parent)).read(Skips()))


def memory(name: str, folder: Path) -> Path:
    keys = np.eye(8, dtype=np.float32)
    facts = [Item("a", {"text": f"fact {number}"}) for number in range(8)]
    with Builder(folder / "m", Layout("e", ("a", "b"), 8, (2, 4))) as builder:
        builder.add(facts, keys, np.ones((8, 2, 4), np.float32))
    return folder / "m" / name


def manifest(folder: Path) -> Path:
    """Without its checksum, as one who makes a memory can write it."""
    path = memory("manifest.json", folder)
    fields = json.loads(path.read_text())
    del fields["checksum"]
    return own_files.json_file(path, fields)


def read_memory(path: Path) -> None:
    opened = Memory(next(parent for parent in path.parents if (parent / "manifest.json").exists()))
    opened.items(list(range(8)))
    opened.rows().keys(0, 8)
    opened.values(np.arange(8))


def triplets(path: Path) -> None:
    found = TFRecordTriplets(str(path))
    for number in range(len(found)):
        found.frames(number)


def folder_of(read: Read) -> Read:
    return lambda path: read(path.parent)


MARKDOWN = b"# A cup\n\nIt holds *tea*.\n\n## Care\n\n- Wash\n- [it](x)\n"
HTML = b"<title>Cups</title><h1>A cup</h1><p>It holds <b>tea</b> &amp; milk.</p><h2>Care</h2><p>Wash it.</p>"
NETWORK = "diffusion_pytorch_model.safetensors"
TOKENS = "plugins/tokenizer_tiny/"
BUNDLE = "film/tiny_checkpoint/ckpt-3"

READERS: dict[str, tuple[Make, Read]] = {
    "png": (partial(picture, "a.png"), read_image),
    "png, 16 bits": (partial(picture, "a.png", bits=16), read_image),
    "jpeg": (partial(picture, "a.jpg"), read_image),
    "webp": (partial(picture, "a.webp"), read_image),
    "tiff": (partial(picture, "a.tif"), read_image),
    "tiff, 16 bits": (partial(picture, "a.tif", bits=16), read_image),
    "bmp": (partial(encoded, "a.bmp"), read_image),
    "avif": (partial(encoded, "a.avif"), read_image),
    "heic": (partial(encoded, "a.heic"), read_image),
    "mp4": (partial(movie, "a.mp4"), frames),
    "mkv": (partial(movie, "a.mkv"), frames),
    "webm": (partial(movie, "a.webm"), frames),
    "gif": (partial(movie, "a.gif"), frames),
    "apng": (partial(movie, "a.apng"), frames),
    "torch": (copied("film/torch_tensors.pth"), read_torch),
    "torch, legacy": (copied("film/torch_legacy.pth"), read_torch),
    "weights": (weights, load_weights),
    "safetensors of others": (partial(transformers, "t5"), lambda path: dict(TensorFiles(path))),
    "CLIP": (partial(transformers, "clip"), folder_of(load_two_towers)),
    "T5": (partial(transformers, "t5"), folder_of(read_t5)),
    "ViT": (partial(transformers, "vit"), folder_of(read_vit)),
    "UNet": (partial(network, "unet", NETWORK), folder_of(partial(load_component, "unet"))),
    "UNet, config": (partial(network, "unet", "config.json"), folder_of(partial(load_component, "unet"))),
    "VAE, config": (partial(network, "vae", "config.json"), folder_of(partial(load_component, "vae"))),
    "text encoder, config": (
        partial(network, "text_encoder", "config.json"),
        folder_of(partial(load_component, "text_encoder")),
    ),
    "ControlNet": (partial(network, "controlnet", NETWORK), folder_of(load_control)),
    "T2I-Adapter": (partial(network, "t2i_adapter", NETWORK), folder_of(load_control)),
    "T2I-Adapter, config": (partial(network, "t2i_adapter", "config.json"), folder_of(load_control)),
    "LoRA, kohya": (partial(lora, "kohya"), read_lora),
    "LoRA, PEFT": (partial(lora, "diffusers_peft"), read_lora),
    "textual inversion": (embedding, TextualInversion.load),
    "scheduler": (scheduler, read_scheduler),
    "VGG, ONNX": (partial(written, weight_files.write_vgg_onnx, "v.onnx"), read_vgg),
    "ONNX": (depth_model, ImageModel),
    "flax": (flax_file, read_flax),
    "TensorFlow, index": (
        copied(f"{BUNDLE}.index", f"{BUNDLE}.data-00000-of-00001"),
        lambda path: read_tf_checkpoint(path.parent / "ckpt-3"),
    ),
    "npy": (array, lambda path: np.array(mapped(path))),
    "npz": (archive, read_archive),
    "json": (text, read_json),
    "CLIP tokenizer": (copied(f"{TOKENS}vocab.json", f"{TOKENS}merges.txt"), folder_of(Tokenizer.from_folder)),
    "CLIP merges": (copied(f"{TOKENS}merges.txt", f"{TOKENS}vocab.json"), folder_of(Tokenizer.from_folder)),
    "SentencePiece": (pieces, tokenizers.load),
    "words": (words, tokenizers.load),
    "jsonl": (lines, lambda path: list(items(path, skips=Skips()))),
    "jsonl of pictures": (captioned, partial(pictures_of, JsonlPictures)),
    "webdataset": (packed, partial(pictures_of, WebDatasetPictures)),
    "webdataset, items": (packed, source(Items, "webdataset")),
    "TFRecord": (copied("film/tiny_triplets.tfrecord-00000-of-00002"), triplets),
    "wit": (wit, source(Items, "wit")),
    "wit, unpacked": (wit_plain, source(Items, "wit")),
    "wit of tfds": (wit_records, source(Items, "wit_tfds")),
    "cc12m": (pairs, source(Items, "cc12m", images="")),
    "wikidata": (triples, source(Items, "wikidata")),
    "wikidata, dump": (dump, source(Items, "wikidata_dump")),
    "VQA": (partial(set_of, "annotations.json"), vqa),
    "VQA, questions": (partial(set_of, "questions.json"), source(Questions, "vqa", images="images")),
    "A-OKVQA": (partial(set_of, "aokvqa.json"), source(Questions, "aokvqa", images="images")),
    "COCO captions": (partial(set_of, "captions.json"), source(Questions, "coco", images="images")),
    "Karpathy's split": (partial(set_of, "dataset_coco.json"), source(Items, "karpathy", images="images")),
    "Encyclopedic-VQA": (partial(set_of, "test.csv"), source(Questions, "evqa", images="images", names="val.json")),
    "InfoSeek": (
        partial(set_of, "infoseek.jsonl"),
        source(Questions, "infoseek", images="images", types="qtype.jsonl", entities="withkb.jsonl"),
    ),
    "Markdown": (partial(document, "a.md", MARKDOWN), read_documents),
    "HTML": (partial(document, "a.html", HTML), read_documents),
    "PDF": (partial(document, "a.pdf", own_files.pdf("A cup holds tea.")), read_documents),
    "memory, manifest": (partial(memory, "manifest.json"), read_memory),
    "memory, manifest without checksum": (manifest, read_memory),
    "memory, keys": (partial(memory, "v00001-00000/keys.npy"), read_memory),
    "memory, payload": (partial(memory, "v00001-00000/payload.bin"), read_memory),
    "transformers, .bin": (bin_file, folder_of(open_folder)),
    # the slowest: a child process each
    "VGG, MATLAB": (partial(written, weight_files.matconvnet, "v.mat"), read_vgg),
    "VGG, HDF5": (copied("common/vgg19_keras.weights.h5"), read_vgg),
}
