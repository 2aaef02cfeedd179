"""Provider `openai`: OpenAI's Chat Completions, and the many servers compatible with it."""
