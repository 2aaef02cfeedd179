"""Apply permission rules to calls of tools, and keep track of what a person has agreed to execute."""
