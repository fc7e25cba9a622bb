"""Algorithm 1, and by choice every variant of the paper's ablations: model + augmentations + losses in one module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from typing_extensions import assert_never

from equiav.augment import Pipeline, PipelineDraw
from equiav.losses import LossWeights, equiav, equimod, info_nce, nt_xent
from equiav.media import Inputs, normalise
from equiav.models import Chosen, EquiAV, Tokens, draw_tokens, mean_pool
from equiav.randomness import stream
from equiav.types import Batch, LossTerms, Modality

Intra = Literal["equivariant", "invariant", "none"]
Inter = Literal["centroid", "original", "augmented", "equivariant"]
Strategy = Literal["joint", "alternating", "two_stage"]
View = Literal["original", "intra", "second"]  # x as it is, and under either draw
VIEWS: tuple[View, ...] = get_args(View)


@dataclass(frozen=True)
class ModalityDraws:
    """What is drawn for one modality: the augmentation(s) applied, and the vectors t_1..t_S of the centroid."""

    intra: PipelineDraw
    second: PipelineDraw  # the other view of the invariant variant, Eq. (1)
    inter: Float[Tensor, "batch S d_t"]
    tokens: Int[Tensor, "batch views kept"] | None = None  # what encoders see of each view; None: everything

    def rows(self, start: int, stop: int) -> ModalityDraws:
        """The draws of samples `start` up to `stop`."""
        tokens = None if self.tokens is None else self.tokens[start:stop]
        return ModalityDraws(
            self.intra.rows(start, stop), self.second.rows(start, stop), self.inter[start:stop], tokens
        )

    def tokens_of(self, *views: View) -> Chosen | None:
        """The tokens of these views, one view after the other along the batch."""
        return None if self.tokens is None else torch.cat([self.tokens[:, VIEWS.index(view)] for view in views])


@dataclass(frozen=True)
class StepDraws:
    """All randomness of one step, for the global batch."""

    audio: ModalityDraws
    visual: ModalityDraws

    def __getitem__(self, modality: Modality) -> ModalityDraws:
        return self.audio if modality is Modality.AUDIO else self.visual

    def rows(self, start: int, stop: int) -> StepDraws:
        """What one rank or micro-batch takes of it."""
        return StepDraws(self.audio.rows(start, stop), self.visual.rows(start, stop))


def draw_step(
    augment: dict[Modality, Pipeline],
    batch: int,
    count: int,
    seed: int,
    step: int,
    *,
    tokens: Mapping[Modality, int] | None = None,
    keep: float = 1.0,
) -> StepDraws:
    """Draws for a global batch: one stream per purpose, so that no choice of variant disturbs another's numbers.

    Of `tokens`, the number that each encoder makes of an input, the share `keep` is chosen for every view.
    """
    drawn = {}
    for m, pipeline in augment.items():
        rng = stream(seed, step, f"tokens/{m.value}")
        kept = draw_tokens(batch * len(VIEWS), tokens[m], keep, rng) if tokens else None
        drawn[m] = ModalityDraws(
            pipeline.sample(batch, stream(seed, step, f"intra/{m.value}")),
            pipeline.sample(batch, stream(seed, step, f"second/{m.value}")),
            pipeline.vectors(batch, count, stream(seed, step, f"inter/{m.value}")),
            None if kept is None else kept.view(batch, len(VIEWS), -1),
        )
    return StepDraws(drawn[Modality.AUDIO], drawn[Modality.VISUAL])


@dataclass(frozen=True)
class Projections:
    """The embeddings the losses compare, and how far u moves a representation (for the log)."""

    inter_audio: Tensor
    inter_visual: Tensor
    intra_audio: tuple[Tensor, Tensor] | None = None  # (z_hat, z')
    intra_visual: tuple[Tensor, Tensor] | None = None
    displacement: tuple[Tensor, ...] = ()

    def tensors(self) -> list[Tensor]:
        """The embeddings in a fixed order."""
        return [self.inter_audio, self.inter_visual, *(self.intra_audio or ()), *(self.intra_visual or ())]

    def like(self, tensors: Sequence[Tensor]) -> Projections:
        """The same record around other tensors, in the order of `tensors()`."""
        intra_audio = (tensors[2], tensors[3]) if self.intra_audio else None
        intra_visual = (tensors[-2], tensors[-1]) if self.intra_visual else None
        return Projections(tensors[0], tensors[1], intra_audio, intra_visual, self.displacement)


def strategy_weights(weights: LossWeights, strategy: Strategy, step: int, total: int) -> LossWeights:
    """The weights of a step (counted from 1): switched-off terms weigh zero and stay in the graph."""
    match strategy:
        case "joint":
            return weights
        case "alternating":
            intra = step % 2 == 1
        case "two_stage":
            intra = step <= total // 2
        case never:
            assert_never(never)
    if intra:
        return LossWeights(0.0, weights.intra_audio, weights.intra_visual)
    return LossWeights(weights.inter, 0.0, 0.0)


class Objective(nn.Module):
    """Algorithm 1. `forward` gives the embeddings of a batch, `losses` compares them over all processes."""

    def __init__(
        self,
        model: EquiAV,
        augment: dict[Modality, Pipeline],
        inputs: Inputs,
        *,
        intra: Intra = "equivariant",
        inter: Inter = "centroid",
        loss: Literal["nt_xent", "equimod"] = "nt_xent",
        tau: float = 0.07,
    ) -> None:
        super().__init__()
        self.model, self.augment, self.inputs = model, augment, inputs
        self.intra, self.inter, self.tau = intra, inter, tau
        self.intra_loss = nt_xent if loss == "nt_xent" else equimod
        self._freeze_unused()

    def _freeze_unused(self) -> None:
        """Parts that never reach the loss are no parameters of the run (DDP would wait for their gradients)."""
        for branch in (self.model.audio, self.model.visual):
            branch.u.requires_grad_(self.intra == "equivariant")
            branch.g_intra.requires_grad_(self.intra != "none")

    @property
    def tokens(self) -> dict[Modality, int]:
        """How many tokens each encoder makes of an input."""
        return {m: len(self.model[m].f.pos_embed) for m in Modality}

    def _view(self, x: Tensor, m: Modality, draw: PipelineDraw | None = None) -> Tensor:
        """t(x), or x itself, as the encoder wants it."""
        with torch.autocast(x.device.type, enabled=False):
            view = x if draw is None else self.augment[m].apply(x, draw)
            return normalise(view) if m is Modality.VISUAL else view

    def forward(self, batch: Batch, draws: StepDraws) -> Projections:
        """The embeddings of both modalities."""
        # Inputs are made in single precision whatever the networks use: a log-mel energy has no bits to spare.
        with torch.autocast(batch.waveforms.device.type, enabled=False):
            x = {m: self.inputs.before_augmentation(batch, m) for m in Modality}
        audio, visual = (self.one_modality(m, x[m], draws[m]) for m in Modality)
        return Projections(audio[0], visual[0], audio[1], visual[1], (audio[2], visual[2]))

    def one_modality(
        self, m: Modality, x: Tensor, draws: ModalityDraws
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None, Tensor]:
        """The inter-modal embedding, the intra-modal pair, and the displacement of one modality."""
        net = self.model[m]
        match self.intra:
            case "equivariant":
                views = self._view(x, m), self._view(x, m, draws.intra)
                h, h_aug = net.encode_views(*views, draws.tokens_of("original", "intra"))  # Eq. (3)
                t = self.augment[m].encode(draws.intra).to(x.device)
                h_hat = net.u(h, t[:, None])[:, 0]  # Eq. (4)
                pair = (net.g_intra(h_hat), net.augmented(h_aug))  # Eqs. (6), (7)
                moved = 1 - torch.cosine_similarity(h_hat.detach(), mean_pool(h).detach(), dim=1).mean()
                return self._inter(m, h, h_aug, draws), pair, moved
            case "invariant":
                views = self._view(x, m, draws.intra), self._view(x, m, draws.second)
                first, second = net.encode_views(*views, draws.tokens_of("intra", "second"))
                own = self.inter == "original"
                h = net.encode(self._view(x, m), draws.tokens_of("original")) if own else first
                return self._inter(m, h, first, draws), (net.augmented(first), net.augmented(second)), x.new_zeros(())
            case "none":
                drawn = self.inter == "augmented"
                view = self._view(x, m, draws.intra if drawn else None)
                h = net.encode(view, draws.tokens_of("intra" if drawn else "original"))
                return self._inter(m, h, h, draws), None, x.new_zeros(())
            case never:
                assert_never(never)

    def _inter(self, m: Modality, h: Tokens, h_aug: Tokens, draws: ModalityDraws) -> Tensor:
        """The embedding contrasted between modalities."""
        net = self.model[m]
        match self.inter:
            case "centroid":
                return net.inter_centroid(h, draws.inter.to(h.device))  # Eqs. (12), (13)
            case "equivariant":
                return net.inter_centroid(h, draws.inter[:, :1].to(h.device))  # one vector: its centroid is itself
            case "original":
                return net.inter_pooled(h)
            case "augmented":
                return net.inter_pooled(h_aug)
            case never:
                assert_never(never)

    def losses(self, z: Projections, weights: LossWeights) -> LossTerms:
        """The terms of Eq. (16) over the batches of all processes."""
        inter = info_nce(z.inter_audio, z.inter_visual, self.tau)  # Eq. (15)
        zero = inter.new_zeros(())
        intra_audio = self.intra_loss(*z.intra_audio, self.tau) if z.intra_audio else zero  # Eq. (10)
        intra_visual = self.intra_loss(*z.intra_visual, self.tau) if z.intra_visual else zero
        return equiav(inter, intra_audio, intra_visual, weights)
