"""The version, in a module of its own: what writes it into files need not import the whole package."""

__version__ = "0.1.0"
