"""An index of clips by their embeddings, and searching it with a sound, a picture, a video or another clip."""
