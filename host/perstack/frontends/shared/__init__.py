"""What several front doors use: words for a state, forms, signals, lines over stdin and stdout."""
