"""Augmentations as objects that draw, encode and apply; batched, on any device, randomness as an argument."""
