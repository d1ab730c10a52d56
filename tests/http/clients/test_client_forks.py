"""Clients of a lease in forked processes, which have its sequencer only."""

import subprocess
import sys
import threading

from tests.http.clients.scripted import Answer, ScriptedService

LIMIT_S = 60
BEGIN = """
import os, sys, threading

import requests

import fencelock
import fencelock.http

url = sys.argv[1]
sequencer = fencelock.Sequencer("source", "history", "nightly-report", 7, "0" * 32)


def opened():
    return fencelock.http.client(sequencer, requests.Session(), origins=[url])


def in_child(function):
    child = os.fork()
    if child == 0:
        function()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def run(program: str, service: ScriptedService) -> None:
    """Run a program that ends well."""
    command = [sys.executable, "-c", BEGIN + program, service.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr


def test_forked_children_of_one_client_draw_different_keys(service: ScriptedService) -> None:
    program = """
session = opened()
for _ in range(2):
    in_child(lambda: session.put(f"{url}/report"))
session.put(f"{url}/report")
"""
    run(program, service)
    assert len({received.key for received in service.received}) == 3


def test_a_forked_child_does_not_wait_for_its_parents_first_request(service: ScriptedService) -> None:
    """The service answers when it has both requests."""
    answered = threading.Event()
    service.answers += [Answer(after=answered)] * 2

    def answer_both() -> None:
        if len(service.received) > 1:
            answered.set()

    service.on_received = answer_both
    program = """
session = opened()
sending = threading.Thread(target=opened().get, args=[f"{url}/report"])
sending.start()
while not session._fencelock_rules.memory.first_requests._ends:
    pass
in_child(lambda: session.get(f"{url}/report"))
sending.join()
"""
    run(program, service)
    assert len(service.received) == 2
