"""A server on this machine that answers as the Hugging Face hub does, for repositories that are folders on disk."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """`root/OWNER/NAME/...` are the repositories. `sent` lists the files that were sent, and `breaks` the bytes after
    which the next answers break off; a repository in `gated` asks for its licence."""

    def __init__(self, root: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.root, self.sent, self.breaks, self.gated = root, [], [], set()
        self.address = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, body: bool = True) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        owner, name, kind, revision, *rest = [*(parts[2:] if api else parts), "", "", ""]
        folder = self.server.root / owner / name
        if not api and kind != "resolve":  # a plain web server
            return self._file(self.server.root.joinpath(*parts), body)
        if not folder.is_dir():
            return self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        if f"{owner}/{name}" in self.server.gated:
            return self._json({"error": "gated"}, 403, {"X-Error-Code": "GatedRepo"})
        if revision not in ("main", COMMIT, "v1"):
            return self._json({"error": "Revision Not Found"}, 404, {"X-Error-Code": "RevisionNotFound"})
        if kind == "resolve":
            return self._file(folder.joinpath(*filter(None, rest)), body)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        listed = [(str(path.relative_to(folder)), path.stat().st_size) for path in files]
        if kind == "tree":
            return self._json([{"type": "file", "path": p, "size": s, "oid": f"{p}{s}"} for p, s in listed])
        siblings = [{"rfilename": path} for path, _ in listed]
        return self._json({"id": f"{owner}/{name}", "sha": COMMIT, "siblings": siblings})

    def _json(self, value, status: int = 200, headers=()) -> None:
        self._answer(json.dumps(value).encode(), status, {"Content-Type": "application/json", **dict(headers)})

    def _file(self, path: Path, body: bool) -> None:
        if not path.is_file():
            return self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        data = path.read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if path.suffix == ".html":
            headers["Content-Type"] = "text/html; charset=utf-8"
        if not body:
            return self._answer(b"", 200, headers, len(data))
        start = int((self.headers.get("Range") or "bytes=0-").split("=")[1].split("-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.server.sent.append((path.name, start))
        self._answer(data[start:], 206 if start else 200, headers)

    def _answer(self, data: bytes, status: int, headers, length: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data) if length is None else length)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.server.breaks and length is None and headers.get("Accept-Ranges"):
            self.wfile.write(data[: self.server.breaks.pop()])
            self.close_connection = True
            return
        self.wfile.write(data)


@contextlib.contextmanager
def hub(folder: Path, monkeypatch) -> Iterator[Hub]:
    """The hub of this process; its repositories and the process' caches are below `folder`."""
    server = Hub(folder / "repositories")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    address = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    values = {"HF_HUB_CACHE": str(folder / "hub"), "ENDPOINT": server.address, "HUGGINGFACE_CO_URL_TEMPLATE": address}
    for name, value in values.items():
        monkeypatch.setattr(constants, name, value)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
