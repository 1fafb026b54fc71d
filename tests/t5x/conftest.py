"""Warnings of T5X's own dependencies, which do not concern this project."""

import pytest

# Event loops that Orbax and TensorStore never close; they are collected during some later test.
UNCLOSED = [
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning",
    "ignore:Exception ignored in. <function BaseEventLoop:pytest.PytestUnraisableExceptionWarning",
]


def pytest_collection_modifyitems(items):
    here = __file__.removesuffix("conftest.py")
    for item in items:
        if str(item.path).startswith(here):
            for warning in UNCLOSED:
                item.add_marker(pytest.mark.filterwarnings(warning))
