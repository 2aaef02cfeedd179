"""The version of this package, also its metadata's."""

VERSION = "0.1.0"
