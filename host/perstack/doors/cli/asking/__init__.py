"""Ask a person at the terminal: `person` shows the question and reads the answer, `typed_keys` reads single keys."""
