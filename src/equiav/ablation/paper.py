"""Every table, figure and algorithm of the paper, in its order, and what regenerates it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """A numbered thing of the paper: `table` names its file in configs/ablation, else `how` says what stands for it."""

    number: str
    subject: str
    table: str | None = None
    commands: tuple[str, ...] = ()
    how: str = ""


ITEMS = (
    Item(
        "Figure 1",
        "the idea of equivariance in both latent spaces",
        how="An illustration. Its claim can be measured on any checkpoint: how well the predictor follows each "
        "augmentation, and how near the centroid is to the mean of really augmented inputs. "
        "Measured here: [Does the predictor follow](equivariance.md).",
        commands=("equiav evaluate equivariance runs/demo",),
    ),
    Item(
        "Figure 2",
        "overview of the framework",
        how="An illustration; the same way of the data is `Objective.one_modality` in "
        "`src/equiav/training/objectives.py`, and PAPER.md maps every symbol and equation to it.",
    ),
    Item(
        "Algorithm 1",
        "EquiAV, pseudocode of training",
        how="`src/equiav/training/objectives.py` is that loop; `tests/paper/test_equations.py` and "
        "`tests/training/test_objectives.py` hold it to the letters.",
        commands=("equiav pretrain configs/pretrain/world.yaml",),
    ),
    Item("Table 1", "audio-visual event classification", "classification"),
    Item("Table 2", "audio classification", "single_audio"),
    Item("Table 3", "action recognition", "single_visual"),
    Item("Table 4", "zero-shot retrieval", "retrieval"),
    Item("Table 5", "variants of pre-training", "variants"),
    Item("Table 6", "number of representations", "representations"),
    Item("Table 7", "architecture of the predictor", "predictor"),
    Item(
        "Figure 3",
        "localisation on the original and on the picture nearest to the centroid",
        how="1,000 vectors are drawn, the equivariant embedding nearest to the centroid is taken, its transformation "
        "is applied to the picture, and both localisations are shown side by side; for any clip and checkpoint. "
        "Measured here: [Where the sound comes from](localisation.md).",
        commands=("equiav localise runs/demo my_video.mp4 --nearest",),
    ),
    Item("Table 8", "training strategy", "strategy"),
    Item("Table 9", "intra-modal loss", "intra_loss"),
    Item("Table A", "weights of the loss terms", "weights"),
    Item("Table B", "computation cost of the representations", "cost"),
    Item("Table C", "size of the pre-training data", "data_size"),
    Item(
        "Appendix B",
        "gradients of the two intra-modal losses",
        how="Eqs. (C) to (F) are checked in closed form by `test_closed_form_gradients_of_the_appendix` in "
        "`tests/paper/test_equations.py`.",
    ),
    Item(
        "Table D",
        "hyperparameters",
        how="Each column is a whole recipe: `configs/pretrain/audioset2m.yaml`, and one under `configs/finetune/` per "
        "dataset; the tests compare them with the paper's values.",
    ),
    Item("Follow-up 1", "training length, for the order of Table 5", "length"),
    Item("Follow-up 2", "the main rows on real data", "real"),
    Item("Follow-up 3", "learning rate, on the validation split", "rate"),
    Item("Follow-up 4", "the main rows with intra-modal terms of half the weight, on fresh seeds", "lighter"),
)
