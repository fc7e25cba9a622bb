"""Which runs a set of tables needs: one per distinct recipe and seed, wherever it stands."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from equiav.ablation.experiment import Overrides, RetrievalSet, Row, Scale, ScaleName, Table, load_table
from equiav.config import Config, canonical_dump, load_config
from equiav.errors import ConfigError

# How often a run reports and saves changes nothing in what it learns.
COSMETIC = ("log_every", "evaluate_every", "checkpoint_every", "keep", "workers", "checkpoint_activations")
# A set is the same wherever it lies: only the name of its place counts.
PLACES = (("data", "path"), ("data", "train"), ("data", "validation"), ("data", "test"), ("data", "weights"))
FINETUNING = "finetune"
TRANSFER = "transfer"


@dataclass(frozen=True)
class Experiment:
    """A table and the file it was read from."""

    path: Path
    table: Table

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return self.path.stem


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

    @property
    def label(self) -> str:
        """The first row that wants it, and its seed."""
        more = f" (+{len(self.wanted_by) - 1})" if len(self.wanted_by) > 1 else ""
        return f"{self.wanted_by[0]}{more}, seed {self.seed}"


def load_experiments(paths: Sequence[Path]) -> list[Experiment]:
    """Reads the tables; two of one name would write the same files."""
    found = [Experiment(path, load_table(path)) for path in paths]
    names = [e.name for e in found]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise ConfigError(f"{twice[0]}: two tables of this name")
    return found


def portable(config: Config) -> dict[str, Any]:
    """The recipe as stored in results: what differs from the defaults, places by their name only."""
    # Defaults are left out so that a key added to recipes later does not make every finished run a stranger.
    tree: dict[str, Any] = canonical_dump(config, exclude_defaults=True)
    tree.setdefault("data", {})["kind"] = config.data.kind
    for section, key in PLACES:
        if isinstance(tree.get(section, {}).get(key), str):
            tree[section][key] = Path(tree[section][key]).name
    if isinstance(tree.get("weights"), str):
        tree["weights"] = Path(tree["weights"]).name
    return tree


def run_key(config: Config, *, trained: bool) -> str:
    """Equal for equal training: a hash of the recipe, seed included, without what is cosmetic."""
    tree = portable(config)
    tree["train"] = {k: v for k, v in tree.get("train", {}).items() if k not in COSMETIC}
    text = json.dumps({"recipe": tree, "trained": trained}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def as_arguments(overrides: Overrides) -> tuple[str, ...]:
    """Overrides of a table as they would be typed."""
    return tuple(f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in overrides.items())


def row_seeds(row: Row, scale_name: ScaleName, scale: Scale, chosen: tuple[int, ...] | None) -> tuple[int, ...]:
    """The seeds of a row: its own or the table's, cut to those asked for."""
    at = row.at.get(scale_name)
    seeds = at.seeds if at and at.seeds else scale.seeds
    return seeds if chosen is None else tuple(s for s in seeds if s in chosen)


def row_run(
    experiment: Experiment, row: Row, scale_name: ScaleName, seed: int, extra: tuple[str, ...] = ()
) -> Run | None:
    """The run of a row at a scale with a seed; none where the row or the table lacks that scale."""
    scale = experiment.table.scales.get(scale_name)
    if scale is None or not row.runs_at(scale_name):
        return None
    at = row.at.get(scale_name)
    recipe = (experiment.path.parent / (at.base if at and at.base else scale.base)).resolve()
    changes = {**scale.overrides, **row.overrides, **(at.overrides if at else {}), "seed": seed}
    overrides = (*as_arguments(changes), *extra)
    try:
        config = load_config(recipe, overrides)
    except ConfigError as error:
        raise ConfigError(f"{experiment.path}: row {row.name!r} at scale {scale_name}: {error}") from error
    key = run_key(config, trained=scale.trained)
    return Run(
        key, scale_name, seed, recipe, overrides, config, scale.trained,
        _tasks(experiment.table, row, scale_name, scale, config), (f"{experiment.name}: {row.name}",),
        scale.processes, scale.sets, scale.similarity_on,
    )  # fmt: skip


def _tasks(table: Table, row: Row, name: ScaleName, scale: Scale, config: Config) -> frozenset[str]:
    """What is measured: the scale's own list, and the fine-tunings and sets that columns ask for."""
    tasks: set[str] = set(scale.measure)
    if config.objective.intra != "equivariant":
        tasks.discard("similarity")  # nothing trained the predictor
    for column in table.columns:
        place = column.place(name, row.key or row.name)
        match (place or "").split("."):
            case [kind, part, *_] if kind == TRANSFER:
                if part not in scale.sets:
                    raise ConfigError(f"{table.title}: column {column.name!r} wants the set {part!r}, not in `sets`")
                tasks.add(f"{TRANSFER}.{part}")
            case [kind, recipe, mode, *_] if kind == FINETUNING:
                tasks.add(f"{FINETUNING}.{recipe}.{mode}")
    return frozenset(tasks)


def plan(
    experiments: Sequence[Experiment],
    scale: ScaleName,
    *,
    seeds: tuple[int, ...] | None = None,
    rows: tuple[str, ...] | None = None,
    extra: tuple[str, ...] = (),
) -> list[Run]:
    """All runs, each once, in order of the seed: when time runs out, every row has equally many.

    Rows of equal recipes share a run, which then measures what any of them wants.
    """
    if rows is not None:
        known = {row.name for e in experiments for row in e.table.rows}
        if unknown := sorted(set(rows) - known):
            raise ConfigError(f"--rows: no row {unknown[0]!r}; there are {', '.join(sorted(known))}")
    found: dict[str, Run] = {}
    for experiment in experiments:
        if scale not in experiment.table.scales:
            continue
        for row in experiment.table.rows:
            if rows is not None and row.name not in rows:
                continue
            for seed in row_seeds(row, scale, experiment.table.scales[scale], seeds):
                run = row_run(experiment, row, scale, seed, extra)
                if run is not None:
                    found[run.key] = _merged(found[run.key], run) if run.key in found else run
    return sorted(found.values(), key=lambda run: run.seed)


def _merged(first: Run, other: Run) -> Run:
    """One run for two rows of equal recipes; what only shares a name with the other's is refused."""
    places = [(run.config.data, run.config.weights) for run in (first, other)]
    sets = [{name: run.sets[name] for name in first.sets.keys() & other.sets.keys()} for run in (first, other)]
    on = {run.similarity_on for run in (first, other)} - {None}
    if places[0] != places[1] or sets[0] != sets[1] or len(on) > 1:
        raise ConfigError(
            f"{first.label} and {other.label}: the same recipe on data of one name in two places; rename one"
        )
    return replace(
        first, tasks=first.tasks | other.tasks, wanted_by=tuple(dict.fromkeys((*first.wanted_by, *other.wanted_by))),
        sets={**first.sets, **other.sets}, similarity_on=next(iter(on), None),
    )  # fmt: skip
