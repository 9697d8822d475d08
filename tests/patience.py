"""How long a test waits for what must come: long enough for a machine that is busy with ten other things.

No test's outcome may depend on how fast the machine is. What must happen at once is tested by what would otherwise never
happen, or by counting; what has not happened after this many seconds hangs.
"""

from __future__ import annotations

PATIENCE = 900.0  # seconds
