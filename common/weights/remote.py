"""Weights by address: wherever a program takes a path, it takes an address too.

`hf:OWNER/NAME`, or a file or folder/ in it, with @REVISION; `https://HOST/FILE`, with #sha256=DIGEST
(docs/published-weights.md). Of a repository are *needed* configs, vocabularies and safetensors, of each network in one
precision; not pickles, other frameworks' formats, pictures, or single-file checkpoints beside the same networks in
folders.
"""

import hashlib
import os
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from tqdm import tqdm

from common.io.files import cache_folder

HUB, WEB = "hf:", ("https://", "http://")
LOCAL = ("localhost", "127.0.0.1", "::1")  # hosts that are this machine
LARGEST, PART = 50_000_000_000, 1 << 20  # bytes that one address may bring; that are written at a time
SMALL = (".json", ".txt", ".model", ".yaml", ".yml", ".md", ".spm", ".index", ".pb")  # configs and vocabularies
PRECISIONS = ("fp16", "bf16", "non_ema", "ema_only")  # variants in the names of weights; "": full precision
SECONDS = 10  # for a server to answer
ADDRESS_FILE = ".address"  # suffix of the file beside a download that has its address
NOT_USED = ("safety_checker/", "flax/", "onnx/", "openvino/", ".git")
ADDRESS = re.compile(r"hf:(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)(?P<path>/[^@]*)?(@(?P<revision>[^@]+))?")


def is_address(path: str | Path) -> bool:
    """Whether it is an address instead of a path."""
    return str(path).startswith((HUB, *WEB))


def local(path: str | Path, variant: str | None = None, pickles: bool = False) -> Path:
    """The path itself, or that of what an address names, downloaded unless it is on disk.

    `variant` ("fp16") prefers that precision, and `pickles` also takes files of PyTorch, for a caller whose reader runs
    no code of them. Raises ValueError for a malformed address, another digest or too many bytes, FileNotFoundError for
    a repository, revision or file that is not there, PermissionError for one that asks for a token or a licence, and
    ConnectionError without a network."""
    text = str(path)
    if text.startswith(HUB):
        return _from_hub(*_digest_of(text), lambda names: needed_files(names, variant, pickles))
    if text.startswith(WEB):
        address, digest = _digest_of(text)
        if text.startswith("http://") and not digest and urlsplit(text).hostname not in LOCAL:
            raise ValueError(f"{text}: anybody on the way can change it; give https://, or #sha256=DIGEST")
        return _from_web(address, digest)
    return Path(path)


def needed_files(names: Iterable[str], variant: str | None = None, pickles: bool = False) -> list[str]:
    """Of the files of a repository, those that the loaders of this project read (see the module)."""
    names = [name for name in names if not name.startswith(NOT_USED)]
    weights = [name for name in names if name.endswith(".safetensors")]
    in_folders = "model_index.json" in names  # of diffusers: files beside it repeat its networks
    weights = [name for name in weights if "/" in name or not in_folders]
    if pickles:
        with_tensors = {_network(name) for name in weights}
        torch = [name for name in names if name.endswith((".pt", ".pth", ".bin")) and ("/" in name or not in_folders)]
        weights += [name for name in torch if _network(name) not in with_tensors]
    precisions: dict[str, set[str]] = {}
    for name in weights:
        precisions.setdefault(_network(name), set()).add(_precision(name))
    wanted = [*([variant] if variant else []), "", *PRECISIONS]
    chosen = {network: next(p for p in wanted if p in found) for network, found in precisions.items()}
    kept = [name for name in weights if _precision(name) == chosen[_network(name)]]
    small = [name for name in names if name.endswith(SMALL) or "variables/variables" in name]
    unused = {name for name in small if ".safetensors.index" in name and _network(name) not in chosen}
    return sorted({*kept, *small} - unused)


def _network(name: str) -> str:
    """Folder and kind of weights: "unet/diffusion_pytorch_model" of all shards and precisions."""
    stem = PurePosixPath(name).name.split(".")[0]
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", stem).replace("pytorch_model", "model")
    return str(PurePosixPath(name).parent / stem)


def _precision(name: str) -> str:
    parts = re.split(r"[.-]", PurePosixPath(name).name)
    return next((precision for precision in PRECISIONS if precision in parts), "")


def _digest_of(text: str) -> tuple[str, str]:
    """An address and its digest, or ""."""
    address, _, digest = text.partition("#sha256=")
    if digest and not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        raise ValueError(f"{text}: a sha256 is 64 hexadecimal digits, not {len(digest)} characters {digest[:12]!r}")
    return address, digest.lower()


def _from_hub(address: str, digest: str, choose: Callable[[Sequence[str]], list[str]]) -> Path:
    import httpx2
    import huggingface_hub as hub
    from huggingface_hub import constants, errors

    match = ADDRESS.fullmatch(address)
    if not match:
        raise ValueError(f"{address!r} is no address: give hf:OWNER/NAME, hf:OWNER/NAME/FILE, or either @REVISION")
    repository, inside = f"{match['owner']}/{match['name']}", (match["path"] or "").lstrip("/")
    where = {"repo_id": repository, "revision": match["revision"] or "main"}
    try:
        try:
            hub.get_session().head(constants.ENDPOINT, timeout=SECONDS)  # one try; the library's own take half a minute
            tree, offline = list(hub.HfApi().list_repo_tree(recursive=True, **where)), False
        except (errors.OfflineModeIsEnabled, httpx2.TransportError):
            tree, offline = hub.get_cached_repo_tree(**where), True
        sizes = {entry.path: entry.size for entry in tree if isinstance(entry, hub.RepoFile)}
        if not inside or inside.endswith("/"):
            chosen = [inside + name for name in choose([x.removeprefix(inside) for x in sizes if x.startswith(inside)])]
        else:
            chosen = [name for name in sizes if name == inside]
        if not chosen:
            have = ", ".join(sorted(sizes)[:8]) or "nothing"
            raise FileNotFoundError(f"{address}: the repository has no {'such file' if inside else 'weights'}; {have}")
        _check_size(address, sum(sizes[name] or 0 for name in chosen))
        folder = hub.snapshot_download(allow_patterns=[*map(escape, chosen)], local_files_only=offline, **where)
    except errors.GatedRepoError as error:
        raise PermissionError(f"{address} asks for its licence: accept it on the hub, and set HF_TOKEN") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        missing = "no such repository or revision, or a private one: set HF_TOKEN"
        raise FileNotFoundError(f"{address}: {missing}") from error
    except (
        errors.CachedRepoTreeNotFoundError,
        errors.LocalEntryNotFoundError,
        errors.IncompleteSnapshotError,
    ) as error:
        way = "unset HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else "check the network"
        raise ConnectionError(f"{address} is not on this disk, and out of reach: {way}, or give a path") from error
    except (errors.HfHubHTTPError, httpx2.TransportError) as error:
        raise ConnectionError(f"{address}: {' '.join(str(error).split())}; the same command resumes") from error
    path = Path(folder) / inside
    if digest:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            raise ValueError(f"{address}: its sha256 is {found[:12]}..., not {digest[:12]}...")
    return path


def _from_web(address: str, digest: str) -> Path:
    import pooch
    import requests

    folder = cache_folder() / "downloads"
    name = f"{hashlib.sha256(address.encode()).hexdigest()[:12]}-{PurePosixPath(address.split('?')[0]).name}"
    try:
        pooch.get_logger().setLevel("WARNING")
        known, downloader = f"sha256:{digest}" if digest else None, typing.cast(Any, _download)
        path = Path(pooch.retrieve(address, known, name, folder, downloader=downloader))
        path.with_name(name + ADDRESS_FILE).write_text(address, "utf-8")
    except requests.RequestException as error:
        reason = type(error).__name__ if error.response is None else error.response.status_code
        raise ConnectionError(f"{address} cannot be had ({reason}): check the address and the network") from error
    except ValueError as error:
        if "hash" not in str(error):
            raise
        raise ValueError(f"{address}: what came has another sha256 than {digest[:12]}...; nothing was kept") from error
    return path


def _download(address: str, output: str, pooch: Any) -> None:
    """For pooch: the bytes are counted as they come, whatever the server says there are."""
    import requests

    with requests.get(address, stream=True, timeout=SECONDS) as answer, Path(output).open("wb") as file:
        answer.raise_for_status()
        if "text/html" in str(answer.headers.get("Content-Type")):
            way = "give the address of the file itself (on the hub .../resolve/..., not .../blob/...)"
            raise ValueError(f"{address}: the server sends a page, not a file: {way}")
        size = int(answer.headers.get("Content-Length") or 0)
        _check_size(address, size)
        with tqdm(total=size or None, unit="B", unit_scale=True, desc=PurePosixPath(address).name) as bar:
            for part in answer.iter_content(PART):
                _check_size(address, file.tell() + len(part))
                file.write(part)
                bar.update(len(part))


def _check_size(address: str, size: int) -> None:
    given = os.environ.get("FILM_LARGEST_DOWNLOAD", str(LARGEST))
    if not given.isdecimal():
        raise ValueError(f"FILM_LARGEST_DOWNLOAD is {given!r}: give a whole number of bytes")
    if size > int(given):
        raise ValueError(f"{address} has over {int(given):,} bytes: set FILM_LARGEST_DOWNLOAD to allow it")
