"""Definition models: Experts, projects, skills and permission rules, and annotations of their keys."""
