"""Pre-training: objectives, schedule, optimiser, trainer, logs."""
