"""Process what is due: occurrences of schedules, and tasks, Jobs and iterations that can continue."""
