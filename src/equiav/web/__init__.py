"""`equiav serve`: a page on this machine to search a collection and to see where sounds come from.

Modules that need the packages of the extra `web` (api, connections, page, security) are not imported here:
without them `require_packages` still has to say so in one line.
"""

from equiav.web.examples import write_examples
from equiav.web.scenes import demo_index, write_film
from equiav.web.server import listening, own_folder, require_packages, serve, stay_at_home, sweep, swept
from equiav.web.service import Service, UploadLimits, open_collection, spoken
from equiav.web.views import Map, clips_html, film_html, flatten, looks_html, map_html

__all__ = [
    "Map",
    "Service",
    "UploadLimits",
    "clips_html",
    "demo_index",
    "film_html",
    "flatten",
    "listening",
    "looks_html",
    "map_html",
    "open_collection",
    "own_folder",
    "require_packages",
    "serve",
    "spoken",
    "stay_at_home",
    "sweep",
    "swept",
    "write_examples",
    "write_film",
]
