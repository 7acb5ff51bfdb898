"""A shim for tools that still call it; everything about the project is in pyproject.toml."""

from setuptools import setup

setup()
