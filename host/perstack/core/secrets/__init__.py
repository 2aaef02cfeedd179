"""Secrets in texts: where they are, and what is recorded and shown in their place.

`names` knows which names have a secret as their value, `recognition` finds the spans of secrets in any text, and
`masking` replaces them: by a digest in what is recorded (`core.definitions.secrets` finds the value again by it), by
`[redacted]`, or by the number that `engine.plugins.secret_vault` gives each value in a Run with `maskSecrets`.
"""
