"""Providers `openai`, `deepseek`, `azure-openai` and `ollama`: OpenAI's APIs and compatible servers."""
