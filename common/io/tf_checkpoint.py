"""Read the variables of a TensorFlow checkpoint or SavedModel as plain arrays.

TensorFlow stores variables as a *bundle*: an index file `<prefix>.index` and data shards
`<prefix>.data-00000-of-0000N`. People hand over one of four things, and each is taken here:

| given | prefix |
| --- | --- |
| a SavedModel folder (it holds `variables/variables.index`) | `variables/variables` |
| a checkpoint folder (it holds the text file `checkpoint`) | the newest one, as that file says |
| an index file | its name without `.index` |
| a prefix, e.g. `train/ckpt-3` | itself |

Keys are TensorFlow's own, e.g. "variables/0/.ATTRIBUTES/VARIABLE_VALUE". Entries of text, such as the
object graph, are left out: they are no weights. TensorFlow itself is needed only here (extra `convert`),
and is imported only when a bundle is read.
"""

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


def read_tf_checkpoint(prefix_or_folder: str | Path) -> dict[str, np.ndarray]:
    """{TensorFlow key: array} of all tensors that are not text, sorted by key, each in its stored shape and
    dtype.

    Raises FileNotFoundError if there is no bundle or a shard of it is missing, ValueError if it is damaged or
    TensorFlow is not installed."""
    prefix = find_prefix(prefix_or_folder)
    _check_shards(prefix)
    tensorflow = _import_tensorflow()
    try:
        reader = tensorflow.train.load_checkpoint(str(prefix))
        dtypes = reader.get_variable_to_dtype_map()
        keys = sorted(key for key, dtype in dtypes.items() if dtype != tensorflow.string)
        return {key: np.asarray(reader.get_tensor(key)) for key in keys}
    except (tensorflow.errors.OpError, RuntimeError, IndexError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{prefix}: damaged TensorFlow checkpoint, copy it again: {reason}") from error


def find_prefix(path: str | Path) -> Path:
    """The bundle's prefix for any of the four things in the module's docstring.

    Raises FileNotFoundError, naming what was looked for."""
    path = Path(path)
    if path.is_dir():
        candidates = [path / "variables" / "variables", path / "variables", *_newest(path)]
    else:
        candidates = [path.with_suffix("")] if path.suffix == ".index" else [path]
    for prefix in candidates:
        if _index(prefix).is_file():
            return prefix
    raise FileNotFoundError(
        f"{path}: no TensorFlow checkpoint here: none of {', '.join(str(_index(p)) for p in candidates)};"
        " name a SavedModel folder, a checkpoint folder, a prefix or an .index file"
    )


def _newest(folder: Path) -> list[Path]:
    """What the text file `checkpoint` calls the latest. A folder that was moved still names its old
    absolute path, so the bare name inside this folder comes second."""
    state = folder / "checkpoint"
    if not state.is_file():
        return []
    named = re.search(r'^model_checkpoint_path:\s*"([^"]+)"', state.read_text(errors="replace"), re.MULTILINE)
    if named is None:
        raise ValueError(f"{state}: names no model_checkpoint_path; give the prefix of a checkpoint instead")
    return [folder / named[1], folder / Path(named[1]).name]


def _index(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".index")  # not with_suffix: "ckpt-1.5" has one of its own


def _check_shards(prefix: Path) -> None:
    """TensorFlow's own complaint about a missing shard comes late and speaks of memory maps."""
    pattern = re.compile(re.escape(prefix.name) + r"\.data-(\d{5})-of-(\d{5})")
    found = {m[0]: int(m[2]) for m in map(pattern.fullmatch, _names(prefix.parent)) if m}
    total = max(found.values(), default=1)
    wanted = [f"{prefix.name}.data-{i:05d}-of-{total:05d}" for i in range(total)]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise FileNotFoundError(
            f"{_index(prefix)}: its data lie in {total} shard(s), missing: {', '.join(missing)};"
            " copy them beside the index"
        )


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def _import_tensorflow() -> Any:
    with _quiet():
        try:
            import tensorflow
        except ImportError as error:
            raise ValueError(
                f'reading TensorFlow files needs TensorFlow: pip install "film-plugins-reveal[convert]" ({error})'
            ) from error
    return tensorflow


@contextmanager
def _quiet() -> Iterator[None]:
    """TensorFlow prints a page to stderr while it is imported, unless these say otherwise at that moment."""
    wanted = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: value for name, value in wanted.items() if before[name] is None})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
