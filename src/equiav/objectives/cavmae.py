"""CAV-MAE: masked reconstruction of both modalities together, and contrast between their visible patches."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from equiav.augment import Pipeline
from equiav.losses import cavmae, cavmae_contrast
from equiav.media import Inputs
from equiav.models import CavMae
from equiav.objectives.base import Outputs, collapse_signs
from equiav.objectives.masked import MaskedDraws, ReconstructionObjective, refuse_missing
from equiav.types import AUDIO, VISUAL, Batch, Modality


class CavMaeObjective(ReconstructionObjective):
    """Gong et al. (2023): reconstruction + `contrast_weight` x contrast at `tau`, from the same visible patches.

    `both` contrasts in both directions; the released default lets every image find its sound.
    """

    model: CavMae

    def __init__(
        self,
        model: CavMae,
        inputs: Inputs,
        augment: Mapping[Modality, Pipeline] | None = None,
        *,
        mask_ratio: float = 0.75,
        norm_pix: bool = True,
        contrast_weight: float = 0.01,
        tau: float = 0.05,
        both: bool = False,
    ) -> None:
        super().__init__(model, inputs, augment, mask_ratio=mask_ratio, norm_pix=norm_pix)
        self.contrast_weight, self.tau, self.both = contrast_weight, tau, both

    def forward(self, batch: Batch, draws: MaskedDraws) -> Outputs:
        """`reconstruction/m` as in masked autoencoding; `contrast/m`: the mean over a clip's visible tokens."""
        refuse_missing(batch, self.model.modalities, "CAV-MAE")
        x = {m: self.encoder_input(batch, draws, m) for m in self.model.modalities}
        kept = {m: draws.kept[m].to(batch.device) for m in x}
        found = self.model(x, kept)
        outputs = {f"reconstruction/{m}": self.squares(m, x[m], found.predictions[m], kept[m]) for m in x}
        return outputs | {f"contrast/{m}": found.contrast[m] for m in x}

    def losses(self, outputs: Outputs, step: int, total: int) -> dict[str, Tensor]:
        """reconstruction_audio, reconstruction_visual, contrast, total."""
        terms = self.reconstruction_terms(outputs)
        contrast = cavmae_contrast(outputs[f"contrast/{AUDIO}"], outputs[f"contrast/{VISUAL}"], self.tau, self.both)
        return {
            **{f"reconstruction_{m}": term for m, term in terms.items()},
            "contrast": contrast,
            "total": cavmae(terms, contrast, self.contrast_weight),
        }

    def health(self, outputs: Outputs) -> dict[str, float]:
        """Signs of collapse of what is contrasted."""
        return collapse_signs(outputs, "contrast")
