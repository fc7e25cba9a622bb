"""CAV-MAE: contrastive audio-visual masked autoencoder, its classifier, and the authors' checkpoints.

Each modality has blocks of its own, then all go through joint blocks: together, with shared norms, for
reconstruction; each alone, with norms of its own, for contrast and retrieval. Modalities are keys, "audio" and
"visual". Nothing is drawn in here: the kept tokens come as an argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from equiav.errors import ShapeError, WeightsError
from equiav.models.classifier import ClassifierModel, Mode, modalities
from equiav.models.encoder import Layered, PatchEmbed, groups_by_block, sincos_positions
from equiav.models.equiav import mean_pool
from equiav.models.foreign import State, refuse_mismatch
from equiav.models.layers import Block, Tokens
from equiav.models.mae import ReconstructingModel, count_blocks, insert_mask_tokens, patchify

CHANNELS = {"audio": 1, "visual": 3}
PREFIX = "module."
FREQUENCY_ROWS = 8  # of released checkpoints: 128 mel bins
HEAD_WIDTH, DECODER_HEAD_WIDTH = 64, 32  # of released models

Embedding = Float[Tensor, "batch width"]
# One entry per modality; they differ in the number of tokens.
ManyTokens = Mapping[str, Float[Tensor, "batch _ width"]]
ManyChosen = Mapping[str, Int[Tensor, "batch _"]]
Inputs = Mapping[str, Float[Tensor, "batch _ _ _"]]


@dataclass(frozen=True)
class CavMaeSizes:
    """Sizes of the model; the defaults are the released ones. `classes` > 0 is a classifier, which has no decoder."""

    width: int = 768
    depth: int = 11  # blocks of each modality
    joint_depth: int = 1
    heads: int = 12
    mlp_ratio: float = 4.0
    decoder_width: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    patch: int = 16
    visual_patch: int | None = None  # of images, where it is another; the authors' models have one size
    frames: int = 1024
    bins: int = 128
    image: int = 224
    classes: int = 0

    @property
    def patches(self) -> dict[str, int]:
        """Side of a patch."""
        return {"audio": self.patch, "visual": self.visual_patch or self.patch}

    @property
    def grids(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of patches; a spectrogram has frequency as rows and time as columns."""
        sides = {"audio": (self.bins, self.frames), "visual": (self.image, self.image)}
        for m, (height, width) in sides.items():
            patch = self.patches[m]
            if height % patch or width % patch or min(height, width) < patch:
                raise ShapeError(f"{m} input of {height} x {width} cannot be cut into patches of {patch}")
        return {m: (height // self.patches[m], width // self.patches[m]) for m, (height, width) in sides.items()}


class ModalityEncoder(nn.Module):
    """One modality up to the joint blocks: patches, positions, modality vector, blocks; and its own final norm."""

    def __init__(self, sizes: CavMaeSizes, modality: str, *, eps: float = 1e-5, train_positions: bool = False) -> None:
        super().__init__()
        self.time_first = modality == "audio"
        self.channels = CHANNELS[modality]
        self.grid = sizes.grids[modality]
        self.patch_embed = PatchEmbed(sizes.patches[modality], self.channels, sizes.width)
        self.pos_embed = nn.Parameter(sincos_positions(sizes.width, *self.grid)[None], requires_grad=train_positions)
        self.modality = nn.Parameter(torch.zeros(1, 1, sizes.width))
        self.blocks = nn.ModuleList(Block(sizes.width, sizes.heads, sizes.mlp_ratio, eps) for _ in range(sizes.depth))
        self.norm = nn.LayerNorm(sizes.width, eps=eps)

    def image(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c rows columns"]:
        """The input as it is cut into patches: spectrograms come time first, (B, 1, T, F), and are transposed."""
        x = x.transpose(2, 3) if self.time_first else x
        size = (self.channels, *(n * self.patch_embed.patch for n in self.grid))
        if x.shape[1:] != size:
            order = "channels, frequency, time" if self.time_first else "channels, height, width"
            raise ShapeError(f"the encoder wants ({order}) = {size}, got {tuple(x.shape[1:])}")
        return x

    def patches(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b tokens values"]:
        """The patches of an input, as a decoder predicts them."""
        return patchify(self.image(x), self.patch_embed.patch)

    def forward(self, x: Float[Tensor, "b c h w"], kept: Int[Tensor, "b kept"] | None = None) -> Tokens:
        """Tokens before the joint blocks, of all patches or of the kept ones, each at its own position."""
        positions = self.pos_embed if kept is None else self.pos_embed[0, kept]
        h = self.patch_embed(self.image(x), kept) + positions + self.modality
        for block in self.blocks:
            h = block(h)
        return h  # type: ignore[no-any-return]


class JointBlock(Block):
    """A block for several modalities: shared norms for all together, norms of its own for each one alone."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, eps: float) -> None:
        super().__init__(width, heads, mlp_ratio, eps)
        self.norm1_alone = nn.ModuleDict({m: nn.LayerNorm(width, eps=eps) for m in CHANNELS})
        self.norm2_alone = nn.ModuleDict({m: nn.LayerNorm(width, eps=eps) for m in CHANNELS})

    def alone(self, x: Tokens, modality: str) -> Tokens:
        """As `forward`, with the norms of one modality."""
        x = x + self.attn(self.norm1_alone[modality](x))
        return x + self.mlp(self.norm2_alone[modality](x))  # type: ignore[no-any-return]


class CavMaeEncoder(Layered):
    """The encoder: `separate` blocks of each modality, `joint` blocks, final norms."""

    def __init__(self, sizes: CavMaeSizes, *, eps: float = 1e-5, train_positions: bool = False) -> None:
        super().__init__()
        self.width = sizes.width
        self.separate = nn.ModuleDict(
            {m: ModalityEncoder(sizes, m, eps=eps, train_positions=train_positions) for m in CHANNELS}
        )
        self.joint = nn.ModuleList(
            JointBlock(sizes.width, sizes.heads, sizes.mlp_ratio, eps) for _ in range(sizes.joint_depth)
        )
        self.norm = nn.LayerNorm(sizes.width, eps=eps)

    def layers(self) -> list[list[str]]:
        """What comes before the blocks, the k-th blocks of all modalities, the joint blocks, the final norms."""
        depth = max(len(own.blocks) for own in self.separate.values())  # type: ignore[arg-type]
        names = [name for name, _ in self.named_parameters()]
        groups: list[list[str]] = [[] for _ in range(depth + 2)]
        for m in self.separate:
            own = f"separate.{m}."
            inside = (name for name in names if name.startswith(own))
            first = tuple(f"{own}{part}" for part in ("patch_embed", "pos_embed", "modality"))
            for group, found in zip(groups, groups_by_block(inside, f"{own}blocks.", depth, first), strict=True):
                group += found
        shared = (name for name in names if not name.startswith("separate."))
        _, *joint, norm = groups_by_block(shared, "joint.", len(self.joint), ())
        return [*groups[:-1], *joint, [*groups[-1], *norm]]

    def together(self, h: ManyTokens) -> dict[str, Tensor]:
        """Joint blocks over the tokens of all modalities, with the shared norms: what reconstruction uses."""
        x = torch.cat(list(h.values()), dim=1)
        for block in self.joint:
            x = block(x)
        return dict(zip(h, self.norm(x).split([v.shape[1] for v in h.values()], dim=1), strict=True))

    def alone(self, modality: str, h: Tokens) -> Tokens:
        """Joint blocks over one modality, with its own norms: what contrast and retrieval use."""
        for block in self.joint:
            h = block.alone(h, modality)  # type: ignore[operator]
        return self.separate[modality].norm(h)  # type: ignore[operator, no-any-return]

    def tokens(self, modality: str, x: Float[Tensor, "b c h w"]) -> Tokens:
        """Tokens of one modality, without masking."""
        return self.alone(modality, self.separate[modality](x))

    def features(self, modality: str, x: Float[Tensor, "batch c h w"]) -> Embedding:
        """Retrieval features: the mean over `tokens`."""
        return self.tokens(modality, x).mean(dim=1)

    def pooled(self, inputs: Inputs) -> Embedding:
        """What is classified: the mean over the tokens of all modalities together, or of the one there is."""
        if len(inputs) == 1:
            ((modality, x),) = inputs.items()
            return self.features(modality, x)
        together = self.together({m: self.separate[m](x) for m, x in inputs.items()})
        return torch.cat(list(together.values()), dim=1).mean(dim=1)


class JointDecoder(nn.Module):
    """Reconstructs the patches of all modalities from their kept tokens, in blocks over both."""

    def __init__(self, sizes: CavMaeSizes, *, eps: float = 1e-5) -> None:
        super().__init__()
        width = sizes.decoder_width
        self.embed = nn.Linear(sizes.width, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.ParameterDict(
            {
                m: nn.Parameter(sincos_positions(width, *grid)[None], requires_grad=False)
                for m, grid in sizes.grids.items()
            }
        )
        self.modality = nn.ParameterDict({m: nn.Parameter(torch.zeros(1, 1, width)) for m in CHANNELS})
        self.blocks = nn.ModuleList(
            Block(width, sizes.decoder_heads, sizes.mlp_ratio, eps) for _ in range(sizes.decoder_depth)
        )
        self.norm = nn.LayerNorm(width, eps=eps)
        self.predict = nn.ModuleDict({m: nn.Linear(width, sizes.patches[m] ** 2 * c) for m, c in CHANNELS.items()})

    def forward(self, h: ManyTokens, kept: ManyChosen) -> dict[str, Tensor]:
        """A prediction (batch, tokens, values) of every patch of every modality, in the order of `patchify`."""
        parts = []
        for m in h:
            positions = self.pos_embed[m] + self.modality[m]
            parts.append(insert_mask_tokens(self.embed(h[m]), kept[m], self.mask_token, positions.shape[1]) + positions)
        x = torch.cat(parts, dim=1)
        for block in self.blocks:
            x = block(x)
        split = self.norm(x).split([part.shape[1] for part in parts], dim=1)
        return {m: self.predict[m](part) for m, part in zip(h, split, strict=True)}


@dataclass(frozen=True)
class CavMaeOutputs:
    """What one masked pass gives the losses, by modality."""

    predictions: dict[str, Tensor]  # (batch, tokens, values)
    contrast: dict[str, Tensor]  # (batch, width), means over the kept tokens


class CavMae(ReconstructingModel):
    """The pre-training model: encoder and decoder. An embedding is the mean over the tokens of one modality."""

    modalities = tuple(CHANNELS)
    joint = True

    def __init__(self, sizes: CavMaeSizes, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.width = sizes.width
        self.encoder = CavMaeEncoder(sizes, eps=eps)
        self.decoder = JointDecoder(sizes, eps=eps)

    def forward(self, inputs: Inputs, kept: ManyChosen) -> CavMaeOutputs:
        """Both tasks from the same kept tokens. Spectrograms are (B, 1, T, F), images (B, 3, H, W)."""
        h = {m: self.encoder.separate[m](x, kept[m]) for m, x in inputs.items()}
        contrast = {m: self.encoder.alone(m, tokens).mean(dim=1) for m, tokens in h.items()}
        return CavMaeOutputs(self.decoder(self.encoder.together(h), kept), contrast)

    def predict(self, inputs: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Both modalities from the kept patches of both."""
        return self(inputs, kept).predictions  # type: ignore[no-any-return]

    def targets(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The patches (batch, tokens, values) that the predictions are compared with."""
        return {m: self.encoder.separate[m].patches(x) for m, x in inputs.items()}  # type: ignore[operator]

    def grids(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of patches."""
        return {m: self.encoder.separate[m].grid for m in CHANNELS}  # type: ignore[misc]

    def channels(self, modality: str) -> int:
        """Of its input."""
        return CHANNELS[modality]

    def encode(self, modality: str, x: Tensor) -> Tokens:
        """Tokens of one modality alone, without masking."""
        return self.encoder.tokens(modality, x)

    def embed_tokens(self, modality: str, h: Tokens, bank: Tensor | None = None) -> Embedding:
        """Retrieval features: the mean over tokens."""
        return mean_pool(h)

    def grid(self, modality: str, x: Tensor, h: Tokens) -> tuple[int, int]:
        """As the encoder says: it takes inputs of one size."""
        return self.grids()[modality]


class CavMaeClassifier(ClassifierModel):
    """The fine-tuning model: encoder, mean over tokens, norm, linear layer; of both modalities or of either one."""

    def __init__(
        self, sizes: CavMaeSizes, *, eps: float = 1e-5, train_positions: bool = True, mode: Mode = "audiovisual"
    ) -> None:
        super().__init__()
        self.modalities, self.classes = modalities(mode), sizes.classes
        self.encoder = CavMaeEncoder(sizes, eps=eps, train_positions=train_positions)
        self.head = nn.Sequential(nn.LayerNorm(sizes.width, eps=eps), nn.Linear(sizes.width, sizes.classes))
        # Parts that never reach the logits are no parameters of a run: DDP would wait for their gradients.
        alone = {m: self.modalities == (m,) for m in CHANNELS}
        for m in CHANNELS:
            if m not in self.modalities:
                self.encoder.separate[m].requires_grad_(False)
            self.encoder.separate[m].norm.requires_grad_(alone[m])
        self.encoder.norm.requires_grad_(not any(alone.values()))
        for block in self.encoder.joint:
            for norm, of_one in ((block.norm1, block.norm1_alone), (block.norm2, block.norm2_alone)):
                norm.requires_grad_(not any(alone.values()))
                for m in CHANNELS:
                    of_one[m].requires_grad_(alone[m])  # type: ignore[index]

    def features(self, inputs: Mapping[str, Tensor], paths: Mapping[str, Tensor] | None = None) -> Embedding:
        """The mean over the tokens of what it looks at; there is no drop path here."""
        if paths:
            raise ShapeError("a CAV-MAE classifier has no drop path")
        given = {m: inputs[m] for m in self.modalities if m in inputs}
        if not given:
            raise ShapeError(f"this classifier needs {' or '.join(self.modalities)} input")
        return self.encoder.pooled(given)

    def encoder_parts(self) -> dict[str, nn.Module]:
        """One for all modalities, of the same name in pre-training."""
        return {"encoder": self.encoder}

    def layers(self) -> list[list[list[str]]]:
        """Those of the encoder, for each modality: the blocks of all have the same numbers."""
        return [[[f"encoder.{name}" for name in group] for group in self.encoder.layers()] for _ in self.modalities]


def cavmae_from_vits(given: State, own: State) -> State:
    """The encoder weights of CAV-MAE that two ViTs (`audio.f.`, `visual.f.`) give; `own` is a `CavMae`'s state.

    The first blocks and the final norms go to each modality, the last blocks to the joint ones: their norms for one
    modality alone from that modality's ViT, all that is shared from the visual one.
    """
    depth = count_blocks(own, "encoder.separate.visual.blocks")
    out: State = {}
    for key, value in given.items():
        m, rest = key.split(".f.", 1)
        part, _, tail = rest.partition(".")
        number = int(tail.split(".")[0]) if part == "blocks" else 0
        if part != "blocks" or number < depth:
            out[f"encoder.separate.{m}.{rest}"] = value
            if part == "norm" and m == "visual":
                out[f"encoder.{rest}"] = value
            continue
        name, _, what = tail.partition(".")[2].partition(".")
        if name.startswith("norm"):
            out[f"encoder.joint.{number - depth}.{name}_alone.{m}.{what}"] = value
        if m == "visual":
            out[f"encoder.joint.{number - depth}.{name}.{what}"] = value
    return out


# Ours, with the modality as its letter -> released.
_NAMES = (
    (r"encoder\.separate\.([av])\.(\w+)", r"\2_\1"),
    (r"encoder\.joint\.(\d+)\.norm([12])_alone\.([av])", r"blocks_u.\1.norm\2_\3"),
    (r"encoder\.joint", r"blocks_u"),
    (r"encoder\.norm", r"norm"),
    (r"decoder\.mask_token", r"mask_token"),
    (r"decoder\.predict\.([av])", r"decoder_pred_\1"),
    (r"decoder\.(pos_embed|modality)\.([av])", r"decoder_\1_\2"),
    (r"decoder\.(embed|blocks|norm)", r"decoder_\1"),
    (r"head", r"mlp_head"),
)
# Released blocks outside the joint ones carry norms for either modality too, which nothing reads.
_UNREAD = re.compile(r"^(blocks_[av]|decoder_blocks)\.\d+\.norm[12](?=\.)")


def released_name(key: str) -> str:
    """The authors' name of a parameter of `CavMae` or `CavMaeClassifier`, without their prefix."""
    short = key.replace(".audio", ".a").replace(".visual", ".v")
    for ours, theirs in _NAMES:
        if found := re.match(rf"{ours}(?=\.|$)", short):
            return found.expand(theirs) + short[found.end() :]
    raise WeightsError(f"{key} has no place in a CAV-MAE checkpoint")


def _renamed(state: State) -> State:
    out: State = {}
    for key, value in state.items():
        name = released_name(key)
        out[name] = value.contiguous()
        if found := _UNREAD.match(name):
            unread = torch.ones_like(value) if name.endswith("weight") else torch.zeros_like(value)
            for letter in ("a", "v"):
                out[f"{found[0]}_{letter}{name[found.end() :]}"] = unread.clone()
    return out


def write_cavmae(state: State) -> State:
    """The weights of `CavMae` or `CavMaeClassifier` as the authors' code stores them, never-read norms included.

    Only a complete state is written. The authors' code takes patches of 16 x 16 and 128 mel bins.
    """
    out = {PREFIX + name: value for name, value in _renamed(state).items()}
    read_cavmae(out)
    return out


def _stripped(state: State) -> State:
    """Names without the prefix, which some files lack."""
    out = {key.removeprefix(PREFIX): value for key, value in state.items()}
    if len(out) < len(state):
        raise WeightsError(f"the CAV-MAE checkpoint holds the same key with and without {PREFIX!r}")
    return out


def kind_of_cavmae(state: State) -> Literal["pretrained", "finetuned"] | None:
    """Which of the authors' two CAV-MAE models wrote these weights; None if neither."""
    names = _stripped(state)
    if "blocks_u.0.attn.qkv.weight" not in names or "patch_embed_a.proj.weight" not in names:
        return None
    return "finetuned" if "mlp_head.1.weight" in names else "pretrained"


def cavmae_sizes(state: State, *, heads: int | None = None, decoder_heads: int | None = None) -> CavMaeSizes:
    """Sizes read off the shapes of a released checkpoint.

    Attention heads leave no trace there: unless given they are 64 wide, in the decoder 32. Spectrograms have eight
    rows of patches and images are square, as in all released models.
    """
    state = _stripped(state)
    finetuned = "mlp_head.1.weight" in state
    try:
        _, tokens_a, width = state["pos_embed_a"].shape
        _, tokens_v, _ = state["pos_embed_v"].shape
        patch = state["patch_embed_v.proj.weight"].shape[3]
        hidden = len(state["blocks_a.0.mlp.fc1.weight"])
        decoder_width = CavMaeSizes.decoder_width if finetuned else len(state["decoder_embed.weight"])
        classes = len(state["mlp_head.1.weight"]) if finetuned else 0
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise WeightsError(
            f"a CAV-MAE checkpoint must hold pos_embed_a, pos_embed_v, patch_embed_v, blocks_a, and decoder_embed or "
            f"mlp_head ({error})"
        ) from error
    side = round(tokens_v**0.5)
    if tokens_a < 1 or tokens_v < 1 or tokens_a % FREQUENCY_ROWS or side**2 != tokens_v:
        raise WeightsError(
            f"pos_embed_a, pos_embed_v hold {tokens_a}, {tokens_v} patches, not {FREQUENCY_ROWS} rows and a square"
        )
    heads = heads or max(1, width // HEAD_WIDTH)
    decoder_heads = decoder_heads or max(1, decoder_width // DECODER_HEAD_WIDTH)
    for what, wide, count in (("pos_embed_a", width, heads), ("decoder_embed", decoder_width, decoder_heads)):
        if wide < 4 or wide % 4 or wide % count:
            raise WeightsError(f"{what} is {wide} wide, which does not divide into 4 and {count} attention heads")
    return CavMaeSizes(
        width=width,
        depth=max(count_blocks(state, "blocks_a"), count_blocks(state, "blocks_v")),
        joint_depth=count_blocks(state, "blocks_u"),
        heads=heads,
        mlp_ratio=hidden / width,
        decoder_width=decoder_width,
        decoder_depth=count_blocks(state, "decoder_blocks"),
        decoder_heads=decoder_heads,
        patch=patch,
        frames=tokens_a // FREQUENCY_ROWS * patch,
        bins=FREQUENCY_ROWS * patch,
        image=side * patch,
        classes=classes,
    )


def read_cavmae(state: State) -> State:
    """A released checkpoint under the names of `CavMae`, or of `CavMaeClassifier` if it has a head, strictly.

    The inverse of `write_cavmae`, but for the norms that nothing reads: they must be there and are dropped.
    """
    sizes = cavmae_sizes(state, heads=1, decoder_heads=1)
    with torch.device("meta"):
        model = CavMaeClassifier(sizes) if sizes.classes else CavMae(sizes)
    given, ours = _stripped(state), model.state_dict()
    refuse_mismatch(given, _renamed(ours), "the CAV-MAE checkpoint")
    return {key: given[released_name(key)] for key in ours}
