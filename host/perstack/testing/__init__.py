"""Test tools: contract suites, in-memory plugins, scripted models, crashing storages, and tests of Experts."""
