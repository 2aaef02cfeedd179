"""Provider `anthropic`: Anthropic's Messages API, and servers compatible with it."""
