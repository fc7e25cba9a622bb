"""Text of real collections: a prepared folder with a table and subtitles, and sounds and images paired by class."""

import pytest

from equiav.build import build_dataset
from equiav.data import find_sources, prepare
from equiav.errors import DataError
from equiav.evaluation import Retrieval, ZeroShot
from equiav.inference import load_model
from equiav.text import TEXT, TextDataset, written
from equiav.training import Trainer
from tests.data.test_paired import make_collection
from tests.media.making import sine, write_media
from tests.training.small import small_config

CUES = "WEBVTT\n\n00:00.000 --> 00:02.000\nfirst words\n\n00:02.000 --> 00:04.000\nlater words\n"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Six films of 4 s cut into clips of 2 s: four with text in a table, one with subtitles, one with a label alone."""
    root = tmp_path_factory.mktemp("films")
    for k in range(6):
        write_media(root / f"film{k}.mp4", seconds=4, fps=10, sound=sine(4, 16000, 150 + 40 * k))
    lines = ["path,text,label,split"]
    lines += [f"film{k}.mp4,a tone of number {k},,{'test' if k == 3 else 'train'}" for k in range(4)]
    lines += ["film4.mp4,,,train", "film5.mp4,,high_tone,train"]
    (root / "table.csv").write_text("\n".join(lines))
    (root / "film4.vtt").write_text(CUES)
    prepare(find_sources(root / "table.csv"), root / "clips", workers=1, clip_seconds=2.0, short_side=48)
    return root


def recipe(data, *overrides, **options):
    return small_config(
        f"data={data}",
        f"modalities={{text: {{kind: text, options: {{words: 12, letters: 8, {_written(options)}}}}}}}",
        *overrides,
    )


def _written(options):
    return ", ".join(f"{name}: {value}" for name, value in options.items())


def test_a_prepared_folder(prepared, tmp_path):
    data = f"{{kind: shards, path: {prepared / 'clips'}}}"
    origins = "[manifest, sidecar, labels]"
    config = recipe(data, "train.batch=8", "train.steps=2", origins=origins, table=prepared / "table.csv")
    train, test = (build_dataset(config, split) for split in ("train", "test"))
    assert isinstance(train, TextDataset)
    found = {(clip.source, round(clip.start)): clip.text for clip in map(train.clip, range(len(train)))}
    assert found["film1.mp4", 0] == found["film1.mp4", 2] == "a tone of number 1"
    assert (found["film4.mp4", 0], found["film4.mp4", 2]) == ("first words", "later words")
    assert found["film5.mp4", 0] == "high tone"
    assert written(test.sample(0, 0).inputs[TEXT]) == "a tone of number 3"
    assert test.modalities == ("audio", "visual", TEXT)
    Trainer(config, tmp_path / "run", str).run()
    assert load_model(tmp_path / "run").modalities == ("audio", "visual", TEXT)


def test_clips_without_text_train_too(prepared, tmp_path):
    data = f"{{kind: shards, path: {prepared / 'clips'}}}"
    config = recipe(data, "train.batch=8", "train.steps=2", origins="[sidecar]")
    train = build_dataset(config, "train")
    assert sum(TEXT in train.sample(i, 0).inputs for i in range(len(train))) == 2
    assert build_dataset(config, "test").modalities == ("audio", "visual")
    Trainer(config, tmp_path / "run", str).run()


def test_a_folder_without_any_text(prepared):
    data = f"{{kind: shards, path: {prepared / 'clips'}}}"
    with pytest.raises(DataError, match="none of the training clips has text"):
        build_dataset(recipe(data, origins="[manifest]"), "train")


def test_paired_by_class(tmp_path):
    """Names of classes as text: trained, retrieved by class in all directions, and classified without training."""
    make_collection(tmp_path / "collection", classes=3)
    data = f"{{kind: paired, path: {tmp_path / 'collection'}, seconds: 0.5, partners: 3}}"
    config = recipe(data, "train.steps=2", templates='["{}", "a photo of {}"]')
    train, test = (build_dataset(config, split) for split in ("train", "test"))
    assert train.text(0, 0) == train.labels(0)[0]
    assert train.text(0, 1) == f"a photo of {train.labels(0)[0]}"
    assert len(test.sides()[TEXT]) == 3
    Trainer(config, tmp_path / "run", str).run()
    model = load_model(tmp_path / "run")
    results = Retrieval(banks=0, examples=1)(model, test)
    names = ("audio", "video", "text")
    assert set(results["retrieval"]) == {f"{a}_to_{b}" for a in names for b in names if a != b}
    assert results["retrieval/audio_to_text/gallery"] == 3
    found = ZeroShot()(model, test)
    assert set(found["zeroshot"]) == {"audio", "visual"}
    assert found["templates"] == ["{}", "a photo of {}"]
    assert found["zeroshot/visual/chance/accuracy"] == pytest.approx(100 / 3)
