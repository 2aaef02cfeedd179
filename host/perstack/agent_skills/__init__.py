"""The part `agent_skills` of `perstack`."""
