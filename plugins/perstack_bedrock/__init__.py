"""Provider `amazon-bedrock`: the Converse API for every model, and Anthropic's own format for Claude."""
