"""Recordings: a Job kept as one file, from which the same is played again without a model, a server or a person."""
