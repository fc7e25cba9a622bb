"""Do the tests notice when something breaks? Breaks one line at a time, and runs the tests that should fail.

    python tools/mutations.py            # all of them, a few minutes
    python tools/mutations.py ranks page # those whose name holds one of the words
    python tools/mutations.py --list     # only check that every old text is still there, once

Works in a temporary copy of the tree. Exit code 1 if a mutation is not noticed, or no longer fits the source: after
a move or a rename, adapt the list below.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SLOW = (
    "torch",
    "scipy.stats",
    "matplotlib.figure",
    "faiss",
    "av",
    "pydantic",
    "typer.testing",
    "beartype",
    "jaxtyping",
)
CLOCK = count(2_000_000_000)  # seconds, of the files that are changed
COPIED = ("src", "tests", "configs", "tools", "results", "pyproject.toml")


@dataclass(frozen=True)
class Mutation:
    """One change: `old` stands exactly once in the file; one of the tests must fail once it is `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "loss: info_nce with one side as anchor only",
        "src/equiav/losses.py",
        "F.cross_entropy(logits.T, pairs)",
        "F.cross_entropy(logits, pairs)",
        ("tests/paper/test_equations.py::test_loss_is_its_equation",),
    ),
    Mutation(
        "loss: equimod keeps the positive in the denominator",
        "src/equiav/losses.py",
        'negatives = logits.scatter(1, positives[:, None], float("-inf"))',
        "negatives = logits",
        ("tests/paper/test_equations.py::test_loss_is_its_equation",),
    ),
    Mutation(
        "loss: terms of Eq. (16) without their weights",
        "src/equiav/losses.py",
        "weighted = [weights.get(name, 1.0) * term",
        "weighted = [term",
        ("tests/paper/test_equations.py::test_equation_16",),
    ),
    Mutation(
        "centroid: only the first representation",
        "src/equiav/models/equiav.py",
        "return h_hat.mean(dim=1)",
        "return h_hat[:, 0]",
        ("tests/paper/test_equations.py::test_predictor_is_equations_4_and_5",),
    ),
    Mutation(
        "strategy: the second stage begins a step early",
        "src/equiav/objectives/equiav.py",
        "intra = step <= total // 2",
        "intra = step < total // 2",
        ("tests/objectives/test_equiav.py::test_strategies",),
    ),
    Mutation(
        "augment: time shift in the other direction",
        "src/equiav/augment/transforms.py",
        "index = (torch.arange(length) - steps[:, None]) % length",
        "index = (torch.arange(length) + steps[:, None]) % length",
        (
            "tests/augment/test_augmentations.py::test_time_shift_is_circular_and_reaches_every_rotation_once",
            "tests/augment/test_augmentations.py::test_axes_of_sound",
        ),
    ),
    Mutation(
        "augment: masks one bin too wide",
        "src/equiav/augment/transforms.py",
        "(bins < end[:, None])",
        "(bins <= end[:, None])",
        ("tests/augment/test_augmentations.py",),
    ),
    Mutation(
        "ranks: ties count against the truth",
        "src/equiav/evaluation/retrieval.py",
        "forth[rows] += (similarity > own[rows, None])",
        "forth[rows] += (similarity >= own[rows, None])",
        (
            "tests/evaluation/test_retrieval.py::test_ties_count_once",
            "tests/evaluation/test_retrieval.py::test_both_ranks_are_each_by_itself",
        ),
    ),
    Mutation(
        "ranks: R@k without the k-th",
        "src/equiav/evaluation/retrieval.py",
        "(ranks <= k)",
        "(ranks < k)",
        ("tests/evaluation/test_retrieval.py::test_perfect_and_reversed",),
    ),
    Mutation(
        "probe: the test part chooses the penalty",
        "src/equiav/evaluation/probe.py",
        "for s, x in validation.items()}",
        "for s, x in test.items()}",
        ("tests/evaluation/test_probe.py::test_the_test_part_chooses_nothing",),
    ),
    Mutation(
        "probe: chance guesses the commonest class of the test part",
        "src/equiav/evaluation/probe.py",
        "share[int(train.sum(dim=0).argmax())]",
        "share.max()",
        ("tests/evaluation/test_probe.py::test_guessing_knows_the_training_part_only",),
    ),
    Mutation(
        "probe: features are not standardised for neighbours",
        "src/equiav/evaluation/probe.py",
        "alike = [((p.pooled - mean) / std, p.targets) for p in parts]",
        "alike = [(p.pooled - mean, p.targets) for p in parts]",
        ("tests/evaluation/test_probe.py::test_both_sides_weigh_the_same",),
    ),
    Mutation(
        "statistics: deviation of the sample as of the population",
        "src/equiav/reproduction/statistics.py",
        "statistics.stdev(values)",
        "statistics.pstdev(values)",
        ("tests/reproduction/test_statistics.py::test_one_seed_has_no_interval",),
    ),
    Mutation(
        "statistics: a prediction ranks first on a tie",
        "src/equiav/evaluation/equivariance.py",
        "rank = (pairs >= own).sum(dim=2).double()",
        "rank = 1 + (pairs > own).sum(dim=2).double()",
        ("tests/evaluation/test_equivariance.py::test_ranks_count_ties_against_the_truth",),
    ),
    Mutation(
        "statistics: intervals of one standard error",
        "src/equiav/evaluation/equivariance.py",
        "NORMAL_95 = 1.96",
        "NORMAL_95 = 1.0",
        ("tests/evaluation/test_equivariance.py::test_differences_are_paired_over_clips",),
    ),
    Mutation(
        "equivariance: views count where redrawing changes nothing",
        "src/equiav/evaluation/equivariance.py",
        "return draws[name].on & (encode(draws[name]) != encode(redrawn[name])).any(dim=1)",
        "return draws[name].on",
        ("tests/evaluation/test_equivariance.py::test_rows_that_count_are_on_and_differ",),
    ),
    Mutation(
        "localisation: the control hears the clip's own audio",
        "src/equiav/evaluation/localisation.py",
        "partner[order] = order.roll(1)",
        "partner[order] = order",
        ("tests/evaluation/test_localisation.py::test_nobody_is_given_their_own_sound",),
    ),
    Mutation(
        "cost: the invariant variant without its third view",
        "src/equiav/evaluation/cost.py",
        'return 3 if objective.inter == "original" else 2',
        "return 2",
        ("tests/reproduction/test_plan.py::test_rows_at_equal_compute_train_for_as_many_encoder_passes",),
    ),
    Mutation(
        "tables: a note stands whatever the numbers",
        "src/equiav/reproduction/statistics.py",
        "holds = ours.significant and (ours.mean > 0) == bool(claim.better)",
        "holds = True",
        ("tests/reproduction/test_document.py::test_a_note_that_the_numbers_contradict_is_named_with_them",),
    ),
    Mutation(
        "tables: the clips that one run found stand for all",
        "src/equiav/reproduction/document.py",
        "{' or '.join(sorted(of))}",
        "{sorted(of)[0]}",
        ("tests/reproduction/test_document.py::test_runs_that_found_different_clips_say_so",),
    ),
    Mutation(
        "tables: fine-tuning of a modality's own encoder goes unchecked",
        "src/equiav/reproduction/plan.py",
        "chosen = [c.model.encoder_for(m) for m",
        "chosen = [c.model.encoder for m",
        ("tests/reproduction/test_plan.py::test_an_encoder_of_one_modality_counts_where_that_is_fine_tuned",),
    ),
    Mutation(
        "text: clips with either modality are contrasted",
        "src/equiav/text/objective.py",
        "_rows(outputs, a) & _rows(outputs, b)",
        "_rows(outputs, a) | _rows(outputs, b)",
        ("tests/text/test_objective.py",),
    ),
    Mutation(
        "digest: keys at their defaults count",
        "src/equiav/checkpoint.py",
        "tree = canonical_dump(config, exclude_defaults=True)",
        "tree = canonical_dump(config, exclude_defaults=False)",
        ("tests/inference/test_digest.py::test_a_key_added_with_a_default_changes_no_digest",),
    ),
    Mutation(
        "filters: != is met by any other value",
        "src/equiav/search/records.py",
        "return not any(self._equals(value) for value in values)",
        "return any(not self._equals(value) for value in values)",
        (
            "tests/search/test_index.py::test_filters_are_what_they_say_of_each_clip",
            "tests/frozen/test_search.py::test_fifty_questions",
        ),
    ),
    Mutation(
        "filters: >= without the bound",
        "src/equiav/search/records.py",
        "any(n >= float(self.value)",
        "any(n > float(self.value)",
        (
            "tests/search/test_index.py::test_filters_are_what_they_say_of_each_clip",
            "tests/search/test_index.py::test_filters",
        ),
    ),
    Mutation(
        "search: of two vectors of an entry the last counts, not the better",
        "src/equiav/search/index.py",
        "(clip.id not in best or score > best[clip.id][0])",
        "True",
        ("tests/frozen/test_search.py::test_fifty_questions",),
    ),
    Mutation(
        "search: filtered vectors outside the lists are looked for elsewhere",
        "src/equiav/search/store.py",
        "tail = tail[allowed[part.covered :]]",
        "tail = np.flatnonzero(allowed[part.covered :])",
        ("tests/search/test_compressed.py::test_filters_beyond_the_limit",),
    ),
    Mutation(
        "shards: every clip at the offset of the first",
        "src/equiav/data/prepare.py",
        'numbers[split]:06d}.tar", offset)',
        'numbers[split]:06d}.tar", 0)',
        ("tests/data/test_prepare.py::test_clips_behind_the_first_of_a_shard_are_found",),
    ),
    Mutation(
        "shards: clips of a fragment are all its first",
        "src/equiav/data/prepare.py",
        "file.seek(offset)",
        "file.seek(0)",
        ("tests/data/test_prepare.py::test_clips_behind_the_first_of_a_shard_are_found",),
    ),
    Mutation(
        "page: every answer is right",
        "src/equiav/evaluation/retrieval.py",
        "right = j == query if found_at is not None",
        "right = True if found_at is not None",
        ("tests/evaluation/test_retrieval.py::test_examples_say_what_a_slow_count_says",),
    ),
    Mutation(
        "page: every image of a class-paired set is right",
        "src/equiav/evaluation/retrieval.py",
        'bool(set(asked["labels"]) & set(item["labels"]))',
        "True",
        ("tests/evaluation/test_retrieval.py::test_where_only_classes_pair_a_shared_class_is_right",),
    ),
    Mutation(
        "page: confusions as shares of what they were taken for",
        "src/equiav/evaluation/classification.py",
        "total = counts.sum(dim=1)",
        "total = counts.sum(dim=0)",
        ("tests/evaluation/test_classification.py::test_what_is_taken_for_what_is_a_share_of_the_true_class",),
    ),
    Mutation(
        "page: the rank of an example counts from 0",
        "src/equiav/evaluation/retrieval.py",
        '"rank": int(found_at[query])',
        '"rank": int(found_at[query]) - 1',
        ("tests/evaluation/test_retrieval.py::test_examples_say_what_a_slow_count_says",),
    ),
    Mutation(
        "page: the rank shown counts from 0",
        "src/equiav/report/templates/queries.html",
        '"its own, rank " ~ of.rank',
        '"its own, rank " ~ (of.rank - 1)',
        ("tests/evaluation/test_pages.py::test_ranks_and_frames_of_a_retrieval_page",),
    ),
    Mutation(
        "page: a classifier is right if its second guess is",
        "src/equiav/evaluation/classification.py",
        '"right": bool(labels[first[0]] > 0)',
        '"right": bool(labels[first].any())',
        ("tests/evaluation/test_classification.py::test_examples_say_what_was_scored_highest_and_whether_it_is_right",),
    ),
    Mutation(
        "page: every guess of a probe is framed",
        "src/equiav/report/templates/probe.html",
        "example.views[m].right) }}",
        "true) }}",
        ("tests/evaluation/test_pages.py::test_first_guesses_of_a_probe",),
    ),
    Mutation(
        "page: the map under another clip's audio framed as the own one",
        "src/equiav/report/templates/maps.html",
        "titles[name], of.hit)",
        "titles[name], example.maps.sound.hit)",
        ("tests/evaluation/test_pages.py::test_frames_of_a_localisation_page",),
    ),
    Mutation(
        "page: found and listed clips change places",
        "src/equiav/report/templates/macros.html",
        "{{ results.listed.found }} of the {{ results.listed.listed }}",
        "{{ results.listed.listed }} of the {{ results.listed.found }}",
        ("tests/evaluation/test_lists.py::test_localisation",),
    ),
    Mutation(
        "page: results of a search count from 0",
        "src/equiav/search/results.py",
        "        for place, hit in enumerate(hits, start=1)\n    ]",
        "        for place, hit in enumerate(hits)\n    ]",
        ("tests/search/test_pages.py",),
    ),
    Mutation(
        "page: labels of a result are not escaped",
        "src/equiav/report/templates/search.html",
        "<p>{{ hit.labels }}</p>",
        "<p>{{ hit.labels | safe }}</p>",
        ("tests/search/test_pages.py",),
    ),
    Mutation(
        "security: foreign origins are let in",
        "src/equiav/web/security.py",
        'if origins - {f"http://{host}", f"https://{host}"}:',
        "if False:",
        ("tests/web/test_security.py::test_origins",),
    ),
    Mutation(
        "security: any name for this machine is taken",
        "src/equiav/web/security.py",
        "if host_name(host) not in own:",
        "if False:",
        ("tests/web/test_security.py::test_host_names",),
    ),
    Mutation(
        "security: nobody is asked for the token",
        "src/equiav/web/security.py",
        "if not self.access.admits(headers):",
        "if False:",
        ("tests/web/test_security.py::test_token",),
    ),
    Mutation(
        "security: routes that the page does not use are open",
        "src/equiav/web/security.py",
        'if route is None or not route.fullmatch(path) or ".." in path.split("/"):',
        "if route is None:",
        ("tests/web/test_security.py::test_routes_that_the_page_does_not_use",),
    ),
    Mutation(
        "security: shards lie anywhere",
        "src/equiav/data/shards.py",
        "if not SHARD_NAME.fullmatch(name):",
        "if False:",
        ("tests/data/test_shards.py::test_a_shard_has_a_plain_name",),
    ),
    Mutation(
        "security: an index names who gets the token",
        "src/equiav/search/milvus.py",
        'if token or (uri == plain and not is_loopback(urlsplit(uri).hostname or "")):',
        "if False:",
        ("tests/search/test_milvus.py::test_an_index_folder_does_not_choose_who_gets_the_token",),
    ),
    Mutation(
        "security: recipes with aliases expand",
        "src/equiav/config.py",
        'if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:',
        "if False:",
        ("tests/recipes/test_config.py::test_hostile_yaml_is_refused_in_one_line",),
    ),
    Mutation(
        "security: FFmpeg opens all that it knows",
        "src/equiav/media/container.py",
        '        "format_whitelist": CONTAINERS,\n',
        "",
        ("tests/media/test_untrusted.py::test_formats_that_nobody_needs_are_not_opened",),
    ),
    Mutation(
        "security: Pillow opens all that it knows",
        "src/equiav/media/container.py",
        'FORMATS = ("BMP",',
        'FORMATS = ("EPS", "BMP",',
        ("tests/media/test_untrusted.py::test_other_formats_of_pillow_are_not_opened",),
    ),
    Mutation(
        "damage: checkpoints are loaded without a look at their checksums",
        "src/equiav/checkpoint.py",
        "for problem in check_sums(path, names):",
        "for problem in ():",
        ("tests/errors/test_verify.py::test_no_flipped_bit_goes_unnoticed",),
    ),
    Mutation(
        "damage: vectors are used as the disk gives them",
        "src/equiav/search/store.py",
        "part.checked[some[good]] = True",
        "part.checked[some[good]] = True; good[:] = True",
        ("tests/search/test_checksums.py::test_a_damaged_vector_can_be_removed",),
    ),
    Mutation(
        "damage: a name reaches the disk before its bytes",
        "src/equiav/io.py",
        '            for item in [*draft.rglob("*"), draft]:\n',
        "            for item in ():\n",
        ("tests/test_io.py",),
    ),
    Mutation(
        "damage: names of new folders are not synced",
        "src/equiav/io.py",
        "    for path in made if sync else ():\n",
        "    for path in ():\n",
        ("tests/test_io.py",),
    ),
    Mutation(
        "damage: weights for the owner alone",
        "src/equiav/checkpoint.py",
        "shutil.copymode(draft / CONFIG, draft / name)",
        "shutil",
        ("tests/errors/test_low.py::test_what_is_written_can_be_read_by_others",),
    ),
)


def misfits(chosen: tuple[Mutation, ...]) -> list[str]:
    """Mutations whose old text does not stand exactly once in its file, or whose tests are gone."""
    found = []
    for m in chosen:
        path = ROOT / m.file
        times = path.read_text(encoding="utf-8").count(m.old) if path.is_file() else 0
        if times != 1:
            found.append(f"{m.name}: {m.file} holds its old text {times} times")
        for test in m.tests:
            file, _, function = test.partition("::")
            if not (ROOT / file).is_file() or (function and f"def {function}(" not in (ROOT / file).read_text("utf-8")):
                found.append(f"{m.name}: there is no {test}")
    return found


def tested(folder: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Exit code of pytest in the copy, and its last line.

    A fork of this process, which has imported what is slow to import and nothing of `equiav`.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        child = os.fork()
        if child == 0:
            code = 3
            try:
                os.chdir(folder)
                os.environ["PYTHONPATH"] = str(folder / "src")
                sys.path[:0] = [str(folder), str(folder / "src")]
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                code = int(pytest.main(["-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]))
                sys.stdout.flush()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        lines = said.read().strip().splitlines()
    told = [line for line in lines if line.startswith(("FAILED", "ERROR"))] or lines[-1:]
    return code, told[0] if told else ""


def write(path: Path, text: str) -> None:
    """Writes a file with a date of its own: bytecode is cached by seconds, and a file may change twice within one."""
    path.write_text(text, encoding="utf-8")
    now = next(CLOCK)
    os.utime(path, (now, now))


def run(chosen: tuple[Mutation, ...], folder: Path) -> list[str]:
    """Names of the mutations that no test noticed; the tests must pass without any."""
    for name in COPIED:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, folder / name, **({"ignore": shutil.ignore_patterns("__pycache__")} if source.is_dir() else {}))
    code, told = tested(folder, tuple(sorted({test for m in chosen for test in m.tests})))
    if code:
        sys.exit(f"mutations: the tests fail on the tree as it is: {told}")
    unnoticed = []
    for m in chosen:
        path, start = folder / m.file, time.monotonic()
        whole = path.read_text(encoding="utf-8")
        write(path, whole.replace(m.old, m.new))
        code, told = tested(folder, m.tests)
        write(path, whole)
        verdict = {0: "NOT NOTICED", 1: "noticed"}.get(code, f"pytest ended with code {code}")
        if code != 1:
            unnoticed.append(f"{m.name} ({verdict})")
        print(f"{verdict:12} {time.monotonic() - start:5.0f} s  {m.name}  [{told[:110]}]", flush=True)
    return unnoticed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mutations whose name holds one of these")
    parser.add_argument("--list", action="store_true", help="check that they fit the source; run nothing")
    given = parser.parse_args()
    chosen = tuple(m for m in MUTATIONS if not given.words or any(word in m.name for word in given.words))
    if faults := misfits(chosen):
        sys.exit("mutations: adapt the list\n" + "\n".join(faults))
    if given.list:
        print("\n".join(m.name for m in chosen))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in SLOW:
        import_module(name)
    with tempfile.TemporaryDirectory(prefix="equiav-mutations-") as folder:
        unnoticed = run(chosen, Path(folder))
    print(f"{len(chosen) - len(unnoticed)} of {len(chosen)} noticed")
    if unnoticed:
        sys.exit("not noticed:\n" + "\n".join(unnoticed))


if __name__ == "__main__":
    main()
