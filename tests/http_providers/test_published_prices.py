"""Published prices, whose library is imported when it is first needed."""

from __future__ import annotations

import subprocess
import sys

AT_ONCE = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from perstack.http_providers.provider import PublishedPrices

began, asked = threading.Event(), threading.Event()

class Slow:
    def find_spec(self, name, path, target=None):
        if name == "genai_prices":
            began.set()
            asked.wait(10)
            time.sleep(0.5)  # meanwhile the other thread has begun its import

def listed():
    began.wait(10)
    asked.set()
    return PublishedPrices("openai").models()

sys.meta_path.insert(0, Slow())
with ThreadPoolExecutor() as pool:
    price, models = pool.submit(PublishedPrices("openai").load), pool.submit(listed)
    assert price.result() and models.result()
"""


def test_threads_that_need_prices_at_once_do_not_lock_each_other_out() -> None:
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
