"""The fuzzer itself: what it reports, and that a case is the same from its seed."""

import random
import sys

import pytest
from tools.corpus import mutated, mutated_text
from tools.fuzz import Corpus, guarded, main, of_files

from equiav.errors import DataError
from equiav.media import Workers


def raising(error):
    raise error


def test_what_counts_as_clean():
    assert guarded(len, "abc") == ("answer", 3)
    assert guarded(raising, DataError("one\nline")) == ("refused", "one\\nline")
    assert guarded(raising, SystemExit(2))[0] == "answer"
    for error, how in (
        (SystemExit(1), "exit"),
        (KeyError("x"), "traceback"),
        (MemoryError(), "memory"),
    ):
        assert guarded(raising, error)[0] == how


def test_changes_come_from_the_seed():
    content = bytes(range(256))
    for seed in range(30):
        assert mutated(content, random.Random(seed)) == mutated(content, random.Random(seed))
        assert mutated_text("a,b\nc,d", random.Random(seed)) == mutated_text("a,b\nc,d", random.Random(seed))
    assert len({mutated(content, random.Random(seed)) for seed in range(30)}) > 20


def test_some_cases_and_a_hole(tmp_path, monkeypatch):
    """A few changed media are used or refused; a reader that fails otherwise is a finding."""
    corpus = Corpus(tmp_path)
    with Workers(1, patience=60.0) as workers:
        assert [of_files("media", corpus, workers, seed) for seed in range(3)] == [None] * 3
        monkeypatch.setattr("tools.fuzz.read_media", int)
        finding = of_files("media", corpus, workers, 0)
    assert (finding.kind, finding.seed) == ("media", 0)
    assert "TypeError" in finding.what


def test_unknown_kinds(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fuzz.py", "--only", "media,dreams"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "no kind dreams" in capsys.readouterr().err
