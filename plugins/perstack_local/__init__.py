"""Provider `local`: an embedded model, with no key and no network."""
