"""A classifier on a whole set: scores of every clip, gathered from all processes, and the metrics of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from equiav.data import LabelledClips, evaluation_batches
from equiav.distributed import everyone, own_share
from equiav.evaluation.classification import ClassificationMetrics, classification_metrics
from equiav.media import Inputs, normalise
from equiav.models import Classifier
from equiav.types import Modality


@dataclass(frozen=True)
class Classified:
    """Scores and truth of every clip of a set, in its order.

    Scores are logits; where each clip has one class, logarithms of probabilities: only they compare between clips.
    """

    scores: Float[Tensor, "n classes"]
    labels: Float[Tensor, "n classes"]

    def metrics(self) -> ClassificationMetrics:
        """mAP, accuracy, d' and the rest."""
        return classification_metrics(self.scores, self.labels)


@torch.inference_mode()
def classify_dataset(
    classifier: Classifier,
    clips: LabelledClips,
    inputs: Inputs,
    *,
    single: bool,
    batch: int = 64,
    all_frames: bool = False,
) -> Classified:
    """Scores of every clip, each process doing a share and all getting the whole; nothing dropped or padded.

    `single`: the classifier was trained to choose one class (cross-entropy). The picture is the middle frame, or with
    `all_frames` every frame in turn, and the scores are averaged.
    """
    device = next(classifier.parameters()).device
    first, last = own_share(len(clips))
    training = classifier.training
    classifier.eval()
    frames = list(range(clips.frames)) if all_frames and Modality.VISUAL in clips.wanted else [None]
    looks = []
    for frame in frames:
        parts = []
        for loaded in evaluation_batches(clips, batch=batch, first=first, last=last, frame=frame):
            given = {m: inputs.before_augmentation(loaded.to(device), m) for m in clips.wanted}
            x = {m: normalise(v) if m is Modality.VISUAL else v for m, v in given.items()}
            logits = classifier(x).float().cpu()
            parts.append(logits.log_softmax(dim=1) if single else logits)
        looks.append(torch.cat(everyone(parts)))
    classifier.train(training)
    scores = torch.stack(looks).mean(dim=0) if len(looks) > 1 else looks[0]
    # Clones are ordinary tensors, free of inference mode.
    return Classified(scores.clone(), clips.targets.rows(range(len(clips))))
