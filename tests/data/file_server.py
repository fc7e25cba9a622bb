"""A web server on loopback that gives a folder by ranges of bytes, as badly as it is told to."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote


class FileServer:
    """Serves `folder`, also as a bucket or as the dataset owner/clips of the Hub.

    Of every `drop` answers one ends in the middle. `asked` lists path and range of the requests.
    """

    def __init__(self, folder: Path, *, drop: int = 0, ranges: bool = True, status: int = 0) -> None:
        self.drop, self.ranges, self.status = drop, ranges, status
        self.asked: list[tuple[str, str]] = []
        self.hub = folder / "datasets/owner/clips/resolve/main"
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Quiet."""

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_POST(self) -> None:
                """What the Hub says about files that are named."""
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                self.describe(json.loads(body)["paths"] if body.startswith("{") else parse_qs(body)["paths"])

            def describe(self, names: list[str]) -> None:
                places = {name: server.hub / name for name in names if (server.hub / name).is_file()}
                self.say([{"type": "file", "path": n, "size": p.stat().st_size, "oid": "0"} for n, p in places.items()])

            def say(self, record: object) -> None:
                content = json.dumps(record).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self) -> None:
                asked = self.headers.get("Range", "")
                server.asked.append((self.path, asked))
                if "/tree/main" in self.path:
                    within = unquote(self.path.partition("?")[0].partition("/tree/main")[2]).strip("/")
                    return self.describe([f"{within}/{path.name}" for path in (server.hub / within).iterdir()])
                if self.path.startswith("/api/"):
                    return self.say({"id": "owner/clips", "sha": "0" * 40})
                path = folder / self.path.partition("?")[0].lstrip("/")
                if server.status or not path.is_file():
                    self.send_response(server.status or 404)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return None
                content = path.read_bytes()
                found = re.fullmatch(r"bytes=(\d+)-(\d+)", asked) if server.ranges else None
                part = content[int(found[1]) : int(found[2]) + 1] if found else content
                self.send_response(206 if found else 200)
                if found:
                    self.send_header(
                        "Content-Range", f"bytes {found[1]}-{int(found[1]) + len(part) - 1}/{len(content)}"
                    )
                if server.ranges:
                    self.send_header("Accept-Ranges", "bytes")
                self.send_header("Content-Length", str(len(part)))
                self.end_headers()
                if self.command == "HEAD":
                    return None
                if server.drop and len(server.asked) % server.drop == 0:
                    self.wfile.write(part[: len(part) // 2])
                    self.close_connection = True
                else:
                    self.wfile.write(part)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        """Where the folder is."""
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        """Stops serving."""
        self.server.shutdown()
        self.server.server_close()
