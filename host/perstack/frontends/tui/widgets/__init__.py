"""Widgets: thin, over what `view` makes."""
