"""Ports: the contracts between the host and its plugins.

Each module is one port: protocols that a plugin implements, the values that cross the boundary, and what both sides
promise. `hooks` lists what a plugin may register.
"""
