"""A table of the paper as a file: rows over one recipe, at several scales, with the paper's values beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from equiav.config import refusal
from equiav.errors import ConfigError

ScaleName = Literal["world", "real", "paper"]
SCALES: tuple[ScaleName, ...] = get_args(ScaleName)
Task = Literal["retrieval", "retrieval_bank_s", "retrieval_best", "probe", "similarity", "zeroshot", "cost"]
HeldOut = Literal["test", "validation"]
Overrides = dict[str, Any]


def _shared_columns() -> dict[str, dict[str, Any]]:
    """Columns that most tables share: their name, and where their value stands in a run's record at each scale.

    At the paper's scale retrieval is that of the AudioSet list and classification is fine-tuning on AudioSet-20K.
    """
    found: dict[str, dict[str, Any]] = {}
    for way, direction in (("V2A", "video_to_audio"), ("A2V", "audio_to_video")):
        for metric, suffix in (("R@1", ""), ("R@10", " R@10"), ("MRR", " MRR"), ("median_rank", " median rank")):
            for bank, name in (("", ""), ("_bank_s", " (bank of S)")):
                world, paper = (f"{task}{bank}" for task in ("retrieval", "transfer"))
                at = {"world": f"{world}.{direction}.{metric}", "paper": f"{paper}.audioset.{direction}.{metric}"}
                found[f"{way}{suffix}{name}"] = {**at, "less_is_better": metric == "median_rank"}
            best = {"world": f"retrieval_best.{direction}.{metric}", "less_is_better": metric == "median_rank"}
            found[f"{way}{suffix} (best)"] = best
        found[way]["real"] = f"retrieval.{direction}.P@1"
        found[f"{way} mAP"] = {"real": f"retrieval.{direction}.mAP"}
    for name, view in (("A", "audio"), ("V", "visual"), ("A-V", "audiovisual")):
        found[name] = {"world": f"probe.{view}", "real": f"probe.{view}", "paper": f"finetune.audioset20k.{view}"}
    for name, view in (("sim A", "audio"), ("sim V", "visual")):
        found[name] = {**dict.fromkeys(SCALES, f"similarity.{view}"), "digits": 2}
    found["passes"] = {**dict.fromkeys(SCALES, "run.encoder_passes"), "digits": 0, "compared": False}
    found["CPU min"] = {**dict.fromkeys(SCALES, "run.cpu_minutes"), "compared": False}
    return found


KNOWN = _shared_columns()


class _Part(BaseModel):
    """A frozen group of keys; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Column(_Part):
    """A column: where its value stands in a run's record, at each scale; blank where it has no meaning.

    `{key}` in a place is the row's key: for tables whose rows are parts of one record. A column that is not `compared`
    (what a run costs) stays out of differences and plots.
    """

    name: str
    world: str | None = None
    real: str | None = None
    paper: str | None = None
    digits: int = 1
    compared: bool = True
    less_is_better: bool = False

    def place(self, scale: ScaleName, key: str) -> str | None:
        """Where this column's value of a row stands."""
        found: str | None = getattr(self, scale)
        return found.replace("{key}", key) if found else None


class RetrievalSet(_Part):
    """Another dataset for zero-shot retrieval: a prepared folder, and the published list of its clips."""

    data: str
    list: str | None = None


class Scale(_Part):
    """One size of the experiment: the recipe its rows change, the seeds, what is measured.

    `finetune` changes recipes of fine-tuning, to fit the encoders that are pre-trained here.
    `similarity_on` names one of `sets`: where the predictor's similarity is measured if the run's data hold training
    clips only.
    """

    base: str
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    overrides: Overrides = Field(default_factory=dict)
    measure: tuple[Task, ...] = ("retrieval", "probe", "similarity")
    sets: dict[str, RetrievalSet] = Field(default_factory=dict)
    similarity_on: str | None = None
    finetune: Overrides = Field(default_factory=dict)
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


class RowScale(_Part):
    """What a row changes at one scale only."""

    base: str | None = None
    seeds: tuple[int, ...] | None = Field(default=None, min_length=1)
    overrides: Overrides = Field(default_factory=dict)


class Start(_Part):
    """A training of its own that gives a row's runs their weights, on the row's data and seed: masked autoencoding."""

    base: str
    overrides: Overrides = Field(default_factory=dict)


class Row(_Part):
    """A row: what it changes in the recipe, and the paper's values.

    Cited rows are others' work: nothing to run. `only` keeps a row to some scales; `key` stands for `{key}` in the
    places of columns. `steps: {equal_compute_to: ROW}` trains for as many encoder passes as that row does. `start` is
    trained first, in the run's folder: the run's time includes it.
    """

    name: str
    overrides: Overrides = Field(default_factory=dict)
    start: Start | None = None
    steps: dict[Literal["equal_compute_to"], str] = Field(default_factory=dict)
    paper: dict[str, float] = Field(default_factory=dict)
    against: str | None = None
    cited: bool = False
    only: tuple[ScaleName, ...] = SCALES
    key: str | None = None
    at: dict[ScaleName, RowScale] = Field(default_factory=dict)

    def runs_at(self, scale: ScaleName) -> bool:
        """Whether there is something to run at a scale."""
        return not self.cited and scale in self.only


class Claim(_Part):
    """What a note says of two rows: one is better (greater) or worse than the other in every metric, significantly at
    95 %, or their difference is not significant in any. Metrics are columns of the table.

    `{better: ROW, than: ROW, metric: COLUMN}`, `{worse: ...}` or `{not_significant: [ROW, ROW], metric: [COLUMNS]}`.
    """

    better: str | None = None
    worse: str | None = None
    than: str | None = None
    not_significant: tuple[str, str] | None = None
    metric: Annotated[tuple[str, ...], BeforeValidator(lambda x: [x] if isinstance(x, str) else x)]

    @model_validator(mode="after")
    def _one_kind(self) -> Claim:
        given = [kind for kind in ("better", "worse", "not_significant") if getattr(self, kind) is not None]
        if len(given) != 1 or (self.than is None) != (given == ["not_significant"]):
            raise ValueError("a claim is {better: ROW, than: ROW}, {worse: ROW, than: ROW} or {not_significant: [..]}")
        return self

    @property
    def rows(self) -> tuple[str, str]:
        """The two rows it compares."""
        return self.not_significant or (self.better or self.worse or "", self.than or "")


class Note(_Part):
    """What the results of one scale say, in words, and the claims that the numbers must bear out for it to be said."""

    scale: ScaleName
    claims: tuple[Claim, ...] = Field(min_length=1)
    text: str


class Table(_Part):
    """One table: rows, columns, scales; `reference` is the row (the paper's choice) that others are compared with.

    `split` is the one whose values are shown: validation where a recipe is chosen, test for all that counts.
    """

    path: Path
    title: str
    paper: str
    caption: str = ""
    reference: str | None = None
    exploratory: bool = False
    split: HeldOut = "test"
    columns: tuple[Column, ...]
    scales: dict[ScaleName, Scale]
    rows: tuple[Row, ...] = Field(min_length=1)
    notes: tuple[Note, ...] = ()

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
        own_length = {r.name for r in self.rows if not r.cited and not r.steps}
        for row in self.rows:
            if unknown := sorted(set(row.paper) - set(columns)):
                raise ValueError(f"row {row.name!r} gives a value for {unknown[0]!r}, which is no column")
            if odd := sorted(set(row.steps.values()) - own_length):
                raise ValueError(f"row {row.name!r}: equal_compute_to {odd[0]!r} is no row with a length of its own")
        for note in self.notes:
            if note.scale not in self.scales:
                raise ValueError(f"a note speaks of the scale {note.scale}, which this table does not have")
            for claim in note.claims:
                if odd := sorted({*claim.rows, *claim.metric} - {*rows, *columns}):
                    raise ValueError(f"a note speaks of {odd[0]!r}, which is no row or column")
        return self

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return self.path.stem

    @property
    def own_references(self) -> bool:
        """Whether rows name their own reference: rows of the paper again under settings that it did not run.

        Its values then serve for the order of such rows only and are not shown as theirs.
        """
        return any(row.against for row in self.rows)

    def compared_with(self, row: Row) -> str | None:
        """The row that this one is compared with; none for that row itself and for cited ones."""
        name = row.against or self.reference
        return None if row.cited or name == row.name else name

    def row(self, name: str) -> Row:
        """A row by its name."""
        return next(row for row in self.rows if row.name == name)


def load_table(path: Path) -> Table:
    """Reads and checks a file of configs/ablation."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(tree, dict) or "rows" not in tree:
        raise ConfigError(f"{path}: not a table; one has title, columns, scales and rows (see configs/ablation)")
    try:
        return Table.model_validate({**tree, "path": path})
    except ValidationError as error:
        raise refusal(error, str(path)) from error


def load_tables(paths: Sequence[Path]) -> list[Table]:
    """Reads several tables; two of one name would write the same files."""
    names = [path.stem for path in paths]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise ConfigError(f"{twice[0]}: two tables of this name")
    return [load_table(path) for path in paths]
