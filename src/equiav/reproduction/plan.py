"""Which runs a set of tables needs, one per distinct recipe and seed, and what of them is still to be measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from equiav.build import encoder_size
from equiav.config import CHANGED, Config, canonical_dump, load_config, with_earlier_defaults
from equiav.errors import ConfigError, EquiAVError
from equiav.evaluation import encoder_passes
from equiav.models import modalities
from equiav.reproduction.tables import RetrievalSet, Row, ScaleName, Table

# How often a run reports and saves changes nothing in what it learns.
COSMETIC = (
    "log_every",
    "evaluate_every",
    "checkpoint_every",
    "keep",
    "workers",
    "checkpoint_activations",
    "keep_spectrograms",
    "report_to",
    "timeout",
)
# A dataset is the same wherever it lies: only the name of its place counts.
PLACES = tuple(("data", key) for key in ("path", "splits", "train", "validation", "test", "weights"))
FINETUNING = "finetune"
START = "start-"  # and a key: the folder of a run's starting weights, inside its own
TRANSFER, TRANSFER_BANK_S = "transfer", "transfer_bank_s"
Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One training (or count) with what is to be measured on it; `wanted_by` names the rows that share it."""

    key: str
    scale: ScaleName
    seed: int
    recipe: Path
    overrides: tuple[str, ...]
    config: Config = field(repr=False)
    trained: bool
    tasks: frozenset[str]
    wanted_by: tuple[str, ...]
    processes: int
    sets: dict[str, RetrievalSet] = field(repr=False, default_factory=dict)
    similarity_on: str | None = None
    finetune: tuple[str, ...] = ()  # what its scale changes in recipes of fine-tuning
    start: Config | None = field(repr=False, default=None)  # trained first; the recipe's weights name its folder

    @property
    def label(self) -> str:
        """The first row that wants it, and its seed."""
        more = f" (+{len(self.wanted_by) - 1})" if len(self.wanted_by) > 1 else ""
        return f"{self.wanted_by[0]}{more}, seed {self.seed}"


@dataclass(frozen=True)
class Folders:
    """Where results are kept for good, and where runs train; both by scale."""

    results: Path
    runs: Path

    def record(self, scale: ScaleName, key: str) -> Path:
        """The results file of a run."""
        return self.results / scale / f"{key}.json"

    def failure(self, run: Run) -> Path:
        """The last lines of a run that failed."""
        return self.results / run.scale / f"{run.key}.failed.txt"

    def run(self, run: Run) -> Path:
        """The folder a run trains in."""
        return self.runs / run.scale / run.key


def portable(config: Config) -> dict[str, Any]:
    """The recipe as stored in results: what differs from the defaults, places by their name only."""
    # Without defaults and as the first format spelled it, so that a key added to recipes or renamed later does not make
    # every finished run a stranger.
    tree = canonical_dump(config, exclude_defaults=True)
    tree.setdefault("data", {})["kind"] = config.data.kind
    for section, key in PLACES:
        match tree.get(section, {}).get(key):
            case str(place):
                tree[section][key] = Path(place).name
            case list(places):
                tree[section][key] = [Path(place).name for place in places]
    if isinstance(tree.get("weights"), str):
        tree["weights"] = Path(tree["weights"]).name
    return tree


def training_recipe(config: Config) -> dict[str, Any]:
    """`portable` with all that decides what a run learns."""
    tree = portable(config)
    if config.model.predictor.kind == "hypernetwork":
        tree["model"]["predictor"]["form"] = "residual"  # earlier runs had another form and keep their keys
    return tree


def _setting(config: Config, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return list(value) if isinstance(value, tuple) else value


def default_of(path: str) -> str:
    """Today's default of a key of recipes, as an override spells it."""
    return json.dumps(_setting(Config(), path))


def former_defaults(config: Config) -> tuple[str, ...]:
    """Overrides that give a recipe the defaults its stored results were taken with; none where they are the same."""
    return tuple(
        f"{path}={json.dumps(former)}"
        for path, former in CHANGED.items()
        if _setting(config, path) == _setting(Config(), path) != former
    )


def run_key(config: Config, *, trained: bool) -> str:
    """Equal for equal training: a hash of the recipe, seed included, without what is cosmetic."""
    # What is not trained does not depend on how inputs are drawn: it keeps its key when such a default changes.
    tree = training_recipe(config) if trained else portable(with_earlier_defaults(config))
    tree["train"] = {k: v for k, v in tree.get("train", {}).items() if k not in COSMETIC}
    text = json.dumps({"recipe": tree, "trained": trained}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def row_seeds(table: Table, row: Row, scale: ScaleName) -> tuple[int, ...]:
    """The seeds of a row at a scale: its own or the table's; none where there is nothing to run."""
    if scale not in table.scales or not row.runs_at(scale):
        return ()
    at = row.at.get(scale)
    return at.seeds if at and at.seeds else table.scales[scale].seeds


def row_run(table: Table, row: Row, scale_name: ScaleName, seed: int, extra: tuple[str, ...] = ()) -> Run:
    """The run of a row at a scale with a seed; `extra` are overrides for every row."""
    scale, at = table.scales[scale_name], row.at.get(scale_name)
    recipe = (table.path.parent / (at.base if at and at.base else scale.base)).resolve()
    changes = {**scale.overrides, **row.overrides, **(at.overrides if at else {}), "seed": seed}
    overrides = (*_as_overrides(changes), *extra)
    start = None
    try:
        config = load_config(recipe, overrides)
        if row.start is not None:
            if scale.processes > 1:
                raise ConfigError("a row with a start trains in one process")
            base = (table.path.parent / row.start.base).resolve()
            more = [change for change in extra if not change.startswith("data.")]  # its data are the row's
            start = load_config(base, (*_as_overrides({**row.start.overrides, "seed": seed}), *more))
            start = start.model_copy(update={"data": config.data})
            overrides = (*overrides, f"weights={START}{run_key(start, trained=True)}")
            config = load_config(recipe, overrides)
        if row.steps:
            other = row_run(table, table.row(row.steps["equal_compute_to"]), scale_name, seed, extra)
            unit = "steps" if other.config.train.steps else "epochs"
            length = getattr(other.config.train, unit) * encoder_passes(other.config) / encoder_passes(config)
            overrides = (*overrides, f"train.{unit}={round(length) if unit == 'steps' else length:g}")
            config = load_config(recipe, overrides)
    except ConfigError as error:
        raise ConfigError(f"{table.path}: row {row.name!r} at scale {scale_name}: {error}") from error
    tasks = _tasks(table, row, scale_name, config)
    wanted_by = (f"{table.name}: {row.name}",)
    return Run(
        run_key(config, trained=scale.trained), scale_name, seed, recipe, overrides, config, scale.trained, tasks,
        wanted_by, scale.processes, scale.sets, scale.similarity_on, _as_overrides(scale.finetune),
        start,
    )  # fmt: skip


def _as_overrides(changes: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in changes.items())


def _tasks(table: Table, row: Row, name: ScaleName, config: Config) -> frozenset[str]:
    """What is measured: the scale's own list, and the fine-tunings and datasets that columns ask for."""
    scale = table.scales[name]
    tasks: set[str] = set(scale.measure)
    if not config.objective.has_predictor or config.objective.intra != "equivariant":
        tasks.discard("similarity")  # nothing trained the predictor
    if config.objective.representation != "centroid":
        tasks.discard("retrieval_bank_s")  # no vectors, no bank
    for column in table.columns:
        place = column.place(name, row.key or row.name)
        match (place or "").split("."):
            case [kind, part, *_] if kind in (TRANSFER, TRANSFER_BANK_S):
                if part not in scale.sets:
                    raise ConfigError(f"{table.title}: column {column.name!r} wants the set {part!r}, not in `sets`")
                tasks.add(f"{kind}.{part}")
            case [kind, recipe, mode, *_] if kind == FINETUNING:
                tasks.add(f"{FINETUNING}.{recipe}.{mode}")
    return frozenset(tasks)


def split_rows(text: str, tables: Sequence[Table]) -> tuple[str, ...]:
    """The names of rows in a list separated by commas; names may hold commas, and the longest that fits is meant."""

    def pieces(name: str) -> tuple[str, ...]:
        return tuple(piece.strip() for piece in name.split(","))

    known = {pieces(row.name): row.name for table in tables for row in table.rows}
    found, rest = [], pieces(text)
    while rest:
        length = next((n for n in range(len(rest), 0, -1) if rest[:n] in known), 1)
        found.append(known.get(rest[:length], rest[0]))
        rest = rest[length:]
    return tuple(found)


def plan(
    tables: Sequence[Table],
    scale: ScaleName,
    *,
    seeds: tuple[int, ...] | None = None,
    rows: tuple[str, ...] | None = None,
    extra: tuple[str, ...] = (),
) -> list[Run]:
    """All runs, each once, in order of the seed: when time runs out, every row has equally many.

    Rows of equal recipes share a run, which then measures what any of them wants. Fine-tuning that could not take a
    run's encoders is refused here, before anything is trained.
    """
    if rows is not None:
        known = {row.name for table in tables for row in table.rows}
        if unknown := sorted(set(rows) - known):
            raise ConfigError(f"--rows: no row {unknown[0]!r}; there are {', '.join(sorted(known))}")
    found: dict[str, Run] = {}
    for table in tables:
        for row in table.rows:
            if rows is not None and row.name not in rows:
                continue
            for seed in row_seeds(table, row, scale):
                if seeds is None or seed in seeds:
                    run = row_run(table, row, scale, seed, extra)
                    found[run.key] = _merged(found[run.key], run) if run.key in found else run
    for run in found.values():
        for task in sorted(run.tasks):
            if task.startswith(f"{FINETUNING}."):
                _check_finetuning(run, *task.split(".")[1:])
    return sorted(found.values(), key=lambda run: run.seed)


def _merged(first: Run, other: Run) -> Run:
    """One run for two rows of equal recipes; what only shares a name with the other's is refused."""
    places = [(run.config.data, run.config.weights) for run in (first, other)]
    sets = [{name: run.sets[name] for name in first.sets.keys() & other.sets.keys()} for run in (first, other)]
    on = {run.similarity_on for run in (first, other)} - {None}
    tuning = {run.finetune for run in (first, other)} - {()}
    if len(tuning) > 1:
        raise ConfigError(f"{first.label} and {other.label}: the same recipe, fine-tuned in two ways; make it one")
    if places[0] != places[1] or sets[0] != sets[1] or len(on) > 1:
        raise ConfigError(
            f"{first.label} and {other.label}: the same recipe on data of one name in two places; rename one"
        )
    return replace(
        first, tasks=first.tasks | other.tasks, wanted_by=tuple(dict.fromkeys((*first.wanted_by, *other.wanted_by))),
        sets={**first.sets, **other.sets}, similarity_on=next(iter(on), None), finetune=next(iter(tuning), ()),
    )  # fmt: skip


# Fine-tuning: on a recipe beside those for pre-training, with the run's own model.


def finetune_recipe(run: Run, name: str) -> tuple[Path, tuple[str, ...]]:
    """The recipe of a dataset, beside the folder of the recipe that was pre-trained, and what is changed in it.

    That is what the scale says, and what a row or `--set` changes in the encoders: fine-tuning starts from the run's.
    """
    encoders = ("model=", "model.encoder", "model.audio", "model.visual", "model.joint_depth")
    overrides = (*run.finetune, *(o for o in run.overrides if o.startswith(encoders)))
    if run.config.objective.kind == "cavmae":
        overrides = (*overrides, "objective.kind=cavmae", "finetune.drop_path=0")
    return run.recipe.parents[1] / FINETUNING / f"{name}.yaml", overrides


def _check_finetuning(run: Run, name: str, mode: str) -> None:
    path, overrides = finetune_recipe(run, name)
    try:
        tune = load_config(path, (*overrides, f"classifier.mode={mode}"))
    except ConfigError as error:
        raise ConfigError(f"{run.label}: fine-tuning on {name}: {error}") from error
    if tune.finetune is None:
        raise ConfigError(f"{path}: not a recipe for fine-tuning, it has no section finetune")
    assert tune.classifier is not None  # its mode was set above
    sizes = []
    for c in (run.config, tune):
        chosen = [c.model.encoder_for(m) for m in modalities(tune.classifier.mode)]
        parts = [(e.kind, e.name, encoder_size(e), e.mlp_ratio, e.norm_eps) for e in chosen]
        joint = c.model.joint_depth if run.config.objective.kind == "cavmae" else None
        sizes.append((parts, c.audio.patch, c.visual.patch, joint))
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"{run.label}: {path.name} fine-tunes other encoders than are pre-trained; change model.encoder "
            "in both recipes, or for both with --set model.encoder..., or in `finetune` of the table's scale"
        )


def task_facts(run: Run, task: str) -> dict[str, Any] | None:
    """What makes a measurement another one if it changes; None for those that the run's own recipe settles."""
    kind, *parts = task.split(".")
    if kind == FINETUNING:
        return portable(load_config(*finetune_recipe(run, parts[0])))
    if kind in (TRANSFER, TRANSFER_BANK_S):
        chosen = run.sets[parts[0]]
        return {"data": Path(chosen.data).name, "list": Path(chosen.list).name if chosen.list else None}
    return None


def finetune_folder(run: Run, out: Path, name: str, mode: str) -> Path:
    """Where fine-tuning goes, below the folder of its run; a recipe that was changed gets another one."""
    text = json.dumps(task_facts(run, f"{FINETUNING}.{name}.{mode}"), sort_keys=True)
    return out / FINETUNING / f"{name}-{mode}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# Results files: one per run, complete or extended later.


def read_record(path: Path) -> Record | None:
    """A results file, or none where there is none yet."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise EquiAVError(f"{path}: not a results file ({error}); delete it to run it again") from error
    if not isinstance(record, dict) or "tasks" not in record:
        raise EquiAVError(f"{path}: not a results file of `equiav ablate`")
    return record


def missing(run: Run, folders: Folders) -> frozenset[str]:
    """What is still to be measured of a run, or again because its recipe or dataset is another now."""
    record = read_record(folders.record(run.scale, run.key))
    if record is None:
        return run.tasks
    known = record.get("facts", {})
    done = {task for task in run.tasks & frozenset(record["tasks"]) if known.get(task) == task_facts(run, task)}
    return run.tasks - done
