"""Messages to and from a model: their parts, media and limits, and what a model's endpoint was found to refuse."""
