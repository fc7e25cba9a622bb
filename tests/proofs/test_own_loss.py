"""An intra-modal loss of one's own, in one file; unknown names are refused, never taken for another."""

import pytest
import torch
import torch.nn.functional as F

from equiav.build import build_intra_loss
from equiav.errors import ConfigError
from equiav.training import Trainer
from tests.training.small import small_config


def pull(z_hat, z_aug, tau):
    """The mean distance of pairs on the sphere, over the temperature."""
    return (1 - F.cosine_similarity(z_hat, z_aug)).mean() / tau


def test_a_loss_of_ones_own_is_used(tmp_path):
    config = small_config(f"objective.loss={__name__}:pull", "train.steps=2", "train.evaluate_every=null")
    trainer = Trainer(config, tmp_path, str)
    assert trainer.objective.loss is pull
    trainer.run()
    z = torch.eye(4)
    assert float(build_intra_loss(f"{__name__}:pull")(z, z, 0.5)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("key", ["objective.loss", "objective.kind", "model.predictor.kind", "model.encoder.kind"])
def test_an_unknown_name_is_refused(key):
    with pytest.raises(ConfigError, match="nt_xentt"):
        small_config(f"{key}=nt_xentt")
