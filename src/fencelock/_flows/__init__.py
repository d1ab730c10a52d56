"""The logic of locks and guards, once for every store and for sync and async alike: generators that do no I/O.

A flow is a generator. It yields requests of `fencelock.protocol`, is sent replies, and returns its result. It reads no
clock, starts no thread and opens nothing: a driver does that, and the simulator does it in virtual time. The contract
between a flow and its driver:

- one request is one round trip and one transaction at the source; the driver sends the reply back into the flow;
- the driver throws every exception into the flow at its yield: an error of fencelock's, or a BaseException;
- OutcomeUnknownError means that the request may have taken effect: the flow repeats it under the same claim;
- an interrupted flow leaves its claim in its `Attempt`, and the caller of the driver has the keeper abandon it.
"""
