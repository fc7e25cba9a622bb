"""Text in use: vectors, search, zero-shot classification, where something is; and what is refused in one line."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from typer.testing import CliRunner

from equiav.build import build_dataset
from equiav.cli import app
from equiav.errors import ConfigError, DataError, EquiAVError, ShapeError
from equiav.evaluation import Retrieval, ZeroShot, class_vectors, embed_dataset, localise_text
from equiav.inference import Embedder, load_model
from equiav.inference.text import embed_text
from equiav.search import Entry, Index, Query
from equiav.text import TEXT

LONG = "ring " * 20_000


def command(*arguments):
    found = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(found.exception, EquiAVError):
        assert "\n" not in str(found.exception)
        return str(found.exception)
    assert found.exception is None, found.exception
    return found.output


@pytest.fixture(scope="module")
def embedder(run):
    return Embedder(load_model(run))


@pytest.fixture(scope="module")
def test_split(embedder):
    return build_dataset(embedder.model.config, "test")


@pytest.fixture(scope="module")
def library(embedder, test_split, run, tmp_path_factory):
    """An index of the held-out scenes."""
    found = embed_dataset(embedder.model, test_split)
    vectors = {m: F.normalize(found[m], dim=1).numpy() for m in ("audio", "visual")}
    entries = [
        Entry(
            test_split.clip(i),
            {m: v[i] for m, v in vectors.items()},
            test_split.media(i)[1][0].permute(1, 2, 0).numpy(),
        )
        for i in range(len(test_split))
    ]
    folder = tmp_path_factory.mktemp("library") / "index"
    index = Index.create(folder, embedder.model, model_path=run)
    index.add(entries, made_by=embedder.digest)
    index.close()
    return folder


class TestVectors:
    def test_are_those_of_evaluation(self, embedder, test_split):
        found = F.normalize(embed_dataset(embedder.model, test_split)[TEXT], dim=1).numpy()
        said = [test_split.text(i, test_split.frames // 2) for i in range(len(test_split))]
        np.testing.assert_allclose(embedder.text(said), found, atol=1e-5)
        np.testing.assert_allclose(embedder.text(said[3]), found[3], atol=1e-5)
        assert embedder.text([]).shape == (0, embedder.model.width)

    @pytest.mark.parametrize("text", [LONG, "東京の犬", "🐕🔊", "Привет, мир!", "a\0b", "x" * 100_000])
    def test_any_text_is_a_unit_vector(self, embedder, text):
        assert np.linalg.norm(embedder.text(text)) == pytest.approx(1, abs=1e-5)

    def test_refusals(self, embedder, silent_run):
        for empty in ("", " ", "\n\t"):
            with pytest.raises(DataError, match="no words to embed"):
                embedder.text(empty)
        with pytest.raises(ShapeError, match="not bytes"):
            embed_text(embedder.model, [b"dog"])
        with pytest.raises(DataError, match="has learnt no text"):
            Embedder(load_model(silent_run)).text("dog")


def test_retrieval_in_all_six_directions(embedder, test_split):
    results = Retrieval(banks=1, examples=2)(embedder.model, test_split)
    names = ("audio", "video", "text")
    assert set(results["retrieval"]) == {f"{a}_to_{b}" for a in names for b in names if a != b}
    assert results["chance/R@10"] == pytest.approx(100 * 10 / len(test_split))


class TestSearch:
    def test_by_text_among_audio_visual_or_both(self, embedder, test_split, library):
        text = test_split.text(2)
        vector, index = embedder.text(text), Index.open(library)
        for among in ("audio", "visual", "both", None):
            more = [] if among is None else ["--among", among]
            hits = json.loads(command("search", library, "--text", text, "--k", "5", "--json", *more))
            expected = index.search(Query(vector, TEXT, embedder.digest), k=5, among=among)
            assert [hit["id"] for hit in hits] == [hit.clip.id for hit in expected]
            assert {hit["side"] for hit in hits} <= ({among} if among in ("audio", "visual") else {"audio", "visual"})
        index.close()

    def test_a_page(self, library, tmp_path):
        command("search", library, "--text", "<b>ring</b> " * 50, "--k", "2", "--html", tmp_path / "found.html")
        page = (tmp_path / "found.html").read_text()
        assert "Nearest to" in page
        assert "<b>ring" not in page

    @pytest.mark.parametrize(("text", "message"), [("", "no words to embed"), ("  ", "no words to embed")])
    def test_empty_text(self, library, text, message):
        assert message in command("search", library, "--text", text)

    def test_long_text_has_answers(self, library):
        assert len(json.loads(command("search", library, "--text", LONG[:100_000], "--json"))) == 10

    def test_one_question_at_a_time(self, library):
        assert "give one of --audio, --image, --video, --text" in command(
            "search", library, "--text", "a", "--like", "b"
        )

    def test_an_index_without_text_or_bridge(self, silent_run, tmp_path):
        model = load_model(silent_run)
        index = Index.create(tmp_path / "index", model, model_path=silent_run)
        index.close()
        assert "has no bridge" in command("search", tmp_path / "index", "--text", "a dog")


class TestZeroShot:
    def test_scores_are_cosines_with_the_mean_prompt(self, embedder, test_split):
        results = ZeroShot(templates=("a {}", "the {} sounds"))(embedder.model, test_split)
        classes = test_split.classes
        prompts = torch.stack(
            [torch.from_numpy(embedder.text([f"a {c}", f"the {c} sounds"])).mean(dim=0) for c in classes]
        )
        torch.testing.assert_close(
            class_vectors(embedder.text, classes, ("a {}", "the {} sounds")), F.normalize(prompts, dim=1)
        )
        scores = F.normalize(embed_dataset(embedder.model, test_split)["audio"], dim=1) @ F.normalize(prompts, dim=1).T
        right = [classes[int(s.argmax())] in test_split.labels(i) for i, s in enumerate(scores)]
        assert results["zeroshot/audio/accuracy"] == pytest.approx(100 * sum(right) / len(right))
        labels = [len(test_split.labels(i)) for i in range(len(test_split))]
        chance = 100 * sum(labels) / len(labels) / len(classes)
        assert results["zeroshot/audio/chance/accuracy"] == pytest.approx(chance)
        assert set(results["zeroshot"]) == {"audio", "visual", "both"}

    def test_vectors_that_know_the_answer_are_right(self, embedder, test_split):
        """Prompts embedded as the mean of the sounds of their class must beat chance by far."""
        found = F.normalize(embed_dataset(embedder.model, test_split)["audio"], dim=1)
        single = [i for i in range(len(test_split)) if len(test_split.labels(i)) == 1]

        def texts(said):
            rows = [
                found[[i for i in single if test_split.labels(i)[0] == name] or single].mean(dim=0) for name in said
            ]
            return torch.stack(rows)

        ours = ZeroShot(templates=("{}",), texts=texts)(embedder.model, test_split)
        assert ours["zeroshot/audio/accuracy"] > 2 * ours["zeroshot/audio/chance/accuracy"]

    def test_the_command(self, run, tmp_path):
        said = command("evaluate", "zeroshot", run, "--template", "the {} sounds", "--out", tmp_path, "--limit", "8")
        assert "chance" in said
        record = json.loads((tmp_path / "results.json").read_text())
        assert record["zeroshot"]["visual"]["clips"] == 8
        assert record["templates"] == ["the {} sounds"]

    def test_refusals(self, run, silent_run, embedder, test_split):
        with pytest.raises(ConfigError, match="in place of the class"):
            ZeroShot(templates=("dog",))(embedder.model, test_split)
        assert "has learnt no text" in command("evaluate", "zeroshot", silent_run)


class TestWhere:
    def test_maps_follow_the_text(self, embedder, test_split):
        frames = test_split.media(0)[1][:2]
        one, squares = localise_text(embedder.model, embedder.text("a red ring"), frames, "removal")
        two, _ = localise_text(embedder.model, embedder.text("a large blue square"), frames, "removal")
        assert one.shape == (2, *squares.shape[2:])
        assert not torch.equal(one, two)

    def test_files(self, run, test_split, tmp_path):
        source = tmp_path / "frames"
        source.mkdir()
        Image.fromarray(test_split.media(0)[1][0].permute(1, 2, 0).numpy()).save(source / "a.png")
        (source / "b.png").write_bytes(b"nothing")
        said = command("where", run, source, "the <i>ring</i>", "--out", tmp_path / "out")
        assert "1 files, 1 skipped" in said
        record = json.loads((tmp_path / "out/results.json").read_text())
        assert (tmp_path / "out" / record["clips"][0]["frames"][0]["overlay"]).is_file()
        assert "<i>ring" not in (tmp_path / "out/report.html").read_text()
        assert "no words" in command("where", run, source, " ")
        assert "no such file" in command("where", run, tmp_path / "none", "a ring")
