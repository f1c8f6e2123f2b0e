"""Read the variables of a TensorFlow checkpoint or SavedModel, a *bundle* of an index file `<prefix>.index` and shards
`<prefix>.data-00000-of-0000N`, as plain arrays. It may be given as

| path | prefix |
| --- | --- |
| a SavedModel folder (it holds `variables/variables.index`) | `variables/variables` |
| a checkpoint folder (it holds the text file `checkpoint`) | the newest one, by that file |
| an index file | its name without `.index` |
| a prefix, e.g. `train/ckpt-3` | itself |

Keys are TensorFlow's own, e.g. "variables/0/.ATTRIBUTES/VARIABLE_VALUE". Only `read_tf_checkpoint` imports TensorFlow
(extra `convert`).
"""

import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}  # or its import prints a page to stderr


def read_tf_checkpoint(prefix_or_folder: str | Path) -> dict[str, np.ndarray]:
    """{TensorFlow key: array} of all tensors but text, sorted by key, with their stored shape and dtype."""
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
    """The prefix of the bundle for any path in the table of the module. Raises FileNotFoundError."""
    path = Path(path)
    if path.is_dir():
        candidates = [path / "variables" / "variables", path / "variables"]
        state = path / "checkpoint"
        if state.is_file():
            pattern = r'^model_checkpoint_path:\s*"([^"]+)"'
            if (newest := re.search(pattern, state.read_text(errors="replace"), re.MULTILINE)) is None:
                raise ValueError(f"{state}: names no model_checkpoint_path; give the prefix of a checkpoint instead")
            # A folder that was moved still has its old absolute path: the name in this folder comes second.
            candidates += [path / newest[1], path / Path(newest[1]).name]
    else:
        candidates = [path.with_suffix("")] if path.suffix == ".index" else [path]
    for prefix in candidates:
        if _index(prefix).is_file():
            return prefix
    tried = ", ".join(str(_index(prefix)) for prefix in candidates)
    raise FileNotFoundError(f"{path}: no TensorFlow checkpoint: none of {tried}; give a folder, prefix or index file")


def _index(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".index")  # not with_suffix: "ckpt-1.5" has one of its own


def _check_shards(prefix: Path) -> None:
    """TensorFlow reports a missing shard late, as an error of memory maps."""
    pattern = re.compile(re.escape(prefix.name) + r"\.data-(\d{5})-of-(\d{5})")
    found = {match[0]: int(match[2]) for path in prefix.parent.iterdir() if (match := pattern.fullmatch(path.name))}
    total = max(found.values(), default=1)
    names = [f"{prefix.name}.data-{i:05d}-of-{total:05d}" for i in range(total)]
    if missing := [name for name in names if name not in found]:
        raise FileNotFoundError(f"{_index(prefix)}: copy its missing shards beside it: {', '.join(missing)}")


def _import_tensorflow() -> Any:
    ours = {name: value for name, value in QUIET.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import tensorflow
    except ImportError as error:
        raise ValueError(f'TensorFlow is missing: pip install "film-plugins-reveal[convert]" ({error})') from error
    finally:
        for name in ours:
            os.environ.pop(name, None)
    return tensorflow
