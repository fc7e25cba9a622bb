"""A model to give away: its towers as ONNX, its weights, its recipe and a card, in one folder."""
