"""Provider `anthropic`: Anthropic's Messages API and compatible servers."""
