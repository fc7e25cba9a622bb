"""Media in: decoding, clips, spectrograms, pictures."""
