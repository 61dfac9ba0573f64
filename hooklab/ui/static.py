"""Static files, compressed once: a class that opens the page at once costs one compression, not a hundred."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import brotli  # comes with gradio

WEB = Path(__file__).with_name("web")
_TYPES = {".js": "text/javascript", ".css": "text/css", ".json": "application/json", ".svg": "image/svg+xml"}
_COMPRESSIBLE = ("text/", "application/javascript", "application/json", "image/svg+xml")
_IMMUTABLE = "public, max-age=31536000, immutable"
_CACHED_PREFIXES = ("/assets/", "/static/")
_REFUSED_PREFIXES = (
    "/gradio_api/file=http",
    "/file=http",
    "/pwa_icon/",
    "/monitoring",
)  # an open relay, a memory bomb, others' figures
_KEPT = 200  # whole answers; Gradio's front end has about 80 files


class WebFiles:
    """The page's own files under one address that names their content: `prefix` + "app.js" may be cached for good.

    `generated` adds files made at start-up (name -> JSON-like value), such as the list of layers.
    """

    def __init__(self, generated: Mapping[str, object]):
        files = {
            path.relative_to(WEB).as_posix(): path.read_bytes() for path in sorted(WEB.rglob("*")) if path.is_file()
        }
        files |= {name: json.dumps(value, ensure_ascii=False).encode() for name, value in generated.items()}
        digest = hashlib.sha256(b"\0".join(name.encode() + b"\0" + body for name, body in files.items())).hexdigest()
        self.prefix = f"hooklab/{digest[:12]}/"
        self.files = {f"/{self.prefix}{name}": (body, _media_type(name)) for name, body in files.items()}


class StaticCache:
    """ASGI middleware: answers `WebFiles` itself, and Gradio's static files from memory after their first request."""

    def __init__(self, app, web: WebFiles):
        self.app = app
        self.answers: dict[tuple[str, bool], tuple[int, list, bytes]] = {}
        for path, (body, media_type) in web.files.items():
            headers = [(b"content-type", media_type.encode()), (b"cache-control", _IMMUTABLE.encode())]
            for compressed in (False, True):
                self.answers[path, compressed] = _pack(headers, body, compressed)
        self.own = len(self.answers)

    async def __call__(self, scope, receive, send):
        path = scope.get("path", "")
        if path == "/":  # our state is the browser's to read; Gradio takes ?page= for its own and would answer 500
            scope = {**scope, "query_string": b""}
        if scope["type"] != "http" or not self._concerns(scope["method"], path):
            return await self.app(scope, receive, send)
        if path.startswith(_REFUSED_PREFIXES):
            return await _answer(send, 404, [(b"content-type", b"text/plain")], b"not here")
        accepted = b",".join(value for name, value in scope["headers"] if name == b"accept-encoding")
        key = (path, b"br" in accepted)
        if key not in self.answers:
            status, headers, body = await self._ask(scope, receive)
            if status != 200 or len(self.answers) - self.own >= _KEPT:
                return await _answer(send, status, headers, body)
            age = _IMMUTABLE if path.startswith("/assets/") else "public, max-age=3600"
            dropped = (b"content-length", b"cache-control", b"vary", b"accept-ranges")
            headers = [(name, value) for name, value in headers if name.lower() not in dropped]
            self.answers[key] = _pack([*headers, (b"cache-control", age.encode())], body, key[1])
        status, headers, body = self.answers[key]
        return await _answer(send, status, headers, b"" if scope["method"] == "HEAD" else body)

    def _concerns(self, method: str, path: str) -> bool:
        mine = (
            path.startswith((*_CACHED_PREFIXES, *_REFUSED_PREFIXES))
            or path == "/theme.css"
            or (path, False) in self.answers
        )
        return method in ("GET", "HEAD") and mine

    async def _ask(self, scope, receive) -> tuple[int, list, bytes]:
        """The app's whole, uncompressed answer."""
        dropped = (b"accept-encoding", b"if-none-match", b"if-modified-since", b"range")
        headers = [(name, value) for name, value in scope["headers"] if name not in dropped]
        messages = []

        async def keep(message):
            messages.append(message)

        await self.app({**scope, "method": "GET", "headers": headers}, receive, keep)
        start = messages[0]
        return start["status"], list(start["headers"]), b"".join(message.get("body", b"") for message in messages[1:])


def _media_type(name: str) -> str:
    return _TYPES[Path(name).suffix] + "; charset=utf-8"  # an unknown ending is our own mistake: it fails at start-up


def _pack(headers: list, body: bytes, compressed: bool) -> tuple[int, list, bytes]:
    media_type = dict(headers).get(b"content-type", b"").decode()
    headers = [*headers, (b"vary", b"Accept-Encoding")]
    if compressed and media_type.startswith(_COMPRESSIBLE) and len(body) > 400:
        body = brotli.compress(body, quality=9)
        headers.append((b"content-encoding", b"br"))
    return 200, [*headers, (b"content-length", str(len(body)).encode())], body


async def _answer(send, status: int, headers: list, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
