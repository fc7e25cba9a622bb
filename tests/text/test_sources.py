"""Where text comes from: scenes, tables, files beside the media, names of classes; and clips that have none."""

import json
from dataclasses import replace

import pytest
import torch

from equiav.build import build_dataset
from equiav.data import Dataset, Subset, World, WorldDataset, collate
from equiav.errors import ConfigError, DataError
from equiav.text import (
    PARAPHRASES,
    TEXT,
    ClassTexts,
    TextDataset,
    TextInput,
    caption,
    fill,
    has_words,
    read_sidecar,
    read_table,
    text_options,
    with_text,
    written,
)
from equiav.types import Clip, Sample
from tests.text.small import text_config

VTT = """WEBVTT

NOTE nothing to say

1
00:01.000 --> 00:03.000 align:start
<v Ann>a dog <b>barks</b>

00:00:03.500 --> 00:00:04.000
then rain
and wind

00:01:00.000 --> 00:01:02.000
much later
"""


class Plain(Dataset):
    """Clips of which nothing is known but what a test says."""

    frames = 2

    def __init__(self, *clips):
        self.clips = clips

    def __len__(self):
        return len(self.clips)

    def clip(self, index):
        return self.clips[index]

    def sample(self, index, frame):
        return Sample(self.clips[index].id, {"audio": torch.zeros(8), "visual": torch.zeros(3, 4, 4)})


def texts(clips, split="train", **options):
    made = with_text(Plain(*clips), text_options(options), split)
    assert isinstance(made, TextDataset)
    return made


class TestCaptions:
    def test_says_what_is_true(self):
        world = World(seed=3)
        for number in range(30):
            scene = world.scene(number)
            plain = caption(scene)
            assert all(item.kind in plain.split(";")[0] for item in scene.objects)
            heard = plain.split(";")[1]
            assert {kind for kind in (item.kind for item in scene.objects) if kind in heard} == set(scene.labels)
            assert all(item.kind in caption(scene, heard=False) for item in scene.objects)
            assert "sound" not in caption(scene, heard=False)

    def test_paraphrases_differ_and_come_back(self):
        scene = World(seed=3).scene(5)
        said = [caption(scene, k) for k in range(PARAPHRASES)]
        assert len(set(said)) == PARAPHRASES
        assert caption(scene, PARAPHRASES) == said[0]

    def test_of_the_world_by_frame(self):
        data = build_dataset(text_config(), "test")
        assert isinstance(data, WorldDataset)
        assert data.modalities == ("audio", "visual", TEXT)
        assert data.clip(0).text == caption(data.scene(0))
        first, second = (data.sample(0, k).inputs[TEXT] for k in (0, 1))
        assert not torch.equal(first, second)
        assert set(data.part(0, 0, (TEXT,)).inputs) == {TEXT}
        assert not replace(data)._made or TEXT in data.part(0, 0, (TEXT,)).inputs
        assert len(written(second).split()) > 6

    def test_a_share_of_the_training_clips(self):
        config = text_config(share=0.5)
        train, test = (build_dataset(config, split) for split in ("train", "test"))
        there = [train.text(i) is not None for i in range(len(train))]
        assert 0 < sum(there) < len(there)
        assert all(test.text(i) for i in range(len(test)))
        batch = collate([train.sample(i, 0) for i in range(len(train))])
        assert batch.present[TEXT].tolist() == there
        assert not batch.inputs[TEXT][~batch.present[TEXT]].any()


class TestFiles:
    def test_subtitles_by_time(self, tmp_path):
        (tmp_path / "a.vtt").write_text(VTT)
        media = tmp_path / "a.mp4"
        assert read_sidecar(media) == "a dog barks then rain and wind much later"
        assert read_sidecar(media, 0.0, 3.2) == "a dog barks"
        assert read_sidecar(media, 3.0, 13.0) == "then rain and wind"
        assert read_sidecar(media, 10.0, 20.0) is None
        assert read_sidecar(tmp_path / "b.mp4") is None

    def test_subrip(self, tmp_path):
        (tmp_path / "a.srt").write_text("1\r\n00:00:01,000 --> 00:00:02,500\r\n{\\an8}hello\r\n\r\n", newline="")
        assert read_sidecar(tmp_path / "a.mov") == "hello"

    def test_text_files(self, tmp_path):
        (tmp_path / "a.txt").write_text("\ufeffa street\n")
        assert read_sidecar(tmp_path / "a.wav", 5.0, 6.0) == "a street"

    def test_what_is_not_text(self, tmp_path):
        (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00x")
        with pytest.raises(DataError, match="not UTF-8"):
            read_sidecar(tmp_path / "a.wav")
        with (tmp_path / "b.txt").open("wb") as file:
            file.truncate(1 << 23)
        with pytest.raises(DataError, match="too long"):
            read_sidecar(tmp_path / "b.wav")

    def test_tables(self, tmp_path):
        table = tmp_path / "t.csv"
        table.write_text("path,text\nx.mp4,a dog barks\ny.mp4,\n")
        assert read_table(table) == {"x.mp4": "a dog barks"}
        lines = [{"path": "x.mp4", "start": 3, "caption": "regnet"}]
        (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
        assert read_table(tmp_path / "t.jsonl") == {"x.mp4@3": "regnet"}
        (tmp_path / "n.csv").write_text("path\nx.mp4\n")
        with pytest.raises(DataError, match="no line has text"):
            read_table(tmp_path / "n.csv")


class TestClips:
    def test_the_first_origin_counts(self, tmp_path):
        (tmp_path / "t.csv").write_text("path,text\nx.mp4,from the table\n")
        (tmp_path / "y.vtt").write_text(VTT)
        clips = [
            Clip("x", "x.mp4", tmp_path / "x.mp4"),
            Clip("y", "y.mp4", tmp_path / "y.mp4", start=1.0, seconds=2.0, labels=("dog",)),
            Clip("z", "z.mp4", tmp_path / "z.mp4", labels=("car_horn", "dog")),
            Clip("own", "own.mp4", text="its own"),
        ]
        data = texts(clips, table=str(tmp_path / "t.csv"), origins=["manifest", "sidecar", "labels"])
        assert [data.text(i) for i in range(4)] == ["from the table", "a dog barks", "car horn and dog", "its own"]
        assert data.text(2, 1) == "a photo of car horn and dog"
        assert data.clip(1).text == "a dog barks"

    def test_held_out_clips_are_all_or_nothing(self):
        clips = [Clip("a", text="rain"), Clip("b", text=" ")]
        assert texts(clips).modalities == ("audio", "visual", TEXT)
        assert texts(clips, "test").modalities == ("audio", "visual")
        assert texts(clips[:1], "test").modalities == ("audio", "visual", TEXT)
        assert TEXT not in texts(clips).sample(1, 0).inputs
        assert set(Subset(texts(clips), [0], ("audio",)).sample(0, 0).inputs) == {"audio"}

    def test_none_at_all(self):
        with pytest.raises(DataError, match="none of the training clips has text"):
            texts([Clip("a"), Clip("b")])

    def test_classes(self):
        data = ClassTexts(("car_horn", "dog"), TextInput(8, 8), "a photo of {}")
        assert data.clip(0).text == fill("a photo of {}", "car_horn") == "a photo of car horn"
        assert written(data.sample(1, 0).inputs[TEXT]) == "a photo of dog"

    def test_words(self):
        assert has_words("x")
        assert not has_words(None)
        assert not has_words(" \n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": 0}, "words"),
        ({"letters": 3}, "letters"),
        ({"width": 32}, "all of width, depth and heads"),
        ({"width": 30, "depth": 1, "heads": 4}, "multiple of 4"),
        ({"templates": ["a dog"]}, "in place of the class"),
        ({"word": 3}, "unknown key"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        text_options(options)
