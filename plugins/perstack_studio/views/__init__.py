"""The pages: each module has `pages`, which returns its routes, and a template of its name."""
