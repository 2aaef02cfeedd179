"""perstack.toml: found, read, checked, and made into a `Project`; and what one Run is then started with."""
