"""`equiav serve`: a page on this machine to search a collection and to see where sounds come from."""

from equiav.web.cards import clips_html, looks_html
from equiav.web.clips import clip_routes, sound_as_wav
from equiav.web.examples import write_examples
from equiav.web.limits import UploadLimits, spoken
from equiav.web.map import Map, flatten, map_html
from equiav.web.scenes import demo_index, write_film
from equiav.web.security import Access, Security, stored_bytes
from equiav.web.server import listening, own_folder, require_gradio, serve, stay_at_home, sweep, swept
from equiav.web.service import Service, open_collection

__all__ = [
    "Access",
    "Map",
    "Security",
    "Service",
    "UploadLimits",
    "clip_routes",
    "clips_html",
    "demo_index",
    "flatten",
    "listening",
    "looks_html",
    "map_html",
    "open_collection",
    "own_folder",
    "require_gradio",
    "serve",
    "sound_as_wav",
    "spoken",
    "stay_at_home",
    "stored_bytes",
    "sweep",
    "swept",
    "write_examples",
    "write_film",
]
