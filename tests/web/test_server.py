"""What is round the page: its folder, its socket, its checks."""

import asyncio
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from equiav.errors import EquiAVError
from equiav.web import listening, own_folder, require_packages, server, stay_at_home, sweep, swept
from tests.web.loops import awaited


def old(path, seconds=100):
    stamp = path.stat().st_mtime - seconds
    os.utime(path, (stamp, stamp))


def test_sweep(tmp_path):
    for name in ("old/file", "spared/file", "new/file", "half/old", "half/new"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    for name in ("old/file", "spared/file", "half/old", "old", "spared", "half"):
        old(tmp_path / name)
    spared = frozenset({tmp_path / "spared", tmp_path / "spared/file"})
    assert sweep(tmp_path, 50.0, spared) == 2
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {"spared/file", "new/file", "half/new"}
    old(tmp_path / "old")  # deleting its file has made it young
    sweep(tmp_path, 50.0, spared)
    assert not (tmp_path / "old").exists()


def test_swept_spares_what_was_there(tmp_path):
    (tmp_path / "example").write_text("")
    old(tmp_path / "example")
    with swept(tmp_path, 0.2):
        upload = tmp_path / "upload"
        upload.write_text("")
        old(upload)
        for _ in range(100):
            if not upload.exists():
                break
            server.time.sleep(0.05)
    assert [p.name for p in tmp_path.iterdir()] == ["example"]


def test_the_folder_goes_with_the_page():
    with own_folder() as folder:
        (folder / "uploads" / "file").write_text("")
    assert not folder.exists()


def test_a_taken_port_is_one_line():
    with listening("127.0.0.1", 0) as door:
        door.listen()
        port = door.getsockname()[1]
        reason = rf"127\.0\.0\.1:{port}: cannot be listened on .*choose another --port"
        with pytest.raises(EquiAVError, match=reason), listening("127.0.0.1", port):
            pass


def test_answers_are_sent_without_delay():
    """In two parts, head and body; without it the second waits for the client to acknowledge the first."""

    async def delay_is_off(door):
        seen = asyncio.get_running_loop().create_future()
        made = lambda reader, writer: seen.set_result(writer.get_extra_info("socket"))  # noqa: E731
        async with await asyncio.start_server(made, sock=door):
            _, writer = await asyncio.open_connection(*door.getsockname())
            accepted = await seen
            writer.close()
            return accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    with listening("127.0.0.1", 0) as door:
        assert awaited(delay_is_off(door))


def test_without_the_extra(monkeypatch):
    monkeypatch.setattr(server.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EquiAVError, match=r"pip install 'equiav\[web\]'"):
        require_packages()


@pytest.mark.process
def test_command_without_the_extra(tmp_path):
    packages = ["gradio", "fastapi", "starlette", "uvicorn", "h11"]
    code = f"import sys; sys.modules.update(dict.fromkeys({packages})); from equiav.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "serve"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "equiav: the page needs gradio: pip install 'equiav[web]'\n"


def test_a_gradio_that_fetches_otherwise_is_refused():
    with pytest.raises(EquiAVError, match=r"this version of gradio is not known.*pip install -U 'equiav\[web\]'"):
        stay_at_home(SimpleNamespace())


def test_addresses_are_refused():
    gradio = SimpleNamespace(async_ssrf_protected_get=None)
    stay_at_home(gradio)
    with pytest.raises(Exception, match="addresses are not fetched"):
        gradio.async_ssrf_protected_get("http://127.0.0.1:9/").send(None)


@pytest.mark.process
def test_command_without_a_demo(tmp_path):
    done = subprocess.run([sys.executable, "-m", "equiav.cli", "serve"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("equiav: runs/demo: neither an index nor a model")
    assert done.stderr.count("\n") == 1
