"""The part `expert_tests` of `perstack`."""
