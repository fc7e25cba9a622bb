"""The demo from end to end at a size of seconds: files, numbers, report; and again gives the same numbers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
SMALL = [
    "train.steps=6",
    "train.batch=16",
    "train.evaluate_every=3",
    "data.count=64",
    "data.validation=24",
    "data.test=40",
]


def run(out):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "equiav.cli", "demo", *SMALL, "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "run"
    done = run(out)
    assert done.returncode == 0, done.stderr
    return out, done


def test_results(demo):
    out, done = demo
    results = json.loads((out / "results.json").read_text())
    for way in ("audio_to_video", "video_to_audio"):
        values = results["retrieval"][way]
        assert 0 <= values["R@1"] <= values["R@5"] <= values["R@10"] <= 100
        assert values["pool"] == 40
    assert results["chance"]["R@10"] == 25.0
    assert set(results["probe_mAP"]) == {"audio", "visual", "audiovisual"}
    assert results["localisation"]["all"]["sound"]["pictures"] == 40
    assert set(results["equivariance"]["augmentations"]["visual"]) == {"crop", "jitter", "blur", "flip", "grey"}
    assert results["provenance"]["commit"]
    assert str(out / "report.html") in done.stdout
    assert "left" in done.stderr  # progress with time left


def test_report_needs_nothing_else(demo):
    html = (demo[0] / "report.html").read_text()
    assert html.count("<audio") == 14  # retrieval and localisation
    assert "Where the audio comes from" in html
    assert "Does the predictor follow the augmentation?" in html
    assert html.count("data:image/png;base64,") > 40
    assert not re.search(r'(src|href)="(?!data:)', html)


def test_what_the_report_shows_stands_in_the_results(demo):
    out, _ = demo
    results, html = json.loads((out / "results.json").read_text()), (out / "report.html").read_text()
    assert [asked["query"]["id"] for asked in results["examples"]["retrieval"]] == [
        f"world-0-{64 + 24 + 5 * i:07d}" for i in range(8)
    ]
    for asked in results["examples"]["retrieval"]:
        assert f"its own, rank {asked['rank']}<" in html
        assert (out / asked["query"]["audio"]).is_file()
    assert len(results["examples"]["localisation"]) == 6
    assert len(results["similarity"]) == len(results["similarity"][0]) == 40
    validation = results["curves"]["R@10 on validation, per cent"]
    assert [step for step, _ in validation["audio to video"]] == [3, 6]
    assert [step for step, _ in results["curves"]["loss"]["inter-modal"]][-1] == 6
    named = json.dumps(results["examples"])
    assert all(f'"assets/{path.name}"' in named for path in (out / "assets").iterdir())


def test_again_gives_the_same_numbers(demo, tmp_path):
    first = json.loads((demo[0] / "results.json").read_text())
    assert run(tmp_path / "again").returncode == 0
    second = json.loads((tmp_path / "again" / "results.json").read_text())
    assert first["retrieval"] == second["retrieval"]
    assert first["probe_mAP"] == second["probe_mAP"]


def test_gallery(tmp_path):
    command = [sys.executable, "-m", "equiav.cli", "world", "--count", "3", "--out", str(tmp_path / "world.html")]
    subprocess.run(command, check=True, capture_output=True)
    html = Path(tmp_path / "world.html").read_text()
    assert html.count("<audio") == 3
    assert "beats/s" in html
