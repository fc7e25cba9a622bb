"""The losses of the paper as functions of embeddings."""
