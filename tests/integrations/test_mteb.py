"""Tasks of mteb run through its own `evaluate`, on local media as bytes, paths and arrays."""

import numpy as np
import pytest

from equiav.inference import Embedder
from tests.inference.models import random_model
from tests.media.making import sine, write_media

mteb = pytest.importorskip("mteb")
datasets = pytest.importorskip("datasets")

from mteb.abstasks.retrieval import AbsTaskRetrieval  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402

from equiav.integrations.mteb import MtebEncoder  # noqa: E402

COUNT = 4


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    paths = [folder / f"{i}.mp4" for i in range(COUNT)]
    for i, path in enumerate(paths):
        write_media(path, seconds=2, sound=sine(2, 16000, 200 * 2**i), size=(64 + 16 * i, 48))
    return paths


def metadata(name, category, modalities):
    return TaskMetadata(
        name=name,
        description="local media",
        reference=None,
        dataset={"path": "none", "revision": "none"},
        type="Any2AnyRetrieval",
        category=category,
        modalities=modalities,
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )


def task(name, category, queries, corpus):
    """A retrieval task in which query i is answered by document i."""
    modalities = sorted({k for table in (queries, corpus) for k in table.column_names} - {"id"})

    class Local(AbsTaskRetrieval):
        def load_data(self, **_):
            relevant = {f"{i}": {f"{i}": 1} for i in range(COUNT)}
            split = {"queries": queries, "corpus": corpus, "relevant_docs": relevant, "top_ranked": None}
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    Local.metadata = metadata(name, category, modalities)
    return Local()


def table(column, values, feature=None):
    rows = datasets.Dataset.from_dict({"id": [str(i) for i in range(COUNT)], column: values})
    return rows.cast_column(column, feature) if feature is not None else rows


def scores(done):
    return done.task_results[0].scores["test"][0]


def test_a_clip_finds_itself_whatever_form_it_has(videos):
    encoder = MtebEncoder(random_model())
    as_bytes = table("video", [{"bytes": p.read_bytes(), "path": p.name} for p in videos], datasets.Video())
    as_paths = table("video", [{"bytes": None, "path": str(p)} for p in videos], datasets.Video())
    done = mteb.evaluate(encoder, task("LocalVideo", "v2v", as_bytes, as_paths), cache=None, show_progress_bar=False)
    assert scores(done)["ndcg_at_10"] == 1


def test_sound_is_looked_for_among_pictures(videos):
    encoder, embedder = MtebEncoder(random_model()), Embedder(random_model())
    waves = [{"array": sine(2, 16000, 200 * 2**i).astype(np.float64), "sampling_rate": 16000} for i in range(COUNT)]
    sounds = table("audio", waves)
    frames = table("video", [{"bytes": None, "path": str(p)} for p in videos], datasets.Video())
    done = mteb.evaluate(encoder, task("LocalAcross", "a2v", sounds, frames), cache=None, show_progress_bar=False)
    heard = np.stack([embedder.audio((np.asarray(w["array"]), 16000)) for w in waves])
    seen = np.stack([embedder.video(p) for p in videos])
    ranks = 1 + ((heard @ seen.T) > np.diag(heard @ seen.T)[:, None]).sum(1)
    assert scores(done)["ndcg_at_10"] == pytest.approx(np.mean(1 / np.log2(1 + ranks)), abs=1e-5)


def test_the_model_says_what_it_is():
    meta = MtebEncoder(random_model(), name="me/sounds").mteb_model_meta
    assert meta.name == "me/sounds"
    assert meta.modalities == ["audio", "image", "video"]
    assert meta.embed_dim == 16


def test_tasks_of_text_are_refused():
    texts = table("text", ["a"] * COUNT)
    with pytest.raises(ValueError, match="none overlap with task LocalText"):
        mteb.evaluate(MtebEncoder(random_model()), task("LocalText", "t2t", texts, texts), cache=None)
