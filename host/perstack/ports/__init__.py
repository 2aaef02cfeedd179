"""Ports: the contracts between the host and its plugins.

Each module is one port: protocols that a plugin implements, the values that cross the boundary, and what both sides
promise. `hooks` lists what a plugin may register.
"""

PLUGIN_API = 1
"""Version of the hooks, the ports and their meaning.

A plugin declares the version it was written for, `PLUGIN_API = 1` in its module. A host with another one refuses it.
"""
