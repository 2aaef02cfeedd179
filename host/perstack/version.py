"""The version of this package and of its metadata."""

VERSION = "0.1.0"
