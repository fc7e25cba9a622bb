"""Evaluations: callables on a model and a dataset, with a primary metric and plain results."""

from equiav.evaluation.base import REPORT, RESULTS, Evaluator, Results, evaluation_folder
from equiav.evaluation.classification import classification_metrics
from equiav.evaluation.classifying import Classified, classify_dataset
from equiav.evaluation.embed import embed_dataset, embed_with_banks, read_tokens
from equiav.evaluation.retrieval import (
    Retrieval,
    both_ranks,
    chance,
    class_metrics,
    class_scores,
    direction,
    rank_metrics,
    ranks,
    retrieval_metrics,
)

__all__ = [
    "REPORT",
    "RESULTS",
    "Classified",
    "Evaluator",
    "Results",
    "Retrieval",
    "both_ranks",
    "chance",
    "class_metrics",
    "class_scores",
    "classification_metrics",
    "classify_dataset",
    "direction",
    "embed_dataset",
    "embed_with_banks",
    "evaluation_folder",
    "rank_metrics",
    "ranks",
    "read_tokens",
    "retrieval_metrics",
]
