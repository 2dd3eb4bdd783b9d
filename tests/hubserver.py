"""A model hub of our own on the loopback interface: what huggingface_hub asks for, and what goes wrong.

Repositories are folders by commit. Weights lie on a second port, as they lie at another host in the world:
the hub redirects there, and the places it names can expire. Every request is kept in `log`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

STORED_APART = ".safetensors"  # files that the hub redirects to the store


def commit(label: str) -> str:
    """A commit id."""
    return hashlib.sha1(label.encode()).hexdigest()


@dataclass
class Repository:
    """A model: folders by commit, commits by branch or tag; with a token it is gated."""

    folders: dict[str, Path]
    refs: dict[str, str]
    token: str = ""

    def files(self, sha: str) -> dict[str, Path]:
        """Paths by name."""
        top = self.folders[sha]
        return {str(path.relative_to(top)): path for path in sorted(top.rglob("*")) if path.is_file()}


@dataclass
class Faults:
    """What goes wrong from now on."""

    cut_after: int = 0  # bytes of a body, then the connection breaks
    cuts: int = 0  # how often
    no_range: bool = False
    sent_total: int = 0  # added to the length that the store names
    listed: int = 0  # added to the length that the hub lists
    busy: int = 0  # answers with status 503
    expired: int = 0  # places that turn out to be gone
    shifted: bool = False  # another range than the one asked for
    longer: bool = False  # more bytes than asked for
    status: int = 0  # of the store, always
    api_status: int = 0  # of the hub, always


@dataclass
class Request:
    """One line of the log."""

    server: str  # hub or store
    method: str
    path: str
    range: str
    token: str


@dataclass
class HubServer:
    """Both servers; `with HubServer() as hub:`."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    log: list[Request] = field(default_factory=list)

    def __enter__(self) -> HubServer:
        self.lock = threading.Lock()
        self.hub = self._start(Hub)
        self.store = self._start(Store)
        return self

    def _start(self, kind: type[Handler]) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type(kind.__name__, (kind,), {"owner": self}))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def __exit__(self, *_: object) -> None:
        for server in (self.hub, self.store):
            server.shutdown()
            server.server_close()

    @property
    def endpoint(self) -> str:
        """For HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.hub.server_address[1]}"

    def take(self, name: str) -> bool:
        """One of a counted fault, if there is one left."""
        with self.lock:
            left = getattr(self.faults, name)
            setattr(self.faults, name, max(0, left - 1))
            return bool(left)

    def requests(self, server: str, method: str = "GET") -> list[Request]:
        """A part of the log."""
        return [line for line in self.log if (line.server, line.method) == (server, method)]


class Handler(BaseHTTPRequestHandler):
    """What both servers share."""

    protocol_version = "HTTP/1.1"
    owner: HubServer
    label = ""

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_HEAD(self) -> None:
        """Like GET, without the body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Keep a line of it, then answer."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        path = urlsplit(self.path).path
        self.owner.log.append(Request(self.label, self.command, path, self.headers.get("Range") or "", token))
        try:
            self.answer(path, token)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer(self, path: str, token: str) -> None:
        """The server's own part."""
        raise NotImplementedError

    def reply(self, status: int, body: bytes = b"", **headers: Any) -> None:
        """A whole answer."""
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str) -> None:
        """An error as the hub spells it."""
        self.reply(status, json.dumps({"error": code}).encode(), X_Error_Code=code, X_Error_Message=code)


class Hub(Handler):
    """Metadata, small files, and where the big ones lie."""

    label = "hub"

    def answer(self, path: str, token: str) -> None:
        """See Handler."""
        if self.owner.faults.api_status:
            return self.reply(self.owner.faults.api_status)
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = api or file
        repository = self.owner.repositories.get(found[1]) if found else None
        if not found or not repository:
            return self.refuse(401, "RepoNotFound")
        revision = unquote(found[2] or "main")
        sha = revision if revision in repository.folders else repository.refs.get(revision)
        if sha is None:
            return self.refuse(404, "RevisionNotFound")
        if file and repository.token and token != repository.token:
            return self.refuse(403 if token else 401, "GatedRepo")
        if api:
            return self.model(found[1], repository, sha)
        return self.file(found[1], repository, sha, found[3])

    def model(self, name: str, repository: Repository, sha: str) -> None:
        """What a revision holds; gated models show this to everybody."""
        extra = self.owner.faults.listed
        sizes = parse_qs(urlsplit(self.path).query).get("blobs") == ["True"] or "blobs=true" in self.path
        listed = [
            {
                "rfilename": file,
                **({"size": path.stat().st_size + extra * file.endswith(STORED_APART)} if sizes else {}),
            }
            for file, path in repository.files(sha).items()
        ]
        about = {"id": name, "modelId": name, "sha": sha, "private": False, "tags": [], "siblings": listed}
        self.reply(200, json.dumps(about).encode(), Content_Type="application/json")

    def file(self, name: str, repository: Repository, sha: str, file: str) -> None:
        """A small file, or the place of a big one."""
        path = repository.files(sha).get(file)
        if path is None:
            return self.refuse(404, "EntryNotFound")
        size, mark = path.stat().st_size, {"X_Repo_Commit": sha}
        if not file.endswith(STORED_APART):
            data = path.read_bytes()
            return self.reply(200, data, ETag=f'"{hashlib.sha256(data).hexdigest()}"', **mark)
        place = f"http://127.0.0.1:{self.owner.store.server_address[1]}/{name}/{sha}/{file}"
        linked = size + self.owner.faults.sent_total
        self.reply(302, Location=place, X_Linked_Size=linked, X_Linked_Etag=f'"{commit(file)}"', **mark)


class Store(Handler):
    """The bytes of big files, by range."""

    label = "store"

    def answer(self, path: str, token: str) -> None:
        """See Handler."""
        owner, faults = self.owner, self.owner.faults
        if faults.status or owner.take("expired"):
            return self.reply(faults.status or 403)
        if owner.take("busy"):
            return self.reply(503, Retry_After="0")
        *owner_and_name, sha, file = path.strip("/").split("/")
        name = "/".join(owner_and_name)
        source = owner.repositories[name].files(sha)[file]
        total = source.stat().st_size + faults.sent_total
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        first, last = (int(asked[1]), int(asked[2])) if asked and not faults.no_range else (0, total - 1)
        if last >= total:
            return self.reply(416, Content_Range=f"bytes */{total}")
        ranged = asked and not faults.no_range
        first += faults.shifted
        size = last - first + 1 + faults.longer
        self.send_response(206 if ranged else 200)
        if ranged:
            self.send_header("Content-Range", f"bytes {first}-{last}/{total}")
        self.send_header("Content-Length", str(size))
        self.end_headers()
        return self.send(source, first, size)

    def send(self, source: Path, first: int, size: int) -> None:
        """The body, or its beginning."""
        faults = self.owner.faults
        if faults.cut_after and size > faults.cut_after and self.owner.take("cuts"):
            size, self.close_connection = faults.cut_after, True
        with open(source, "rb") as data:
            data.seek(first)
            while size > 0 and (block := data.read(min(1 << 16, size))):
                self.wfile.write(block)
                size -= len(block)
        if size > 0:
            self.close_connection = True
