"""What the providers that speak HTTP share: connections, errors, settings, and parts of messages."""
