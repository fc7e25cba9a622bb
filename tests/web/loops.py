"""Coroutines in tests, wherever the tests run."""

import asyncio
from concurrent.futures import ThreadPoolExecutor


def awaited(coroutine):
    """The result of a coroutine. In this thread, a browser of other tests may keep a loop running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
