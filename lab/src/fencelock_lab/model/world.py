"""The states of the model: plain values; two states that allow the same steps are equal.

Promise: a state holds everything that the next steps depend on, and of the past only what defines the anomalies. It
holds no time: a lease may end at any moment, a frozen client takes no step, and a lost message is never delivered.
"""

from typing import NamedTuple

from fencelock_lab.model.rules import Anomaly

CLIENTS = "ABC"
SCRIPT = "script"
"""A writer that knows nothing of tokens."""
BLOCK_TOKENS = 2
"""The number of tokens in one block that the source reserves."""
EPOCH_TOKENS = 10
"""The stride of epochs: more tokens than any scene can issue in one."""

Content = tuple[str, ...]
"""The increments in a resource's value, in their order. The value itself is their number."""
UNREAD: Content = ("unread",)


class ModelMark(NamedTuple):
    """The highest token that a resource has promised. `claim` is None if an operator raised the mark."""

    token: int = 0
    claim: str | None = None
    is_closed: bool = False

    def __str__(self) -> str:
        return f"{self.token}{' closed' if self.is_closed else ''}"


class ModelResource(NamedTuple):
    """A guarded counter. `accepted` has the increments that it has acknowledged and no restore has undone."""

    mark: ModelMark = ModelMark()
    content: Content = ()
    accepted: Content = ()


class ModelSource(NamedTuple):
    """The source. `ended` has the claims that must not hold the lock again."""

    counter: int = 0
    bound: int = BLOCK_TOKENS
    holder: str | None = None
    ended: frozenset[str] = frozenset()


class Touch(NamedTuple):
    """The steps of a tenure at one resource. `is_opened` without `is_sealed`: the refusal was only observed."""

    is_opened: bool = False
    is_sealed: bool = False
    is_closed: bool = False
    snapshot: Content = UNREAD
    seen: Content = UNREAD
    reads: int = 0
    sent: int = 0
    answered: int = 0


IDLE, ASKING, HOLDING, LEAVING = "idle", "asking", "holding", "leaving"


class Client(NamedTuple):
    """A process in its present or last tenure. It believes that it holds the lock while HOLDING."""

    name: str
    tenure: int = 0
    phase: str = IDLE
    token: int = 0
    touches: tuple[Touch, ...] = ()

    @property
    def claim(self) -> str:
        """The claim of this tenure."""
        return f"{self.name}{self.tenure}"

    def touching(self, resource: int, touch: Touch) -> "Client":
        """Return this client with another record for a resource."""
        return self._replace(touches=_replaced(self.touches, resource, touch))


ACQUIRE, RELEASE, WRITE, CHECKED = "acquire", "release", "write", "checked write"


class Message(NamedTuple):
    """A message to the source or to a resource. The fields before `token` identify it."""

    kind: str
    client: int
    claim: str
    resource: int = -1
    number: int = 0
    token: int = 0
    was_sealed: bool = False
    seen: tuple[Content, ...] = ()


class Faults(NamedTuple):
    """How many times each fault may still happen."""

    duplicates: int = 0
    source_cuts: int = 0
    source_restores: int = 0
    source_slips: int = 0
    resource_cuts: int = 0
    backups: int = 0
    resource_restores: int = 0
    resource_slips: int = 0
    switches: int = 0
    scripts: int = 0
    breaks: int = 0
    thefts: int = 0
    shown: int = 0
    outsiders: int = 0
    insiders: int = 0
    accidents: int = 0


class Breaking(NamedTuple):
    """An operator who has broken a lease and is sealing the resources."""

    token: int
    sealed: int


class Past(NamedTuple):
    """The part of the past that only the anomalies need."""

    top: int = 0
    reader: int = 0
    gone: frozenset[str] = frozenset()
    admitted: frozenset[tuple[int, str]] = frozenset()


class ModelWorld(NamedTuple):
    """One state. Power cuts and restores affect only the first resource: a cut resets it to `durable`, a restore to
    `backup`.
    """

    source: ModelSource
    resources: tuple[ModelResource, ...]
    clients: tuple[Client, ...]
    faults: Faults
    durable: ModelResource = ModelResource()
    backup: ModelResource = ModelResource()
    messages: tuple[Message, ...] = ()
    is_enforcing: bool = True
    breaking: Breaking | None = None
    past: Past = Past()

    def with_client(self, index: int, client: Client) -> "ModelWorld":
        """Return this state with one client changed."""
        return self._replace(clients=_replaced(self.clients, index, client))

    def with_resource(self, index: int, resource: ModelResource, *, is_flushed: bool = True) -> "ModelWorld":
        """Return this state with one resource changed, on its disk too if that is flushed."""
        resources = _replaced(self.resources, index, resource)
        if index or not is_flushed or not self.faults.resource_cuts:
            return self._replace(resources=resources)
        return self._replace(resources=resources, durable=resource)

    def with_message(self, message: Message) -> "ModelWorld":
        """Return this state with one more message in flight; a second copy of a message changes nothing."""
        if message in self.messages:
            return self
        # Sorted, so that equal states are equal, and the same trace is found in every run.
        return self._replace(messages=tuple(sorted((*self.messages, message), key=_name)))

    def without_message(self, message: Message) -> "ModelWorld":
        """Return this state without a message that was delivered."""
        return self._replace(messages=tuple(one for one in self.messages if one != message))

    def spending(self, fault: str) -> "ModelWorld":
        """Return this state with one fault fewer left."""
        left = getattr(self.faults, fault) - 1
        return self._replace(faults=self.faults._replace(**{fault: left}))


def _replaced(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:index], value, *values[index + 1 :])


def _name(message: Message) -> tuple[str, int, str, int, int]:
    return message[:5]


class Found(NamedTuple):
    """An anomaly, and a sentence with its numbers."""

    anomaly: Anomaly
    detail: str


SENT, CALL, ARRIVAL, EVENT = "sent", "call", "arrival", "event"


class ModelStep(NamedTuple):
    """One step: its actor, the other side, and a text; `how` is one of SENT, CALL, ARRIVAL, EVENT."""

    who: str
    to: str
    text: str
    how: str
    is_refused: bool = False
    found: tuple[Found, ...] = ()


Next = tuple[ModelStep, ModelWorld]


class Scene(NamedTuple):
    """A small world to explore: its numbers of clients and tenures, its faults, and the anomalies that it excludes.

    `is_signed`: its resources require signatures.
    """

    title: str
    promised: tuple[Anomaly, ...]
    clients: int = 2
    tenures: int = 1
    writes: int = 1
    resources: tuple[str, ...] = ("stock",)
    faults: Faults = Faults()
    leaves: bool = False
    is_observed: bool = False
    is_signed: bool = False

    def start(self) -> ModelWorld:
        """Return the first state, before any token and any write."""
        return ModelWorld(
            ModelSource(),
            tuple(ModelResource() for _ in self.resources),
            tuple(Client(name) for name in CLIENTS[: self.clients]),
            self.faults,
            is_enforcing=not self.is_observed,
        )
