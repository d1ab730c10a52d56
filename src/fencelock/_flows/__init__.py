"""The lock's logic, once, for every store and for sync and async alike: generators that do no I/O.

A flow is a generator. It yields requests (`requests.py`), is sent replies, and returns its result. It reads no clock,
starts no thread and opens nothing: a driver does, and the simulator does it in virtual time. The contract between the
two:

- one request is one round trip and one transaction at the source; the reply is sent back into the flow;
- whatever goes wrong is thrown into the flow at its yield, as an error of the tree or a BaseException from outside;
- OutcomeUnknownError thrown in means that the request may have taken effect: the flow repeats it under the same claim;
- a flow that is interrupted leaves its claim in its `Attempt`, and whoever ran it hands that to the keeper to abandon.
"""
