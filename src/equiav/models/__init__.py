"""The networks of the paper: encoders f, predictor u, heads g; and the way in and out for foreign weights."""
