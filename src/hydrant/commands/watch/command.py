"""The command line of `hydrant watch`."""

from __future__ import annotations

import errno
import glob
import ipaddress
import os
import platform
import secrets
import sys
import threading
import webbrowser
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydrant.commands.compare.command import add_question_flags, question_of
from hydrant.config.command_line import Flags, named_folder
from hydrant.errors import ConfigError
from hydrant.runs.folder import newest_folders
from hydrant.terminal.answer import answer, wants_json
from hydrant.terminal.console import clear_activity, emit, notice

if TYPE_CHECKING:
    from hydrant.commands.watch.feed import Feed
    from hydrant.commands.watch.server import Server

_PORT, _NUM_PORTS = 8460, 20
_HERE = "127.0.0.1"


def main(arguments: Sequence[str]) -> int:
    """Serve the page of runs until Ctrl-C, which ends the command."""
    options, words = _parse(arguments)
    from hydrant.commands.watch.feed import Feed  # slow: imports scipy

    feed = Feed(words, question_of(options))
    server = _server(options, feed)
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    try:
        clear_activity()
        if wants_json():
            answer({"url": url_of(server)})
        else:
            emit(f"{url_of(server)}  (Ctrl-C ends it)")
        if not options.no_browser:
            threading.Thread(target=_open_browser, args=(url_of(server),), daemon=True).start()
        while True:
            feed.update()
            feed.rest()
    finally:
        feed.end()
        server.shutdown()
        server.server_close()


def url_of(server: Server) -> str:
    """Return the address of the page, with the token if there is one."""
    host, port = server.server_name, server.server_port
    if ipaddress.ip_address(host).is_unspecified:  # all addresses of this machine
        host = platform.node()
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/" + (f"?token={server.token}" if server.token else "")


def _open_browser(url: str) -> None:
    """Open the page. Without a display, a browser would take the terminal."""
    has_display = sys.platform != "linux" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    if not has_display or not webbrowser.open(url):
        notice("no browser can be opened here; open the address in one, by `ssh -L` from another machine")


def _parse(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    parser = Flags("watch")
    add_question_flags(parser)
    parser.add_argument("--port", type=int)
    parser.add_argument("--host")
    parser.add_argument("--no-browser", action="store_true")
    options, words = parser.split(arguments)
    if not words:
        example = newest_folders("hydrant watch outputs")
        raise ConfigError("FOLDER", f"give runs, sweeps or folders of them{example}")
    for word in words:
        if Path(word).is_dir() or not any(sign in word for sign in "*?["):
            named_folder(word)
        elif not glob.glob(word, recursive=True):  # noqa: PTH207  # Path.glob rejects absolute ones
            notice(f"{word!r} matches nothing yet; the page shows runs when it does")
    if options.host == "":
        remedy = "0.0.0.0 is all addresses"
        raise ConfigError("--host", "needs an address or a name of this machine, not ''", remedy=remedy)
    if options.port is not None and not 0 <= options.port < 1 << 16:
        raise ConfigError("--port", f"needs a number from 0 to 65535, not {options.port}")
    return options, words


def _server(options: Namespace, feed: Feed) -> Server:
    """Return a server at the asked port, or else at the first free one.

    Raises:
        ConfigError: the port or the host cannot be used.
    """
    from hydrant.commands.watch.server import Server, own_names

    host = options.host or _HERE
    token = "" if options.host is None else secrets.token_urlsafe(24)
    hosts = [] if options.host is None else [host, *own_names()]
    ports = range(_PORT, _PORT + _NUM_PORTS) if options.port is None else [options.port]
    for port in (*ports, *([0] if options.port is None else [])):
        try:
            return Server((host, port), feed, token, hosts)
        except OSError as error:
            reason = error.strerror or error
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise ConfigError("--host", f"{host!r} is no address of this machine ({reason})") from error
            if options.port is not None:
                message = f"{port} cannot be used ({reason}); give another port, or none"
                raise ConfigError("--port", message) from error
    raise AssertionError("a free port is found")
