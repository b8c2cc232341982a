"""Serve the live page of run folders in this process."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydrant.commands.compare.question import Question
from hydrant.commands.watch.feed import Feed
from hydrant.commands.watch.server import Server


class Watched:
    """A server at a free port of this machine."""

    def __init__(self, feed: Feed, token: str, hosts: tuple[str, ...]) -> None:
        self.feed, self.server = feed, Server(("127.0.0.1", 0), feed, token, hosts)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}/"

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
        """Send a path as it is, without the corrections of a client. Return the status and the content."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, content


@contextmanager
def watching(*words: Path, token: str = "", hosts: tuple[str, ...] = ()) -> Iterator[Watched]:
    feed = Feed([str(word) for word in words], Question())
    watched = Watched(feed, token, hosts)
    feed.update()
    thread = threading.Thread(target=watched.server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield watched
    finally:
        feed.end()
        watched.server.shutdown()
        thread.join()
        watched.server.server_close()
