"""What tests of several folders share: waiting, guards and leases made by hand, programs of the system."""
