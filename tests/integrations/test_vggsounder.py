"""A results file that VGGSounder's own benchmark reads."""

import pytest
import torch

from equiav.errors import DataError
from equiav.integrations.vggsounder import write_predictions

pytest.importorskip("vggsounder")


def test_the_benchmark_reads_what_is_written(tmp_path):
    from vggsounder import VGGSounder
    from vggsounder.benchmark import benchmark

    labels = VGGSounder(background_music=None, voice_over=None, static_image=None)
    classes = labels.get_all_labels()
    kinds = [["AV"], ["A", "AV"], ["AV", "V"]]  # in which modality the classes of a clip are perceived
    some = [item for kind in kinds for item in [x for x in labels if sorted(x.modalities) == kind][:5]]
    ids = [item.video_id for item in some]
    place = {name: i for i, name in enumerate(reversed(classes))}  # our columns stand in another order
    heard, seen, both = (torch.rand(len(ids), len(classes)) * 0.1 for _ in range(3))
    for row, item in enumerate(some):
        for label, kind in zip(item.labels, item.modalities, strict=True):
            heard[row, place[label]] = 0.9 if "A" in kind else 0
            seen[row, place[label]] = 0  # never right
            both[row, place[label]] = 0.9 if kind == "AV" else 0
    by_mode = {"audio": heard, "visual": seen, "audiovisual": both}
    write_predictions(tmp_path / "ours.pkl", ids, by_mode, list(reversed(classes)), order=classes)
    table = benchmark(
        models_path=str(tmp_path),
        display_names={"ours": "Ours"},
        metrics=[("hit_rate@1", ["a", "v", "av"]), ("hit_rate", ["a", "v", "av"])],
        vggsounder=labels,
        subset_ids=ids,
        verbose=False,
    )
    assert table.to_numpy(float)[0].tolist() == [100, 0, 100] * 2


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(DataError, match="no class 'b'"):
        write_predictions(tmp_path / "x.pkl", ["1"], {"audio": torch.rand(1, 1)}, ["a"], order=["a", "b"])
    with pytest.raises(DataError, match="2 rows of scores"):
        write_predictions(tmp_path / "x.pkl", ["1"], {"audio": torch.rand(2, 1)}, ["a"])
    with pytest.raises(DataError, match="scores of smell"):
        write_predictions(tmp_path / "x.pkl", ["1"], {"smell": torch.rand(1, 1)}, ["a"])
    assert not (tmp_path / "x.pkl").exists()
