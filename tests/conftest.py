"""Settings of all tests.

In CI property tests try the same examples in every run, elsewhere new ones. A shell that starts the tests in the
background has them ignore Ctrl-C, and so would every process that they start and interrupt: here it is heard again.
"""

from __future__ import annotations

import os
import signal

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
