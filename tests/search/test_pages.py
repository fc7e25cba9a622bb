"""What a search says about its results, as a table and as a page: places, scores, sides, times, nothing unescaped."""

import re
from html import unescape

from equiav.search import Hit, as_table, write_results
from equiav.types import Clip

HITS = [
    Hit(Clip("a", "dogs & <b>.mp4", start=65.0, seconds=10.5, labels=("dog", "<i>")), 0.8754, "audio", None),
    Hit(Clip("b", "photo.jpg", seconds=0.0), 0.25, "visual", None),
]


def test_a_table():
    header, first, second = (re.split(r"\s{2,}", line) for line in as_table(HITS).splitlines())
    assert header == ["", "score", "by its", "time", "source", "labels", "id"]
    assert first == ["1", "0.875", "sound", "1:05-1:15.5", "dogs & <b>.mp4", "dog, <i>", "a"]
    assert second == ["2", "0.250", "pictures", "photo.jpg", "b"]


def test_a_page(tmp_path):
    write_results(HITS, tmp_path / "page.html", title="Nearest to <a>")
    html = (tmp_path / "page.html").read_text()
    first, second = html.split('<div class="hit">')[1:]
    assert "<b>0.875</b>1. dogs &amp; &lt;b&gt;.mp4" in first
    assert [unescape(t) for t in re.findall(r"<p[^>]*>([^<]*)</p>", first)] == ["dog, <i>", "1:05-1:15.5 by its sound"]
    assert "<b>0.250</b>2. photo.jpg" in second
    assert "by its pictures" in second
    assert "<i>" not in html
    assert "Nearest to &lt;a&gt;" in html
