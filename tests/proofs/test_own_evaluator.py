"""An evaluator of one's own, in one file: R@50 and mean reciprocal rank, alone and while training."""

import json

import pytest
import torch.nn.functional as F

from equiav.evaluation import Results, both_ranks, embed_dataset
from equiav.training import Trainer
from tests.training.small import small_config


class ReciprocalRank:
    """R@50 and mean reciprocal rank of audio to video."""

    primary = "audio_to_video/MRR"
    greater_is_better = True

    def __call__(self, model, dataset):
        found = embed_dataset(model, dataset)
        ranks, _ = both_ranks(found["audio"], found["visual"])
        metrics = {"R@50": 100 * float((ranks <= 50).double().mean()), "MRR": float((1 / ranks.double()).mean())}
        return Results({"task": "reciprocal_rank", "audio_to_video": metrics}, primary=self.primary)


def test_it_watches_a_run_and_writes_its_results(tmp_path):
    config = small_config("train.steps=2", "train.evaluate_every=2", "data.validation=80")
    trainer = Trainer(config, tmp_path, str, evaluators=[ReciprocalRank()])
    trainer.run()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    (logged,) = [line for line in lines if line["kind"] == "validation"]
    results = ReciprocalRank()(trainer.loaded(), trainer.validation)
    assert logged["audio_to_video/MRR"] == pytest.approx(results.value)
    found = embed_dataset(trainer.loaded(), trainer.validation)
    audio, visual = (F.normalize(found[m], dim=1) for m in ("audio", "visual"))
    similarity = audio @ visual.T
    ranks = 1 + (similarity > similarity.diagonal()[:, None]).sum(dim=1)
    assert results.value == pytest.approx(float((1 / ranks).mean()))
    within = 100 * float((ranks <= 50).double().mean())
    assert results["audio_to_video/R@50"] == logged["audio_to_video/R@50"] == pytest.approx(within)
    assert 0 < within < 100
    page = results.write(tmp_path / "mrr")
    assert json.loads((tmp_path / "mrr/results.json").read_text())["audio_to_video"]["MRR"] == pytest.approx(
        results.value
    )
    assert "MRR" in page.read_text()
