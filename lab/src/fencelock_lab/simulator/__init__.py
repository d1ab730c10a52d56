"""The simulator: the library's real flows under a seeded scheduler, in virtual time, against all that goes wrong.

Promise: what decides here is what decides in production: `acquire`, `keep`, `guarding`, `operating`, `admit`, and the
keeper's schedule. What is made up is the world around them: processes that are frozen and killed at any yield, a
network that loses, doubles, delays and reorders, a source that loses what it had not flushed or goes back to a backup,
and resources that are restored. The rules are judged after every step; a seed that breaks one is printed, and replays
exactly:

    python -m fencelock_lab.simulator --seeds 0:5000
    python -m fencelock_lab.simulator --seed 17
"""

from fencelock_lab.simulator.kernel import Violation
from fencelock_lab.simulator.world import SimulatedWorld, SimulationOutcome, simulate

__all__ = ["SimulatedWorld", "SimulationOutcome", "Violation", "simulate"]
