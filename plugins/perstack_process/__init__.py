"""What the plugins that start programs share: how one starts and ends, and what it gets of the environment."""
