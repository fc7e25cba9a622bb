"""Algorithm 1, and by choice every variant of the paper's ablations: model + augmentations + losses in one module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import assert_never

from equiav.augment import Pipeline, PipelineDraw
from equiav.distributed import gather
from equiav.losses import IntraLoss, equiav, info_nce, nt_xent
from equiav.media import Inputs, prepare_batch
from equiav.models import Chosen, EquiAV, Tokens, draw_tokens, mean_pool
from equiav.objectives.base import LOG, Draws, Objective, Outputs, collapse_signs
from equiav.randomness import generator
from equiav.types import Batch, Modality

Intra = Literal["equivariant", "invariant", "none"]
Inter = Literal["centroid", "original", "augmented", "equivariant"]
Strategy = Literal["joint", "alternating", "two_stage"]
View = Literal["original", "intra", "second"]  # x as it is, and under either draw
VIEWS: tuple[View, ...] = get_args(View)
STORED_VIEW = "/view"  # behind a modality: h' of a batch that holds tokens in place of inputs, pooled


@dataclass(frozen=True)
class ModalityDraws(Draws):
    """What is drawn for one modality: the augmentation(s) applied, and the vectors t_1..t_S of the centroid."""

    intra: PipelineDraw
    second: PipelineDraw  # the other view of the invariant variant, Eq. (1)
    inter: Float[Tensor, "batch S d_t"]
    tokens: Int[Tensor, "batch views kept"] | None = None  # what encoders see of each view; None: everything

    def tokens_of(self, *views: View) -> Chosen | None:
        """The tokens of these views, one view after the other along the batch."""
        return None if self.tokens is None else torch.cat([self.tokens[:, VIEWS.index(view)] for view in views])


@dataclass(frozen=True)
class StepDraws(Draws):
    """All randomness of one step by modality, for the global batch."""

    of: Mapping[Modality, ModalityDraws]

    def __getitem__(self, modality: Modality) -> ModalityDraws:
        return self.of[modality]


def strategy_weights(weights: Mapping[str, float], strategy: Strategy, step: int, total: int) -> dict[str, float]:
    """The weights of a step (counted from 1): switched-off terms weigh zero and stay in the graph."""
    match strategy:
        case "joint":
            return dict(weights)
        case "alternating":
            intra = step % 2 == 1
        case "two_stage":
            intra = step <= total // 2
        case never:
            assert_never(never)
    return {name: value if name.startswith("intra") == intra else 0.0 for name, value in weights.items()}


class EquiAVObjective(Objective):
    """Algorithm 1: intra-modal equivariance, and contrast between the centroids of every pair of modalities.

    Args:
        model: one branch per modality.
        augment: the augmentation pipelines by modality.
        inputs: how raw inputs become encoder inputs, by modality.
        intra: what is learnt within a modality; the default is the paper's.
        inter: what is contrasted between two modalities; the default is the paper's.
        loss: the intra-modal loss, a function of (z_hat, z', tau).
        weights: the lambdas of Eq. (16) by term: inter, intra_audio, ...; terms that are not named weigh 1.
        representations: S, the number of vectors in a centroid.
        keep_tokens: share of the tokens that encoders see in training.
    """

    model: EquiAV

    def __init__(
        self,
        model: EquiAV,
        augment: Mapping[Modality, Pipeline],
        inputs: Inputs,
        *,
        intra: Intra = "equivariant",
        inter: Inter = "centroid",
        loss: IntraLoss = nt_xent,
        tau: float = 0.07,
        weights: Mapping[str, float] | None = None,
        strategy: Strategy = "joint",
        representations: int = 16,
        keep_tokens: float = 1.0,
    ) -> None:
        super().__init__()
        self.model, self.augment, self.inputs = model, augment, inputs
        self.intra, self.inter, self.loss, self.tau = intra, inter, loss, tau
        self.weights, self.strategy = dict(weights or {}), strategy
        self.representations, self.keep_tokens = representations, keep_tokens
        # Parts that never reach the loss are no parameters of the run: DDP would wait for their gradients.
        for branch in (model[m] for m in model.modalities):
            branch.u.requires_grad_(intra == "equivariant")
            branch.g_intra.requires_grad_(intra != "none")

    def draw(self, count: int, seed: int, step: int) -> StepDraws:
        """One generator per purpose, so that no choice of variant disturbs another's numbers."""
        drawn = {}
        for m in self.model.modalities:
            pipeline = self.augment[m]
            rng = generator(seed, step, f"tokens/{m}")
            kept = draw_tokens(count * len(VIEWS), self.model[m].f.tokens, self.keep_tokens, rng)
            drawn[m] = ModalityDraws(
                pipeline.sample(count, generator(seed, step, f"intra/{m}")),
                pipeline.sample(count, generator(seed, step, f"second/{m}")),
                pipeline.vectors(count, self.representations, generator(seed, step, f"inter/{m}")),
                None if kept is None else kept.view(count, len(VIEWS), -1),
            )
        return StepDraws(drawn)

    def _input(self, batch: Batch, m: Modality) -> Tensor:
        """What augmentations act on; or h itself, of a batch from a token store."""
        return batch.inputs[m].float() if m + STORED_VIEW in batch.inputs else prepare_batch(self.inputs, batch, m)

    def view(self, x: Tensor, m: Modality, draw: PipelineDraw | None = None) -> Tensor:
        """t(x), or x itself, as the encoder takes it."""
        with torch.autocast(x.device.type, enabled=False):
            return self.inputs[m].finish(x if draw is None else self.augment[m].apply(x, draw))

    def forward(self, batch: Batch, draws: StepDraws) -> Outputs:
        """`inter/m`: the embedding contrasted between modalities; `intra/m/...`: the pair z_hat, z' within one."""
        # Inputs are made in single precision whatever the networks use: a log-mel energy has no bits to spare.
        with torch.autocast(batch.device.type, enabled=False):
            x = {m: self._input(batch, m) for m in self.model.modalities}
        views = {m: batch.inputs.get(m + STORED_VIEW) for m in self.model.modalities}
        parts = {m: self.one_modality(m, x[m], draws[m], views[m]) for m in self.model.modalities}
        outputs = {f"inter/{m}": z_bar for m, (z_bar, _, _) in parts.items()}
        for m, (_, pair, _) in parts.items():
            if pair is not None:
                outputs[f"intra/{m}/predicted"], outputs[f"intra/{m}/augmented"] = pair
        return outputs | {f"{LOG}displacement/{m}": moved for m, (_, _, moved) in parts.items()}

    def one_modality(
        self, m: Modality, x: Tensor, draws: ModalityDraws, stored: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None, Float[Tensor, " batch"]]:
        """The inter-modal embedding, the intra-modal pair, and how far u moved each representation.

        With `stored`, the pooled h' of frozen encoders, x is h.
        """
        net = self.model[m]
        still = x.new_zeros(len(x))
        match self.intra:
            case "equivariant":
                if stored is None:
                    views = self.view(x, m), self.view(x, m, draws.intra)
                    h, h_aug = net.f.views(*views, draws.tokens_of("original", "intra"))  # Eq. (3)
                else:
                    h, h_aug = x, stored
                t = self.augment[m].encode(draws.intra).to(x.device)
                h_hat = net.u(h, t[:, None])[:, 0]  # Eq. (4)
                pair = (net.g_intra(h_hat), net.augmented(h_aug))  # Eqs. (6), (7)
                moved = 1 - torch.cosine_similarity(h_hat.detach(), mean_pool(h).detach(), dim=1)
                return self._inter(m, h, h_aug, draws), pair, moved
            case "invariant":
                views = self.view(x, m, draws.intra), self.view(x, m, draws.second)
                first, second = net.f.views(*views, draws.tokens_of("intra", "second"))
                own = self.inter == "original"
                h = net.encode(self.view(x, m), draws.tokens_of("original")) if own else first
                return self._inter(m, h, first, draws), (net.augmented(first), net.augmented(second)), still
            case "none":
                drawn = self.inter == "augmented"
                if stored is None:
                    view = self.view(x, m, draws.intra if drawn else None)
                    h = net.encode(view, draws.tokens_of("intra" if drawn else "original"))
                else:
                    h = stored if drawn else x
                return self._inter(m, h, h, draws), None, still
            case never:
                assert_never(never)

    def _inter(
        self, m: Modality, h: Tokens, h_aug: Float[Tensor, "batch others width"], draws: ModalityDraws
    ) -> Tensor:
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

    def inter_loss(self, outputs: Outputs, a: Modality, b: Modality) -> Tensor:
        """Eq. (15) between two modalities."""
        return info_nce(outputs[f"inter/{a}"], outputs[f"inter/{b}"], self.tau)

    def intra_loss(self, outputs: Outputs, m: Modality) -> Tensor:
        """Eq. (10) within a modality, or the loss that was chosen in its place."""
        return self.loss(outputs[f"intra/{m}/predicted"], outputs[f"intra/{m}/augmented"], self.tau)

    def losses(self, outputs: Outputs, step: int, total: int) -> dict[str, Tensor]:
        """The terms of Eq. (16) over the batches of all processes: inter, intra_audio, intra_visual, total.

        With more than two modalities there is an inter-modal term for each pair, inter_audio_visual and so on.
        """
        modalities = self.model.modalities
        terms: dict[str, Tensor] = {}
        for a, b in combinations(modalities, 2):
            terms["inter" if len(modalities) == 2 else f"inter_{a}_{b}"] = self.inter_loss(outputs, a, b)
        zero = next(iter(terms.values())).new_zeros(())
        for m in modalities:
            terms[f"intra_{m}"] = self.intra_loss(outputs, m) if f"intra/{m}/predicted" in outputs else zero
        weights = {name: self.weights.get(name, self.weights.get(name.split("_")[0], 1.0)) for name in terms}
        return {**terms, "total": equiav(terms, strategy_weights(weights, self.strategy, step, total))}

    def health(self, outputs: Outputs) -> dict[str, float]:
        """Signs of collapse of the embeddings, and how far u moves a representation."""
        values = collapse_signs(outputs, "inter")
        for m in self.model.modalities:
            values[f"displacement_{m}"] = float(gather(outputs[f"{LOG}displacement/{m}"].float()).mean())
        return values
