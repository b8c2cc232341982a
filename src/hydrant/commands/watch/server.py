"""The server of `hydrant watch`: the page, its events, pictures and the ends of logs. It reads files and writes none.

It answers GET and HEAD only, to requests that name this machine as their host: a page elsewhere whose name leads to
this machine (DNS rebinding) is refused. There is no CORS, so pages of other origins can read nothing. A path of a
request never becomes a path of a file: runs are looked up among those that the page shows, files among the entries of
the folder that a run had when it was read, and no link is followed.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import platform
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePath
from socketserver import TCPServer
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

from hydrant.commands.compare.page import page
from hydrant.commands.compare.page.pictures import PICTURE_TYPES
from hydrant.commands.watch.feed import Feed, message_of
from hydrant.files.redaction import redacted_text
from hydrant.runs.folder import LOG, PICTURES

_LOG_BYTES = 1 << 16
_HEARTBEAT_SECONDS = 10.0
"""After so long without news, a comment is sent, by which a server notices that a page was closed."""
_FIRST_SECONDS = 60.0
"""So long the first page waits for the first comparison."""
_MAX_STREAMS = 64
_MAX_CONNECTIONS = 128
"""More than the streams, so that pages and pictures are answered too."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the page has the others
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Answer = tuple[str, bytes]
"""A content type and a content."""


class Server(ThreadingHTTPServer):
    """Answers each request in a thread of its own.

    Args:
        token: what each request must have, "" for none.
        hosts: the names of this machine by which it may be asked. Numeric addresses are always allowed.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = _MAX_CONNECTIONS  # with the 5 of the standard library, a burst waits for a second

    def __init__(self, address: tuple[str, int], feed: Feed, token: str, hosts: Iterable[str]) -> None:
        self.feed, self.token = feed, token
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.hosts = {host.lower() for host in ("localhost", *hosts)}
        self._room = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def is_own_host(self, host: str | None) -> bool:
        """Return whether a Host header names this machine, by any port, which may be that of an SSH tunnel."""
        name = urlsplit(f"//{host}").hostname if host else None
        if name is None:
            return False
        with suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return name in self.hosts

    def server_bind(self) -> None:
        """Bind without asking a name server for the name of the address, as HTTPServer does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection if there are too many."""
        if self._room.acquire(blocking=False):
            return super().process_request(request, client_address)
        return self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a connection that the browser has closed."""


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 30  # of a client that does not send its request
    server_version, sys_version = "hydrant", ""

    def do_GET(self) -> None:
        with suppress(ConnectionError, TimeoutError):  # the page was closed
            self._respond()

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a method or a damaged request with the headers of every answer."""
        self.close_connection = True
        self._refuse(HTTPStatus(code))

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal shows the address."""

    def _respond(self) -> None:
        try:
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            is_own = self.server.is_own_host(self.headers.get("Host")) and self._is_same_origin()
        except ValueError:  # such as [ in a host
            return self._refuse(HTTPStatus.BAD_REQUEST)
        if not is_own:
            return self._refuse(HTTPStatus.FORBIDDEN, "This server answers only to its own address.")
        if not hmac.compare_digest(query.get("token", "").encode(), self.server.token.encode()):
            text = "The token is wrong. hydrant watch has printed the address."
            return self._refuse(HTTPStatus.FORBIDDEN, text)
        if parts.path == "/events":
            return self._stream(query.get("since", ""))
        routes: dict[str, Callable[[dict[str, str]], Answer | None]] = {
            "/": self._page, "/log": self._log, "/picture": self._picture
        }  # fmt: skip
        answer = routes[parts.path](query) if parts.path in routes else None
        if answer is None:
            return self._refuse(HTTPStatus.NOT_FOUND)
        return self._send(HTTPStatus.OK, *answer)

    def _is_same_origin(self) -> bool:
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        is_visit = self.headers.get("Sec-Fetch-Mode") == "navigate"  # a link to the page
        is_own = origin is None or origin.lower() == f"http://{self.headers.get('Host', '')}".lower()
        return is_own and (is_visit or site not in ("cross-site", "same-site"))

    def _page(self, query: dict[str, str]) -> Answer:
        version, parts = self.server.feed.wait("", _FIRST_SECONDS)
        return "text/html; charset=utf-8", page({**parts, "version": version}, "events").encode()

    def _log(self, query: dict[str, str]) -> Answer | None:
        content = self._end_of_file(query, LOG, limit=_LOG_BYTES)
        if content is None:
            return None
        return "text/plain; charset=utf-8", redacted_text(content.decode(errors="replace")).encode()

    def _picture(self, query: dict[str, str]) -> Answer | None:
        kind, _, name = query.get("file", "").rpartition("/")
        picture_type = PICTURE_TYPES.get(PurePath(name).suffix)
        content = self._end_of_file(query, PICTURES, kind, name) if picture_type else None
        return (picture_type, content) if picture_type and content else None

    def _end_of_file(self, query: dict[str, str], *names: str, limit: int | None = None) -> bytes | None:
        """Return the end of a file of the asked run; empty if there is none, None if it cannot be opened."""
        folder = self.server.feed.folders.get(query.get("run", ""))
        try:
            if folder is None:
                return None
            with folder.open(*names) as file:
                return _end_of(file, limit)
        except FileNotFoundError:
            return b""
        except OSError:  # a link, a pipe, or another folder has taken the place of the run's
            return None

    def _stream(self, version: str) -> None:
        """Send what is newer than a version, and what changes from then on."""
        feed = self.server.feed
        if self.command == "HEAD":
            return self._begin(HTTPStatus.OK, "text/event-stream")
        try:
            if feed.join(1) > _MAX_STREAMS:
                return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
            self._begin(HTTPStatus.OK, "text/event-stream")
            self.wfile.write(b": begin\n\n")
            while not feed.has_ended:
                version, parts = feed.wait(version, _HEARTBEAT_SECONDS)
                self.wfile.write(message_of(version, parts) if parts else b": no news\n\n")
        finally:
            feed.join(-1)

    def _refuse(self, status: HTTPStatus, text: str = "") -> None:
        self._send(status, "text/plain; charset=utf-8", (text or status.phrase).encode())

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self._begin(status, kind, str(len(content)))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _begin(self, status: HTTPStatus, kind: str, length: str = "") -> None:
        self.send_response(status)
        headers = {**_HEADERS, "Content-Type": kind} | ({"Content-Length": length} if length else {})
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _end_of(file: BinaryIO, limit: int | None) -> bytes:
    """Return the last bytes of a file, from the start of a line; all without a limit."""
    if limit is None or os.fstat(file.fileno()).st_size <= limit:
        return file.read()
    file.seek(-limit, os.SEEK_END)
    return file.read().partition(b"\n")[2]


def own_names() -> list[str]:
    """Return the names of this machine in its network."""
    name = platform.node()
    return [name, name.partition(".")[0], f"{name.partition('.')[0]}.local"]
