"""Adapters by which users keep their own stack: guarded transactions of SQLAlchemy and of Django.

Promise: `import fencelock` loads none of them. Each needs the framework that it is named after, and names the extra
that installs it.
"""
