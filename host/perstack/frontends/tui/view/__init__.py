"""What is shown, as values: events folded to lines of styled text. Knows nothing of Textual, and is tested without."""
