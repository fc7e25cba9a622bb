"""A table of the paper as a file: rows over one recipe, at several scales, with the paper's figures beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from equiav.config import Section, read_yaml, refusal
from equiav.errors import ConfigError

ScaleName = Literal["world", "real", "paper"]
SCALES: tuple[ScaleName, ...] = get_args(ScaleName)
Own = Literal["retrieval", "probe", "similarity", "cost"]
Judged = Literal["test", "validation"]
Overrides = dict[str, Any]

# Columns that most tables share: what they are called, and what stands for them at each scale. On the paper's scale
# retrieval is that of the AudioSet list and classification is fine-tuning on AudioSet-20K.
_R1 = "video_to_audio.R@1", "audio_to_video.R@1"
_R10 = "video_to_audio.R@10", "audio_to_video.R@10"
_P1 = "video_to_audio.P@1", "audio_to_video.P@1"
_MAP = "video_to_audio.mAP", "audio_to_video.mAP"
KNOWN: dict[str, dict[str, Any]] = {
    "V2A": {"world": f"retrieval.{_R1[0]}", "real": f"retrieval.{_P1[0]}", "paper": f"transfer.audioset.{_R1[0]}"},
    "A2V": {"world": f"retrieval.{_R1[1]}", "real": f"retrieval.{_P1[1]}", "paper": f"transfer.audioset.{_R1[1]}"},
    "V2A R@10": {"world": f"retrieval.{_R10[0]}", "paper": f"transfer.audioset.{_R10[0]}"},
    "A2V R@10": {"world": f"retrieval.{_R10[1]}", "paper": f"transfer.audioset.{_R10[1]}"},
    "V2A mAP": {"real": f"retrieval.{_MAP[0]}"},
    "A2V mAP": {"real": f"retrieval.{_MAP[1]}"},
    "A": {"world": "probe.audio", "real": "probe.audio", "paper": "finetune.audioset20k.audio"},
    "V": {"world": "probe.visual", "real": "probe.visual", "paper": "finetune.audioset20k.visual"},
    "A-V": {"world": "probe.audiovisual", "real": "probe.audiovisual", "paper": "finetune.audioset20k.audiovisual"},
    "sim A": {**dict.fromkeys(SCALES, "similarity.audio"), "digits": 2},
    "sim V": {**dict.fromkeys(SCALES, "similarity.visual"), "digits": 2},
}


class Column(Section):
    """A column: where its figure stands in a run's record, at each scale; blank where it has no meaning.

    `{key}` in a place is the row's key: for tables whose rows are parts of one record.
    """

    name: str
    world: str | None = None
    real: str | None = None
    paper: str | None = None
    digits: int = 1

    def place(self, scale: ScaleName, key: str) -> str | None:
        """Where this column's figure of a row stands."""
        found: str | None = getattr(self, scale)
        return found.replace("{key}", key) if found else None


class RetrievalSet(Section):
    """Another set for zero-shot retrieval: a prepared folder, and the published list of its clips."""

    data: str
    list: str | None = None


class Scale(Section):
    """One size of the experiment: the recipe its rows change, the seeds, what is measured.

    `similarity_on` names one of `sets`: where the predictor's similarity is measured if the run's data hold training
    clips only.
    """

    base: str
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    overrides: Overrides = Field(default_factory=dict)
    measure: tuple[Own, ...] = ("retrieval", "probe", "similarity")
    sets: dict[str, RetrievalSet] = Field(default_factory=dict)
    similarity_on: str | None = None
    processes: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _known_set(self) -> Scale:
        if self.similarity_on is not None and self.similarity_on not in self.sets:
            raise ValueError(f"similarity_on: no set {self.similarity_on!r} in `sets`")
        return self

    @property
    def trained(self) -> bool:
        """Whether runs train at all; counting multiply-adds needs no weights."""
        return self.measure != ("cost",)


class RowScale(Section):
    """What a row changes at one scale only."""

    base: str | None = None
    seeds: tuple[int, ...] | None = Field(default=None, min_length=1)
    overrides: Overrides = Field(default_factory=dict)


class Row(Section):
    """A row: what it changes in the recipe, and the paper's figures.

    Cited rows are others' work: nothing to run. `only` keeps a row to some scales; `key` stands for `{key}` in the
    places of columns.
    """

    name: str
    overrides: Overrides = Field(default_factory=dict)
    paper: dict[str, float] = Field(default_factory=dict)
    against: str | None = None
    cited: bool = False
    only: tuple[ScaleName, ...] = SCALES
    key: str | None = None
    at: dict[ScaleName, RowScale] = Field(default_factory=dict)

    def runs_at(self, scale: ScaleName) -> bool:
        """Whether there is something to run at a scale."""
        return not self.cited and scale in self.only


class Table(Section):
    """One table: rows, columns, scales; `reference` is the row (the paper's choice) that others are compared with.

    `split` is the one whose figures are shown: validation where a recipe is chosen, test for all that counts.
    """

    title: str
    paper: str
    caption: str = ""
    reference: str | None = None
    exploratory: bool = False
    split: Judged = "test"
    columns: tuple[Column, ...]
    scales: dict[ScaleName, Scale]
    rows: tuple[Row, ...] = Field(min_length=1)
    notes: str = ""

    @model_validator(mode="before")
    @classmethod
    def _known_columns(cls, tree: Any) -> Any:
        """Columns may be given by a name that every table shares."""
        if not isinstance(tree, dict) or not isinstance(tree.get("columns"), list):
            return tree
        columns = []
        for column in tree["columns"]:
            if isinstance(column, str) and column not in KNOWN:
                raise ValueError(f"no column {column!r}; known are {', '.join(KNOWN)}")
            columns.append({"name": column, **KNOWN[column]} if isinstance(column, str) else column)
        return {**tree, "columns": columns}

    @model_validator(mode="after")
    def _names_fit(self) -> Table:
        rows, columns = [r.name for r in self.rows], [c.name for c in self.columns]
        for what, names in (("row", rows), ("column", columns)):
            if twice := sorted({n for n in names if names.count(n) > 1}):
                raise ValueError(f"{what} {twice[0]!r} is there twice")
        for name in [self.reference, *(r.against for r in self.rows)]:
            if name is not None and name not in rows:
                raise ValueError(f"no row {name!r} to compare with")
        for row in self.rows:
            if unknown := sorted(set(row.paper) - set(columns)):
                raise ValueError(f"row {row.name!r} gives a figure for {unknown[0]!r}, which is no column")
        return self

    @property
    def own_references(self) -> bool:
        """Whether rows name their own reference: rows of the paper again under settings that it did not run.

        Its figures then serve for the order of such rows only and are not shown as theirs.
        """
        return any(row.against for row in self.rows)

    def compared_with(self, row: Row) -> str | None:
        """The row that this one is compared with; none for that row itself and for cited ones."""
        name = row.against or self.reference
        return None if row.cited or name == row.name else name


def load_table(path: Path) -> Table:
    """Reads and checks a file of configs/ablation."""
    tree = read_yaml(path)
    if not isinstance(tree, dict) or "rows" not in tree:
        raise ConfigError(f"{path}: not a table; one has title, columns, scales and rows (see configs/ablation)")
    try:
        return Table.model_validate(tree)
    except ValidationError as error:
        raise refusal(error, str(path)) from error
