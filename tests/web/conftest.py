"""A small untrained model and the collection that the page makes of its scenes."""

import pytest

from equiav.build import build_model
from equiav.checkpoint import save_model
from equiav.web import Service, UploadLimits, open_collection
from tests.training.small import small_config


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("web") / "run"
    config = small_config("data.test=6")
    save_model(place, config, build_model(config).state_dict(), {"kind": "pretrained"})
    return place


@pytest.fixture(scope="session")
def service(run):
    index, embedder = open_collection(run, None)
    return Service(index, embedder, UploadLimits(megabytes=1, seconds=30.0))


@pytest.fixture(scope="session")
def films(run, service):
    """The films of the collection, in the order of their scenes."""
    return sorted(run.glob("page/*/scenes/*.mp4"))
