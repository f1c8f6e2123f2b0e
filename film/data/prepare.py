"""`film prepare`: any dataset of triplets -> one folder of ArrayRecord shards, ready for `tfds.data_source`.

    film prepare data/vimeo_triplet data/vimeo_records --layout vimeo90k --split train

Hundred thousands of small files are slow on the disks of a cluster; shards are few, and read at random without
TensorFlow. Image files are stored as they are (Xiph and X-TEST after their protocol, as PNG); each is decoded once, so
that a damaged one is found now and not in a run. DESTINATION holds, for instance,

    triplets-train.array_record-00000-of-00201 ...   tf.train.Example: frame_0, frame_1 (the truth), frame_2, path, time
    dataset_info.json, features.json                 metadata of tensorflow-datasets; written last
    prepare.json                                     source and options

A shard appears when it is whole; the same command after an interruption writes the missing ones.
`film.data.record_sources.TfdsTriplets` and `tfds.builder_from_directory(DESTINATION).as_data_source(split="train")`
read them.
"""

import io
import json
import logging
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from tqdm import tqdm

from common.io.files import atomic_output
from common.io.tensor_files import read_json
from common.terminal import Flag, Printing
from film.data.datasets import UCF101, FolderTriplets, Middlebury, SnuFilm, Vimeo90K, Xiph, XTest
from film.data.record_sources import FRAMES, CutTriplets, TFRecordTriplets
from film.data.triplet import Encoded, Source, decode, stack

log = logging.getLogger(__name__)

NAME, FORMAT, RECIPE, READY = "triplets", "array_record", "prepare.json", "dataset_info.json"
LAYOUTS: dict[str, Callable[[str, str], Source]] = {  # (path, split) -> source
    "folders": lambda path, _: FolderTriplets(path),
    "vimeo90k": lambda path, split: Vimeo90K(path, split),
    "ucf101": lambda path, _: UCF101(path),
    "middlebury": lambda path, _: Middlebury(path),
    "snu-film": lambda path, split: SnuFilm(path, split),
    "xiph-2k": lambda path, _: Xiph(path, scale=2),
    "xiph-4k": lambda path, _: Xiph(path, scale=1, centre_crop=2),
    "x-test-4k": lambda path, _: XTest(path),
    "x-test-2k": lambda path, _: XTest(path, scale=2),
    "tfrecord": lambda path, _: TFRecordTriplets(path),
    "cut": lambda path, _: CutTriplets(path),
}
Layout = Literal[tuple(LAYOUTS)]  # pyright: ignore


@dataclass(frozen=True)
class Prepare(Printing):
    """Pack a dataset of triplets into ArrayRecord shards. The same command again goes on after an interruption."""

    source: tyro.conf.Positional[str]
    """Folder of the dataset; for tfrecord a file, a glob, or folder/name@200."""
    destination: tyro.conf.Positional[str]
    """Folder to write; one per split."""
    layout: Layout = "folders"  # pyright: ignore[reportInvalidTypeForm]
    """Layout of the source: see film/data/datasets.py; cut: the output of `python -m film.data.cutting`."""
    split: str = "train"
    """Name of the split; for vimeo90k also which list (train, test), for snu-film which difficulty."""
    shard: Annotated[int, tyro.conf.arg(metavar="N")] = 256
    """Triplets per file."""
    strict: Flag = False
    """Stop at a triplet that cannot be read, instead of leaving it out."""
    overwrite: Flag = False
    """Replace a destination that is finished, or was begun with other options."""
    quiet: Flag = False
    """No progress bar."""

    def run(self) -> None:
        source = LAYOUTS[self.layout](self.source, self.split)
        count = prepare(source, self)
        left = len(source) - count
        text = f"{self.destination}: {count} triplets" + (f"; {left} could not be read" if left else "")
        self.write(text, {"folder": self.destination, "triplets": count, "unreadable": left})


def prepare(source: Source, options: Prepare) -> int:
    """Writes `source` as ArrayRecord shards; returns the number of triplets written. `options.source` and
    `options.layout` only describe it, in prepare.json; a run with other ones is not continued."""
    if options.shard < 1:
        raise ValueError(f"shard {options.shard} must be at least 1")
    if not re.fullmatch(r"[\w-]+", options.split):
        raise ValueError(f"split {options.split!r}: give a name of letters, digits, - and _")
    import tensorflow_datasets as tfds  # here: it takes two seconds

    images = dict.fromkeys(FRAMES, tfds.features.Image())
    features = tfds.features.FeaturesDict({**images, "path": tfds.features.Text(), "time": np.float32})
    folder, split, total = Path(options.destination), options.split, len(source)
    recipe = {"source": options.source, "layout": options.layout, "shard": options.shard}
    _begin(folder, {"split": split, "triplets": total, **recipe}, options.overwrite)
    ranges = [range(first, min(first + options.shard, total)) for first in range(0, total, options.shard)]
    lengths = []
    with tqdm(total=total, unit="triplet", disable=options.quiet or None) as bar:
        for number, indices in enumerate(ranges):
            path = folder / f"{NAME}-{split}.{FORMAT}-{number:05d}-of-{len(ranges):05d}"
            if not path.exists():
                _write_shard(path, source, indices, features, options.strict)
            with closing(ArrayRecordReader(str(path))) as reader:
                lengths.append(reader.num_records())
            bar.update(len(indices))
    if not sum(lengths):
        for path in folder.glob(f"{NAME}-*.{FORMAT}-*"):
            path.unlink()  # or the next run would keep them
        raise ValueError(f"none of the {total} triplets can be read: check the source")
    size = sum(path.stat().st_size for path in folder.glob(f"{NAME}-*"))
    tfds.folder_dataset.write_metadata(  # last: until then no program takes the folder for a dataset
        data_dir=folder,
        features=features,
        split_infos=[tfds.core.SplitInfo(name=split, shard_lengths=lengths, num_bytes=size)],
        check_data=False,  # it would need TensorFlow
        description=f"Triplets of frames; the truth is frame_1. {json.dumps(recipe)}",
    )
    return sum(lengths)


def _begin(folder: Path, recipe: dict[str, Any], overwrite: bool) -> None:
    """Keeps the shards of an unfinished run of this recipe; refuses or, with `overwrite`, deletes those of another."""
    path, done = folder / RECIPE, (folder / READY).exists()
    if not path.is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise FileExistsError(f"{folder} holds files that this command did not write; give an empty or new folder")
    else:
        same = read_json(path) == recipe
        if same and not done:
            return
        if not overwrite:
            state = "is finished" if same else f"was begun with other options ({RECIPE} has them)"
            raise FileExistsError(f"{folder} {state}; give another folder or --overwrite (overwrite=True)")
        for old in [folder / READY, folder / "features.json", *folder.glob(f"{NAME}-*.{FORMAT}-*")]:
            old.unlink(missing_ok=True)
    with atomic_output(path, overwrite=True) as part:
        part.write_text(json.dumps(recipe, indent=1) + "\n")


def _write_shard(path: Path, source: Source, indices: range, features: Any, strict: bool) -> None:
    """Only of the triplets that can be read."""
    # One record per group: random access reads no more.
    with atomic_output(path) as part, closing(ArrayRecordWriter(str(part), "group_size:1")) as writer:
        for index in indices:
            if triplet := _read(source, index, strict):
                # Files in memory: tfds can encode an array only with TensorFlow.
                images = zip(FRAMES, map(io.BytesIO, triplet.pictures), strict=True)
                example = {**dict(images), "path": triplet.name, "time": triplet.time}
                writer.write(features.serialize_example(features.encode_example(example)))


def _read(source: Source, index: int, strict: bool) -> Encoded | None:
    """The triplet, decoded as a check; None, and a line in the log, if it cannot be read."""
    try:
        triplet = source.encoded(index)
        stack([decode(picture, triplet.name) for picture in triplet.pictures], triplet.name)
    except (OSError, ValueError) as error:
        if strict:
            raise
        log.warning("left out triplet %d: %s", index, " ".join(str(error).split()))
        return None
    return triplet
