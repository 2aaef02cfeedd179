"""Load plugins, and manage the providers, skills, tools and runtimes that they register."""
