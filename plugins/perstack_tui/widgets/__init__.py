"""Widgets: thin layers that draw the lines and items of `view`."""
