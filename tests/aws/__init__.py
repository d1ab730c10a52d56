"""Tests of what the stores in AWS share: clients, errors and the emulator."""
