"""Sessions of `equiav ablate` in real processes: shared runs, a failed row, kills, locks, fine-tuning."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from equiav.checkpoint import checkpoints_of
from equiav.cli import app
from equiav.config import load_config
from equiav.errors import Busy, EquiAVError
from equiav.io import locked
from equiav.reproduction import Folders, load_tables, missing, perform, plan, resumable, value_at
from equiav.training import Trainer
from tests.reproduction.small import PLAIN, ROOT, SMOKE, TINY, loaded, table, write

pytestmark = pytest.mark.process
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*arguments):
    return [sys.executable, "-m", "equiav.cli", *map(str, arguments)]


def equiav(*arguments, cwd):
    return subprocess.run(command(*arguments), capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT)


def rows(*names):
    known = {
        "full": {"name": "full", "paper": {"V2A": 30.1}},
        "plain": {"name": "plain", "overrides": PLAIN, "paper": {"V2A": 25.2}},
        "broken": {"name": "broken", "overrides": {"train.batch": 65}},
        "written out": {"name": "written out", "overrides": {"objective.loss": "nt_xent"}},
    }
    return [known[name] for name in names]


def scales(seeds, **changes):
    return {"world": {"base": str(SMOKE), "seeds": seeds, "overrides": {**TINY, **changes}}}


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Two tables that share a run, one with a row that cannot be trained."""
    folder = tmp_path_factory.mktemp("session")
    write(folder / "first.yaml", table(rows=rows("broken", "plain", "full"), scales=scales([0])))
    write(folder / "second.yaml", table(rows=rows("written out"), reference=None, scales=scales([0])))
    done = equiav("ablate", "first.yaml", "second.yaml", "--discard", cwd=folder)
    return folder, done


def records(folder):
    return {p.stem: json.loads(p.read_text()) for p in (folder / "results/ablation/world").glob("*.json")}


def test_a_failed_row_is_reported_and_the_others_go_on(session):
    folder, done = session
    assert done.returncode == 1, done.stderr
    assert "failed: first: broken, seed 0: 64 clips do not fill one batch of 65" in done.stdout
    assert "0 runs were done before, 2 now, 1 failed" in done.stdout
    kept = list((folder / "results/ablation/world").glob("*.failed.txt"))
    assert len(kept) == 1
    assert "64 clips do not fill" in kept[0].read_text()
    assert {tuple(r["rows"]) for r in records(folder).values()} == {
        ("first: plain",),
        ("first: full", "second: written out"),
    }


def test_records_hold_what_was_measured_and_what_it_cost(session):
    for record in records(session[0]).values():
        for split in ("validation", "test"):
            for way in ("audio_to_video", "video_to_audio"):
                assert 0 <= record[split]["retrieval"][way]["R@1"] <= record[split]["retrieval"][way]["R@10"] <= 100
            assert set(record[split]["probe"]) == {"audio", "visual", "audiovisual"}
            assert ("similarity" in record[split]) == ("first: full" in record["rows"])
        assert record["steps"] == 4
        assert record["seconds"]["wall"] > 0
        assert record["seconds"]["cpu"] > 0
        assert [point["step"] for point in record["curve"]] == [2, 4]
        assert record["provenance"]["threads"] == 1
        assert "/" not in json.dumps(record["config"])


def test_tables_are_written(session):
    folder, done = session
    text = (folder / "results/ablation/world/tables/first.md").read_text()
    assert "| plain | paper |  | 25.2 |" in text
    assert re.search(r"\|  \| world \| 1 \| \d+\.\d \|", text)
    assert text.split("\n\n!")[0] in done.stdout


def test_checkpoints_are_discarded_and_runs_not_repeated(session):
    folder, _ = session
    assert not list((folder / "runs").rglob("weights.safetensors"))
    before = {p: p.stat().st_mtime_ns for p in (folder / "results").rglob("*.json")}
    again = equiav("ablate", "first.yaml", "second.yaml", cwd=folder)
    assert again.returncode == 1
    assert "2 runs were done before, 0 now, 1 failed" in again.stdout
    assert before == {p: p.stat().st_mtime_ns for p in (folder / "results").rglob("*.json")}


def test_list_is_for_a_scheduler(session):
    """Each line is a command that does one run alone."""
    folder, _ = session
    listed = equiav("ablate", "first.yaml", "--results", "elsewhere", "--list", cwd=folder).stdout.splitlines()
    assert len(listed) == 3
    assert len({line.split("--only ")[1].split()[0] for line in listed}) == 3
    program, *arguments = shlex.split(listed[1])
    assert program == "equiav"
    done = equiav(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len(list((folder / "elsewhere/world").glob("*.json"))) == 1


def test_one_line_for_bad_input(session):
    folder, _ = session
    for arguments, message in (
        (["--scale", "galaxy"], "choose world, real or paper"),
        (["--scale", "paper"], "none of these tables has it"),
        (["--only", "abc"], "no such run"),
        (["--seeds", "x"], "give numbers such as 0,1,2"),
        (["--seeds", "9"], "nothing to run"),
        (["--split", "train"], "choose test or validation"),
        (["--set", "train.stepz=1"], "train.stepz: unknown key"),
    ):
        done = CliRunner().invoke(app, ["ablate", str(folder / "first.yaml"), *arguments])
        assert isinstance(done.exception, EquiAVError)
        assert message in str(done.exception)


def wait(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_killed_and_started_again(tmp_path):
    """The session is killed; its worker notices, saves and stops; the next session carries on from there."""
    changes = {"train.steps": 200, "train.checkpoint_every": 5, "train.evaluate_every": None}
    found = loaded(tmp_path, table(rows=rows("full"), scales=scales([0], **changes)))
    folders = Folders(tmp_path / "results/ablation", tmp_path / "runs/ablation")
    run = plan([found], "world")[0]
    out = folders.run(run)
    arguments = command("ablate", "small.yaml", "--processes", 1)
    killed = subprocess.Popen(arguments, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    wait(lambda: any(step >= 10 for step, _ in checkpoints_of(out)))
    with pytest.raises(Busy, match="is being written by process"), locked(out):
        pass
    killed.send_signal(signal.SIGKILL)
    killed.wait()

    def let_go():
        try:
            with locked(out):
                return True
        except Busy:
            return False

    wait(let_go)
    stopped, written = checkpoints_of(out)[-1][0], (out / "output.log").stat().st_size
    assert 10 <= stopped < 200, "the worker went on alone"
    assert not folders.record("world", run.key).exists()
    again = equiav("ablate", "small.yaml", "--processes", 1, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    first = re.search(r"step (\d+)/200", (out / "output.log").read_text()[written:])
    assert int(first[1]) > stopped
    assert not missing(run, folders)
    logged = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    steps = [r["step"] for r in logged if r["kind"] == "train"]
    assert steps == list(range(1, 201)), "every step once"


def test_terminated_session_stops_its_workers(tmp_path):
    changes = {"train.steps": 5000, "train.checkpoint_every": 5, "train.evaluate_every": None}
    found = loaded(tmp_path, table(rows=rows("full"), scales=scales([0], **changes)))
    out = Folders(tmp_path / "results/ablation", tmp_path / "runs/ablation").run(plan([found], "world")[0])
    session = subprocess.Popen(command("ablate", "small.yaml"), cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE)
    wait(lambda: bool(checkpoints_of(out)))
    session.terminate()
    assert session.wait(timeout=60) == 143
    with locked(out):
        assert checkpoints_of(out)


def test_only_cosmetic_changes_resume(tmp_path):
    """A run interrupted under another checkpoint_every is the same run, and carries on."""
    folders = Folders(tmp_path / "results", tmp_path / "runs")
    often = loaded(tmp_path, table(rows=rows("full"), scales=scales([0])), "often")
    seldom = loaded(tmp_path, table(rows=rows("full"), scales=scales([0], **{"train.checkpoint_every": 3})), "seldom")
    first, second = (plan([e], "world")[0] for e in (often, seldom))
    assert first.key == second.key
    trainer = Trainer(first.config, folders.run(first), lambda line: None)
    trainer._stop = True  # as after a signal: saves at the first step
    assert trainer.run().interrupted
    perform(second, folders, discard=False, progress=lambda line: None)
    assert not missing(second, folders)


def test_data_that_moved_are_not_looked_for_at_their_old_place(tmp_path):
    folders = Folders(tmp_path / "results", tmp_path / "runs")
    (run,) = plan([loaded(tmp_path, table(rows=rows("full"), scales=scales([0])))], "world")
    trainer = Trainer(run.config, folders.run(run), lambda line: None)
    trainer._stop = True
    assert trainer.run().interrupted
    assert resumable(run, folders.run(run)).data == run.config.data
    moved = replace(run, config=run.config.model_copy(update={"weights": "elsewhere/mae"}))
    assert resumable(moved, folders.run(run)).weights == "elsewhere/mae"


def test_fine_tuning_columns(tmp_path):
    """A column may be fine-tuning on a set: it is done once, and added to a run that was measured before."""
    for kind in ("pretrain", "finetune"):
        (tmp_path / kind).mkdir()
    (tmp_path / "pretrain/base.yaml").write_text(SMOKE.read_text())
    smoke = load_config(SMOKE)
    tree = load_config(ROOT / "configs/finetune/world.yaml").model_dump(mode="json", exclude_defaults=True)
    tree |= {k: smoke.model_dump(mode="json")[k] for k in ("audio", "visual")}
    tree["model"] = {"encoder": smoke.model.encoder.model_dump()}
    tree["data"] = smoke.data.model_dump(mode="json")
    tree["train"] = {"batch": 16, "steps": 3, "workers": 0, "log_every": 1}
    tree["optim"] = {"warmup_steps": 1}
    write(tmp_path / "finetune/tiny.yaml", tree)
    (tmp_path / "ablation").mkdir()
    # Other encoders than the fine-tuning recipe names: what a row changes in the model holds for both.
    changes = {**TINY, "model.encoder.depth": smoke.model.encoder.depth + 1}
    settings = {"world": {"base": "../pretrain/base.yaml", "seeds": [0], "overrides": changes, "measure": ["probe"]}}
    columns = ["A", {"name": "tuned", "world": "finetune.tiny.audio"}]
    plain = table(rows=[{"name": "full"}], scales=settings, columns=columns[:1])
    write(tmp_path / "ablation/plain.yaml", plain)
    write(tmp_path / "ablation/tuned.yaml", {**plain, "columns": columns})
    folders = Folders(tmp_path / "results", tmp_path / "runs")
    first, second = (plan(load_tables([tmp_path / f"ablation/{n}.yaml"]), "world")[0] for n in ("plain", "tuned"))
    assert first.key == second.key
    perform(first, folders, discard=False, progress=lambda line: None)
    assert missing(second, folders) == {"finetune.tiny.audio"}
    perform(second, folders, discard=False, progress=lambda line: None)
    record = json.loads(folders.record("world", second.key).read_text())
    assert 0 < value_at(record, "finetune.tiny.audio", "test") <= 100
    assert 0 < value_at(record, "probe.audio", "test") <= 100
    assert record["tasks"] == ["finetune.tiny.audio", "probe"]
    assert record["provenance"]["utc"] <= record["extended"][0]["utc"]
    assert len(record["extended"]) == 1
    assert record["extended"][0]["seconds"]["cpu"] > 0, "its own cost, beside that of the run"
    write(tmp_path / "finetune/tiny.yaml", {**tree, "optim": {"warmup_steps": 2}})
    assert missing(second, folders) == {"finetune.tiny.audio"}, "another fine-tuning now"
    perform(second, folders, discard=False, progress=lambda line: None)
    assert not missing(second, folders)
    assert len(list((folders.run(second) / "finetune").iterdir())) == 2


def test_a_row_may_start_from_a_training_of_its_own(tmp_path):
    decoder = {"width": 16, "depth": 1, "heads": 2}
    masked = {
        "base": str(SMOKE),
        "overrides": {"objective": {"kind": "masked", "masked": {"decoder": decoder}}, **TINY},
    }
    started = {"name": "started", "start": masked}
    tree = table(rows=[*rows("full"), started], reference="full", scales=scales([0]))
    first, second = plan([loaded(tmp_path, tree)], "world")
    folders = Folders(tmp_path / "results", tmp_path / "runs")
    assert first.key != second.key  # another start is another run
    perform(second, folders, discard=False, progress=lambda line: None)
    record = json.loads(folders.record("world", second.key).read_text())
    assert record["start"]["objective"]["kind"] == "masked"
    assert record["config"]["weights"].startswith("start-")
    weights = folders.run(second) / record["config"]["weights"]
    assert checkpoints_of(weights)[-1][0] == 4
    config = load_config(checkpoints_of(folders.run(second))[-1][1] / "config.yaml")
    assert config.weights == str(weights)


def test_a_row_with_a_start_takes_one_process(tmp_path):
    tree = table(rows=[{"name": "full", "start": {"base": str(SMOKE)}}], scales=scales([0]))
    tree["scales"]["world"]["processes"] = 2
    with pytest.raises(EquiAVError, match="a row with a start trains in one process"):
        plan([loaded(tmp_path, tree)], "world")
