"""Skill `@perstack/execution-memory`, with which an Expert keeps tasks that outlive its Job."""
