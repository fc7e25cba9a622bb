"""A full disk, a folder that cannot be written, odd names: one line each, and nothing half-written stays."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from equiav.build import build_model
from equiav.checkpoint import load_checkpoint, save_model
from equiav.config import load_config
from equiav.errors import CheckpointError, ConfigError, EquiAVError, TrainingError
from equiav.export import export
from equiav.io import locked, replacing, write_whole
from equiav.training.log import RunLog
from tests.training.small import SMOKE, small_config

LIMITED = """
import resource, sys
from equiav.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)  # as a full disk: no file may grow beyond it
main()
"""


def test_a_disk_that_fills_up_ends_a_run_in_one_line_without_drafts(tmp_path):
    command = [sys.executable, "-c", LIMITED, "100000", "pretrain", str(SMOKE), "data.count=24", "train.batch=8"]
    run = subprocess.run(
        [*command, "train.steps=2", "train.workers=0", "train.evaluate_every=null", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    lines = [line for line in run.stderr.splitlines() if not line.startswith(("step ", "note: "))]
    assert run.returncode == 2, run.stderr
    assert len(lines) == 1
    assert "cannot be written" in lines[0]
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_disk_that_fills_up_while_logging(tmp_path, monkeypatch):
    journal = RunLog(tmp_path, 0)
    journal._lines.close()
    journal._lines = Path("/dev/full").open("a")  # noqa: SIM115
    with pytest.raises(TrainingError, match="cannot be written"):
        journal.write("train", 1, {"loss": 1.0})
    journal.close()
    (tmp_path / "log.jsonl").write_text('3\n{"step": 1}\nnull\n')
    RunLog(tmp_path, 1).close()
    assert (tmp_path / "log.jsonl").read_text() == '{"step": 1}\n'
    (tmp_path / "log.jsonl").unlink()
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(TrainingError, match="cannot be written"):
        RunLog(tmp_path, 0)


def test_read_only_output_is_one_line(tmp_path, monkeypatch, capsys):
    from equiav import cli

    def refuse(*args):
        raise OSError(errno.EROFS, "Read-only file system", "/some/place")

    monkeypatch.setattr(cli, "app", refuse)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capsys.readouterr().err == "equiav: /some/place: Read-only file system\n"


def test_names_that_no_file_can_have(tmp_path):
    with pytest.raises(EquiAVError, match="cannot be written"):
        write_whole(tmp_path / "a\0b", "text")
    with pytest.raises(EquiAVError, match="cannot be written"), locked(tmp_path / "a\0b"):
        pass
    write_whole(tmp_path / "list.txt", "name\udcff")
    assert (tmp_path / "list.txt").read_text() == "name\\udcff"
    recipe = tmp_path / "recipe.yaml"
    for text in ('weights: "a\\0b"\n', 'weights: "a\\ud800b"\n'):
        recipe.write_text(text)
        with pytest.raises(ConfigError, match="NUL or surrogate"):
            load_config(recipe)


@pytest.mark.parametrize(
    "change",
    ['"step": NaN', '"step": 1e999', '"step": "three"', '"classes": 7', '"best": {"step": []}', '"kind": null',
     f'"total": {"9" * 400}', '"clips": -Infinity'],
)  # fmt: skip
def test_absurd_numbers_in_meta(tmp_path, change):
    config = small_config()
    save_model(tmp_path / "model", config, build_model(config).state_dict(), {})
    (tmp_path / "model/SHA256SUMS").unlink()
    (tmp_path / "model/meta.json").write_text(f'{{"format": 1, {change}}}')
    with pytest.raises(CheckpointError, match=r"meta\.json") as caught:
        load_checkpoint(tmp_path / "model")
    assert "\n" not in str(caught.value)


def test_what_is_written_can_be_read_by_others(tmp_path):
    """As far as the umask says: safetensors alone would let nobody but the owner read."""
    config = small_config()
    model = build_model(config).state_dict()
    before = os.umask(0o022)
    try:
        save_model(tmp_path / "model", config, model, {"kind": "pretrained"}, state=model)
        export(tmp_path / "model", tmp_path / "shared", onnx=False)
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert len(modes) == 12
    assert modes == {path: 0o755 if (tmp_path / path).is_dir() else 0o644 for path in modes}


def test_what_a_killed_process_left_is_swept(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    owners = {".a.{}.tmp": gone.pid, ".a.{}.old": gone.pid, "..a.{0}.tmp.{0}.tmp": gone.pid}
    spared = {".a.{}.tmp": os.getppid(), ".ab.{}.tmp": gone.pid, ".a.b.{}.tmp": gone.pid, ".a.{}.tmp.jpg": gone.pid}
    drafts, others = ([tmp_path / name.format(pid) for name, pid in of.items()] for of in (owners, spared))
    for path in (*drafts, *others):
        path.mkdir()
    with replacing(tmp_path / "a") as draft:
        draft.mkdir()
    assert not any(path.exists() for path in drafts)
    assert all(path.exists() for path in others)  # of one who is alive; of other folders; no draft
