"""Figures, tables and players as images and self-contained HTML; knows nothing of what is measured."""
