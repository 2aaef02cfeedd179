"""Tests of Experts: running those that definition files have, in folders and storages of their own."""
