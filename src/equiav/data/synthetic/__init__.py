"""The generated world: clips of known truth, drawn and sounded from a seed."""

from equiav.data.synthetic.objects import HUES, KINDS, PITCHES, RADII, TEMPI, Scene, SceneObject
from equiav.data.synthetic.world import Difficulty, World

__all__ = [
    "HUES",
    "KINDS",
    "PITCHES",
    "RADII",
    "TEMPI",
    "Difficulty",
    "Scene",
    "SceneObject",
    "World",
]
