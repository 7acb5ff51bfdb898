"""The orders topic of the IO managers' tests."""

from __future__ import annotations

from kpipe_platform_tests.io_managers.conftest import instance, make_orders, orders

__all__ = ["instance", "make_orders", "orders"]
