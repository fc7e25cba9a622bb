"""The sections of a recipe: groups of keys with their ranges and defaults, each checked on its own."""
