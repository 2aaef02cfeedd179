"""For skills and evaluators that start programs: how one starts and ends, and what it gets of the environment."""
