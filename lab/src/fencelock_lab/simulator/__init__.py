"""The simulator: it runs the library's real flows under a seeded scheduler, in virtual time, and injects faults.

Promise: the production code makes every decision: `acquire`, `renewal`, `guarding`, `admin`, `admit` and the keeper's
schedule. Only the world around them is simulated: processes freeze and die at any yield; the network loses,
duplicates, delays and reorders messages; the source loses unflushed state or goes back to a backup; and operators
restore resources. The simulator checks the rules after every step. It prints each seed that breaks a rule, and the
seed replays exactly:

    python -m fencelock_lab.simulator --seeds 0:5000
    python -m fencelock_lab.simulator --seed 17
"""

from fencelock_lab.simulator.kernel import Violation
from fencelock_lab.simulator.world import SimulatedWorld, SimulationOutcome, simulate

__all__ = ["SimulatedWorld", "SimulationOutcome", "Violation", "simulate"]
