"""Widgets: thin layers that draw what `view` makes."""
