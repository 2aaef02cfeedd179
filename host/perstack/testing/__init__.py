"""Test tools: contract suites, in-memory plugins, scripted models, crashes, and tests of Experts."""
