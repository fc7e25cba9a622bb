"""Where the text of clips comes from, and datasets that give it beside audio and frames."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from equiav.data import Dataset, Labels, WorldDataset, find_sources, vocabulary
from equiav.errors import DataError
from equiav.text.captions import caption, fill
from equiav.text.options import TextOptions
from equiav.text.words import TEXT, TextInput, split_words
from equiav.types import AUDIO, VISUAL, Clip, Modality, Sample, Split

SUBTITLES = (".vtt", ".srt")
SIDECARS = (".txt", *SUBTITLES)
LONGEST = 1 << 22  # bytes of a sidecar file; more is no description of a clip
STAMP = r"(?:(\d+):)?(\d{1,2}):(\d{1,2})[.,](\d{1,3})"
CUE = re.compile(rf"^\s*{STAMP}\s*-->\s*{STAMP}", re.MULTILINE)
TAG = re.compile(r"<[^>]*>|\{\\[^}]*\}")


# Text of a clip


def read_sidecar(media: Path, start: float = 0.0, end: float | None = None) -> str | None:
    """What a text file beside a media file says: all of NAME.txt, or the cues of NAME.vtt or .srt between two times.

    None where there is no such file, or nothing is said in that time.
    """
    for suffix in SIDECARS:
        content = _content(media.with_suffix(suffix))
        if content is None:
            continue
        if suffix not in SUBTITLES:
            return content.strip() or None
        said = [text for begin, stop, text in _cues(content) if stop > start and (end is None or begin < end)]
        return " ".join(dict.fromkeys(said)) or None  # subtitles that scroll repeat their lines
    return None


@lru_cache(maxsize=1024)
def _content(path: Path) -> str | None:
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > LONGEST:
            raise DataError(f"{path}: {path.stat().st_size} bytes are too long for the text of a clip")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from error


@lru_cache(maxsize=64)
def _cues(content: str) -> list[tuple[float, float, str]]:
    """Begin, end and text of every cue of a WebVTT or SubRip file."""
    found = []
    marks = list(CUE.finditer(content))
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        body = content[mark.end() : len(content) if after is None else after.start()]
        lines = body.partition("\n")[2]  # settings of the cue stand on the line of its times
        text = " ".join(TAG.sub("", re.split(r"\n\s*\n", lines, maxsplit=1)[0]).split())
        begin, stop = _seconds(mark.groups()[:4]), _seconds(mark.groups()[4:])
        if text:
            found.append((begin, stop, text))
    return found


def _seconds(parts: Sequence[str | None]) -> float:
    hours, minutes, seconds, fraction = parts
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0) + float(f"0.{fraction}")


def read_table(path: Path) -> dict[str, str]:
    """Text by the name of its source: the column `text` (or `caption`) of the table that was given to `prepare`."""
    found = {}
    for clip in find_sources(path):
        said = clip.metadata.get("text") or clip.metadata.get("caption")
        if said:
            found[clip.source] = str(said)
    if not found:
        raise DataError(f"{path}: no line has text; it is the column `text`")
    return found


def has_words(text: str | None) -> bool:
    """Whether there is anything in a text to embed."""
    return text is not None and next(split_words(text, 64), None) is not None


# Datasets


class TextDataset(Dataset):
    """Clips of any dataset with the text that is known of them; clips without any have the other modalities.

    Text is one of the modalities of a training split in any case, of the others only if all of its clips have some:
    what a clip lacks cannot be looked for. Class names are written into a template for each frame number, so that the
    loader, which draws the frame, draws the sentence too.
    """

    def __init__(self, clips: Dataset, read: TextInput, options: TextOptions, split: Split) -> None:
        self.clips, self.read, self.options, self.split = clips, read, options, split
        self.frames, self.classes, self.one_to_one = clips.frames, clips.classes, clips.one_to_one
        self.paired = not clips.one_to_one and clips.clip(0).path is None  # by class alone
        self.origins = ("labels",) if self.paired else options.origins
        self._table = read_table(Path(options.table)) if options.table and "manifest" in self.origins else {}
        complete = split == "train" or self.paired or all(has_words(self.text(i)) for i in range(len(self)))
        self.modalities = (*clips.modalities, TEXT) if complete else clips.modalities
        if split == "train" and not any(has_words(self.text(i)) for i in range(len(self))):
            raise DataError(
                "none of the training clips has text; name a table with the column `text` "
                "(modalities.text.options.table), put .txt or .vtt files beside the media, or take labels as text"
            )

    def __len__(self) -> int:
        return len(self.clips)

    def text(self, index: int, frame: int = 0) -> str | None:
        """The text of a clip, from the first origin that has one; class names in the template of a frame number."""
        clip = self.clips.clip(index)
        if self.split == "train" and zlib.crc32(f"text/{clip.id}".encode()) / 2**32 >= self.options.share:
            return None
        for origin in self.origins:
            found: str | None = None
            match origin:
                case "manifest":
                    found = clip.text or self._table.get(clip.source) or clip.metadata.get("text")
                case "sidecar":
                    end = None if clip.seconds is None else clip.end
                    found = None if clip.path is None else read_sidecar(clip.path, clip.start, end)
                case "labels":
                    template = self.options.templates[frame % len(self.options.templates)]
                    found = fill(template, " and ".join(clip.labels)) if clip.labels else None
            if has_words(found):
                return found
        return None

    def clip(self, index: int) -> Clip:
        """As in the dataset below, with its text."""
        return replace(self.clips.clip(index), text=self.text(index))

    def sample(self, index: int, frame: int) -> Sample:
        """The tensors of the dataset below, and the text if there is one."""
        return self._with_text(self.clips.sample(index, frame), index, frame)

    def part(self, index: int, frame: int, modalities: Sequence[Modality]) -> Sample:
        """Only what is wanted is read."""
        others = [m for m in modalities if m != TEXT]
        below = self.clips.part(index, frame, others) if others else Sample(self.clips.clip(index).id, {})
        return self._with_text(below, index, frame) if TEXT in modalities else below

    def _with_text(self, sample: Sample, index: int, frame: int) -> Sample:
        found = self.text(index, frame)
        return sample if found is None else Sample(sample.id, {**sample.inputs, TEXT: self.read.read(found)})

    def labels(self, index: int) -> Labels:
        """As in the dataset below."""
        return self.clips.labels(index)

    def group(self, index: int) -> str:
        """As in the dataset below."""
        return self.clips.group(index)

    def boxes(self, index: int, frame: int) -> Float[Tensor, "boxes 4"]:
        """As in the dataset below."""
        return self.clips.boxes(index, frame)

    def sides(self) -> Mapping[Modality, Dataset]:
        """The dataset itself; where only classes pair the modalities, text has one item for each class."""
        if not self.paired:
            return super().sides()
        return {**self.clips.sides(), TEXT: ClassTexts(vocabulary(self.clips), self.read, self.options.templates[0])}


@dataclass(frozen=True)
class ClassTexts(Dataset):
    """Classes as clips that have nothing but text: their names in a template."""

    names: Labels
    read: TextInput
    template: str = "{}"
    modalities: tuple[Modality, ...] = (TEXT,)

    def __len__(self) -> int:
        return len(self.names)

    def clip(self, index: int) -> Clip:
        """Named by the class."""
        name = self.names[index]
        return Clip(name, name, labels=(name,), group=name, text=fill(self.template, name))

    def sample(self, index: int, frame: int) -> Sample:
        """The text alone."""
        return Sample(self.names[index], {TEXT: self.read.read(fill(self.template, self.names[index]))})


@dataclass(frozen=True)
class CaptionedWorld(WorldDataset):
    """The generated world with a description of every scene; frame k comes with paraphrase k.

    Of the clips `start` up to `start + count`, the share `described` keeps its description, by lot.
    """

    read: TextInput = field(default_factory=TextInput)
    described: float = 1.0
    modalities: tuple[Modality, ...] = (AUDIO, VISUAL, TEXT)

    def text(self, index: int, frame: int = 0) -> str | None:
        """The description of a scene; of what is seen only, where another scene is heard."""
        if zlib.crc32(f"text/{self._name(index)}".encode()) / 2**32 >= self.described:
            return None
        return caption(self.scene(index), frame, heard=self.heard(index) == self.start + index)

    def clip(self, index: int) -> Clip:
        """As the world's, with its text."""
        return replace(super().clip(index), text=self.text(index))

    def sample(self, index: int, frame: int) -> Sample:
        """Audio, frame and, where there is one, the description."""
        return self.part(index, frame, self.modalities)

    def part(self, index: int, frame: int, modalities: Sequence[Modality]) -> Sample:
        """Scenes are neither drawn nor sounded for their text alone."""
        others = [m for m in modalities if m != TEXT]
        inputs = super().part(index, frame, others).inputs if others else {}
        found = self.text(index, frame) if TEXT in modalities else None
        return Sample(self._name(index), dict(inputs) | ({} if found is None else {TEXT: self.read.read(found)}))


def with_text(clips: Dataset, options: TextOptions, split: Split) -> Dataset:
    """The same clips with their text; those that give some by themselves stay as they are."""
    if TEXT in clips.modalities:
        return clips
    read = TextInput(options.words, options.letters)
    if isinstance(clips, WorldDataset):
        share = options.share if split == "train" else 1.0
        return CaptionedWorld(
            clips.world, clips.start, clips.count, clips.remember, clips.mismatched, read=read, described=share
        )
    return TextDataset(clips, read, options, split)
