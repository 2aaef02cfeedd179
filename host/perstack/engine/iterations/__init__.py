"""Drive series of iterations: run an Expert, measure its result, and repeat until it is good enough."""
