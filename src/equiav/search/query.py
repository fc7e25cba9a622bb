"""Questions to an index: a sound, a picture or a video as the vector to look for."""

from __future__ import annotations

from equiav.errors import DataError
from equiav.inference import Embedder
from equiav.inference.items import Picture, Sound, Video
from equiav.search.records import Query


def ask(
    embedder: Embedder,
    *,
    audio: Sound | None = None,
    image: Picture | None = None,
    video: Video | None = None,
    start: float = 0.0,
) -> Query:
    """One of a sound, a picture or a video (path or array) as a query; `start` is where in it to begin, in seconds.

    Of a long file one window counts: the first 10 s from `start`, or as much as the model hears.
    """
    given = [name for name, item in (("audio", audio), ("image", image), ("video", video)) if item is not None]
    if len(given) != 1:
        raise DataError(f"give one of a sound, a picture or a video, not {' and '.join(given) or 'none'}")
    if audio is not None:
        return Query("audio", embedder.audio(audio, start=start), embedder.digest)
    if image is not None:
        return Query("image", embedder.image(image, start=start), embedder.digest)
    assert video is not None
    return Query("video", embedder.video(video, start=start), embedder.digest)
