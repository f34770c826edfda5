"""Fixtures of the download tests: a local server and a temporary cache."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apac import data
from apac.data import sources
from apac.data.store import Entry
from data_sources import Server, small


@pytest.fixture
def server() -> Iterator[Server]:
    files: dict[str, bytes] = {}
    cut: set[str] = set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if content is not None:
                self.wfile.write(content[: len(content) // 2] if self.path in cut else content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield Server(f"http://127.0.0.1:{httpd.server_port}", files, cut)
        httpd.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("APAC_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Callable[..., Entry]:
    """Make "mnist" the small entry with these sources."""

    def put(*from_sources: sources.Source) -> Entry:
        entry = small(*from_sources)
        monkeypatch.setitem(data._FETCHED, "mnist", entry)
        return entry

    return put
