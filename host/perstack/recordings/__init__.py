"""Recordings of Jobs: made from events, and played in place of models, servers and people."""
