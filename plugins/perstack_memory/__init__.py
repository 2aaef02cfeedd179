"""Skill `@perstack/execution-memory`: an Expert keeps tasks that outlive its Job."""
