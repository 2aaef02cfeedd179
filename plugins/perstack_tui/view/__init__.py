"""The displayed content as values: events folded into lines of styled text, without Textual."""
