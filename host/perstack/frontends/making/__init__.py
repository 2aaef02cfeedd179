"""Definitions of Experts, made and improved by Experts."""
