"""docs/reproduction.md: every table and figure of the paper beside what has been run here, from results files alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equiav.ablation.experiment import SCALES, ScaleName
from equiav.ablation.paper import ITEMS, Item
from equiav.ablation.plan import Experiment, load_experiments
from equiav.ablation.records import Folders, Record
from equiav.ablation.render import (
    NAMES,
    cost_line,
    differences_table,
    exploratory_line,
    figures_table,
    markdown_table,
    orderings_line,
    plural,
    split_line,
)
from equiav.ablation.statistics import VERDICTS
from equiav.ablation.summary import Results, collect
from equiav.config import shipped_recipe
from equiav.errors import ConfigError
from equiav.io import duration, write_whole

IMAGES = Path("images") / "reproduction"
INTRODUCTION = """\
# The paper's tables and figures, regenerated

Written by `equiav reproduce` from the results files of `equiav ablate`; no figure is typed by hand, and a cell that has
not been run is blank.

**Scales.** *World*: a very small model on the generated world, minutes of one core per run; linear probes stand for
fine-tuning. It can say whether an ordering of the paper shows at this size, not what AudioSet gives. *Real data*:
another very small model on small real sets. *Paper's scale*: the published settings, AudioSet-2M on eight GPUs; the
commands are here, the data and the machines are not.

**Reading.** Figures are the mean over seeds ± the standard deviation; retrieval and classification in per cent, on the
test split. One recipe serves every row of the world. What was tried for it, on the validation split and before any test
result: one rate, on a larger model for 300 steps (plain contrast; EquiAV was stopped, too slow), then on this one for
600 steps (plain contrast and EquiAV), which was kept. Follow-up 3 is there to look at half and twice that rate; it is
a check and changes no recipe. Seeds change initial weights, order and draws; the scenes are the same, so that intervals
do not cover another world. Differences are paired over seeds and come with the 95 % interval of Student's t; one is
called a difference, and set in bold, only if its interval excludes zero. Then the paper's order *holds* or is
*reversed*; otherwise the rows are *not told apart*. Intervals are not corrected for their number: of twenty
comparisons without any effect, one is expected to look like a difference.

**Before the paper's scale.** Its recipes look for prepared sets under `data/` and for the MAE authors' ViT-B weights
under `weights/`; the two retrieval lists, `data/audioset_retrieval.json` and `data/vggsound_retrieval.json`, are those
of CAV-MAE, in its own JSON:

    equiav prepare audioset-2m /datasets/audioset data/audioset2m
    equiav prepare audioset-20k /datasets/audioset data/audioset20k
    equiav prepare audioset-eval /datasets/audioset data/audioset-eval
    equiav prepare vggsound /datasets/vggsound data/vggsound
    equiav prepare msrvtt /datasets/msrvtt data/msrvtt
    equiav convert mae_pretrain_vit_base.pth weights/mae

Then `--list` prints one command per run, each for one machine of eight GPUs, to be given to a scheduler; see
[Several GPUs and machines](scale.md). Sets for fine-tuning are prepared in the same way, each into the folder that its
recipe under `configs/finetune/` names.
"""


@dataclass(frozen=True)
class Section:
    """One item of the paper with the results of its table at each scale it has."""

    item: Item
    experiment: Experiment | None
    results: tuple[Results, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        """What regenerates it."""
        if self.experiment is None:
            return self.item.commands
        path = f"configs/ablation/{self.experiment.path.name}"
        return tuple(_command(path, r) for r in self.results)


def _command(path: str, results: Results) -> str:
    scale = results.experiment.table.scales[results.scale]
    more = " --list" if scale.processes > 1 else ""
    more += " --set data.path=PATH" if results.scale == "real" else ""
    return f"equiav ablate {path} --scale {results.scale}{more}"


def shipped_tables() -> dict[str, Path]:
    """The tables that come with the package, by name."""
    folder = shipped_recipe("ablation/variants.yaml").parent
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def sections(folders: Folders, tables: dict[str, Path]) -> list[Section]:
    """All items of the paper in order, with what has been run."""
    named = {item.table for item in ITEMS if item.table}
    if named != set(tables):
        odd = sorted(named ^ set(tables))
        raise ConfigError(f"configs/ablation and the list of the paper's tables do not agree on {', '.join(odd)}")
    found = {e.name: e for e in load_experiments(list(tables.values()))}
    made = []
    for item in ITEMS:
        experiment = found[item.table] if item.table else None
        scales = [s for s in SCALES if experiment and s in experiment.table.scales]
        made.append(Section(item, experiment, tuple(collect(experiment, s, folders) for s in scales if experiment)))
    return made


def overview(found: Sequence[Section]) -> str:
    """Which command regenerates what, and what has been run."""
    rows = []
    for section in found:
        commands = "<br>".join(f"`{c}`" for c in _short(section))
        runs = "<br>".join(f"`{r.scale}`: {len(r.records)} of {r.wanted}" for r in section.results)
        wall = "<br>".join(_time(r, "wall") for r in section.results)
        cpu = "<br>".join(_time(r, "cpu") for r in section.results)
        rows.append([_link(section.item), section.item.subject, commands, runs, wall, cpu])
    header = ["item", "subject", "command", "runs at each `--scale`", "wall-clock", "processor"]
    note = (
        "Tables share runs: each run's time counts for every table that shows it. Wall-clock times are of a machine "
        "with other work to do; a core of its own needs about the processor time."
    )
    return f"{note}\n\n{markdown_table(header, rows)}"


def _short(section: Section) -> tuple[str, ...]:
    """The commands without the scale, which stands beside the number of runs, where `world` is among them."""
    if section.results and all(r.scale != "world" for r in section.results):
        return section.commands
    return tuple(dict.fromkeys(command.split(" --scale")[0] for command in section.commands))


def _time(results: Results, kind: str) -> str:
    return duration(results.seconds(kind)) if results.records else ""


def _title(item: Item) -> str:
    return f"{item.number}: {item.subject}"


def _link(item: Item) -> str:
    """To the item's section, by the anchor that Markdown renderers give it."""
    kept = "".join(c for c in _title(item).lower() if c.isalnum() or c in " -_")
    return f"[{item.number}](#{kept.replace(' ', '-')})"


def outcome(found: Sequence[Section]) -> str:
    """How many of the paper's orderings hold, table by table."""
    rows = []
    for section in found:
        for r in section.results:
            near, pairs = r.orderings(all_pairs=False), r.orderings(all_pairs=True)
            if sum(near.values()):
                counts = [f"{near[v]} ({pairs[v]})" for v in VERDICTS]
                subject = section.item.subject + (" (exploratory)" if r.experiment.table.exploratory else "")
                rows.append([_link(section.item), subject, NAMES[r.scale], *counts])
    if not rows:
        return ""
    header = ["item", "subject", "scale", "hold", "reversed", "not told apart", "one seed only"]
    note = "Orderings against the paper's own choice, over all columns; in brackets those between any two rows."
    return f"## Which of the paper's orderings show\n\n{note}\n\n{markdown_table(header, rows)}"


def totals(found: Sequence[Section]) -> str:
    """What all runs cost, each counted once, and where they were made."""
    lines = []
    for scale in SCALES:
        records: dict[str, Record] = {
            k: v for s in found for r in s.results if r.scale == scale for k, v in r.records.items()
        }
        if records:
            lines.append(_total(scale, list(records.values())))
    note = "Tables share runs; here each is counted once. Times are summed over runs, several of which go side by side."
    return "\n".join(["## What has been run", "", note, "", *(lines or ["Nothing yet."])])


def _total(scale: ScaleName, records: list[Record]) -> str:
    wall, cpu = (duration(sum(r["seconds"][kind] for r in records)) for kind in ("wall", "cpu"))
    made = [r["provenance"] for r in records]
    where = ", ".join(sorted({f"{p['cores']} cores of {p['cpu']} with torch {p['torch']}" for p in made}))
    days = sorted(p["utc"][:10] for p in made)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    commits = ", ".join(sorted({p["commit"] for p in made}))
    return (
        f"- {NAMES[scale].capitalize()}: {plural(len(records), 'run')}, {wall} of wall-clock and {cpu} of processor "
        f"time; {where}; {when}; commits {commits}."
    )


def section_text(section: Section, pictures: dict[ScaleName, str]) -> str:
    """One item: the paper's figures, ours, differences, command, cost, notes."""
    parts = [f"## {_title(section.item)}", section.item.how]
    parts.append("\n".join(f"    {command}" for command in section.commands))
    if section.experiment is not None:
        table = section.experiment.table
        parts += [table.caption, exploratory_line(table), split_line(table.split), figures_table(section.results)]
        for r in section.results:
            if r.records:
                parts += [differences_table(r), orderings_line(r)]
                if r.scale in pictures:
                    parts.append(f"![{table.title}]({pictures[r.scale]})")
            parts.append(f"{NAMES[r.scale].capitalize()}: {cost_line(r)}")
        parts.append(table.notes)
    return "\n\n".join(part.strip("\n") for part in parts if part.strip())


def write_reproduction(out: Path, folders: Folders, tables: dict[str, Path] | None = None) -> list[Section]:
    """Renders the document and its plots; returns what it shows."""
    from equiav.ablation.plot import table_figure

    found = sections(folders, tables or shipped_tables())
    texts = []
    for section in found:
        pictures: dict[ScaleName, str] = {}
        for r in section.results:
            picture = table_figure(r)
            if picture is not None:
                place = IMAGES / f"{r.experiment.name}-{r.scale}.png"
                write_whole(out.parent / place, picture)
                pictures[r.scale] = place.as_posix()
        texts.append(section_text(section, pictures))
    parts = [INTRODUCTION.strip(), "## All tables and figures", overview(found), totals(found), outcome(found), *texts]
    write_whole(out, "\n\n".join(part for part in parts if part) + "\n")
    return found
