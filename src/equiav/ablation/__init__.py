"""The paper's experiments as files that run: tables of rows over one recipe, their runs, statistics and rendering."""
