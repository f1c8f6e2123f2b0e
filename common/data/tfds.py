"""Datasets of tensorflow-datasets by random access (`tfds.data_source`); TensorFlow itself is not needed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

INFO = "dataset_info.json"


def open_rows(
    dataset: str, split: str, images: Sequence[str], others: Sequence[str] = (), data_dir: str | None = None
) -> Any:
    """The `tfds.data_source` of a split, the features `images` left encoded; a slash is before a nested feature.

    `dataset` is a prepared folder, or a name (`name:1.0.0`) under `data_dir` (None: tfds' own). Raises
    FileNotFoundError for an unknown dataset; ValueError for a missing feature, and a dataset without random access."""
    import tensorflow_datasets as tfds  # here: it takes two seconds

    builder: Any  # tfds' types are wider than what it takes
    if (Path(dataset) / INFO).is_file():
        builder = tfds.builder_from_directory(dataset)
    else:
        try:
            builder = tfds.builder(dataset, data_dir=data_dir)
        except (tfds.core.DatasetNotFoundError, ValueError) as error:  # their messages list all names, or none
            ways = "prepare it to the end (FILM's by `film prepare`), or name another"
            raise FileNotFoundError(f"{dataset}: no folder with {INFO}, and no dataset of tfds: {ways}") from error
    known = builder.info.features
    if missing := [name for name in (*images, *others) if name.partition("/")[0] not in known]:
        names = ", ".join(sorted(known))
        raise ValueError(f"{dataset}: no feature {missing[0]!r}; name others in the config, of {names}")
    try:
        return builder.as_data_source(split=split, decoders=dict.fromkeys(images, tfds.decode.SkipDecoding()))
    except NotImplementedError as error:
        raise ValueError(f"{dataset} has no random access; prepare it as array_record") from error
