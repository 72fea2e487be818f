"""The version of msajax, in one place that can be read without importing the package."""

__version__ = "0.1.0"
