"""JSON schemas: bounded checks of values, and schemas that can describe a result."""
