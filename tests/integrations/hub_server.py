"""A stand-in for the Hub on loopback: repositories in memory, as much of its protocol as pushing and fetching need."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub:
    """`files` by repository; `asked` lists the requests."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.asked: list[str] = []
        self.closed = False
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Quiet."""

            def answer(self, body: object = b"", status: int = 200, **headers: str) -> None:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", headers.pop("length", str(len(data))))
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def missing(self, code: str) -> None:
                self.answer({"error": code}, 404, X_Error_Code=code)

            def do_GET(self) -> None:
                if hub.closed:  # a connection that was kept open
                    self.close_connection = True
                    return None
                path = self.path.split("?")[0]
                hub.asked.append(path)
                if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
                    name, kind, revision = found.groups()
                    if name not in hub.files:
                        return self.missing("RepoNotFound")
                    if revision not in ("main", hub.commit(name)):
                        return self.missing("RevisionNotFound")
                    files = hub.files[name]
                    if kind == "tree":
                        return self.answer(
                            [{"type": "file", "path": f, "size": len(b), "oid": etag(b)} for f, b in files.items()]
                        )
                    siblings = [{"rfilename": file} for file in files]
                    return self.answer({"id": name, "sha": hub.commit(name), "siblings": siblings})
                if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                    name, _, file = found.groups()
                    body = hub.files[name][file]
                    headers = {"ETag": f'"{etag(body)}"', "X_Repo_Commit": hub.commit(name)}
                    return self.answer(body, **headers)
                self.missing("RepoNotFound")

            do_HEAD = do_GET

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                hub.asked.append(self.path)
                if self.headers.get("Authorization") != "Bearer hf_test":
                    return self.answer({"error": "unauthorised"}, 401)
                if self.path == "/api/repos/create":
                    record = json.loads(body)
                    name = f"{record['organization']}/{record['name']}"
                    hub.files.setdefault(name, {".gitattributes": b""})
                    return self.answer({"url": f"{hub.url}/{name}", "name": name, "id": name})
                if self.path == "/api/validate-yaml":  # the header of the model card
                    return self.answer({"errors": [], "warnings": []})
                name = "/".join(self.path.split("/")[3:5])
                if "/preupload/" in self.path:
                    files = json.loads(body)["files"]
                    return self.answer(
                        {"files": [{**f, "uploadMode": "regular", "shouldIgnore": False} for f in files]}
                    )
                for line in body.splitlines():
                    record = json.loads(line)
                    if record["key"] == "file":
                        hub.files[name][record["value"]["path"]] = base64.b64decode(record["value"]["content"])
                commit = hub.commit(name)
                self.answer({"commitOid": commit, "commitUrl": f"{hub.url}/{name}/commit/{commit}", "success": True})

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def commit(self, name: str) -> str:
        """A commit by what the repository holds."""
        return hashlib.sha1(repr(sorted(self.files[name].items())).encode()).hexdigest()

    def close(self) -> None:
        """Stops the server."""
        self.closed = True
        self.server.shutdown()
        self.server.server_close()


def etag(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
