"""`fencelock verify`: attack a set-up with real processes, and judge the history of what they were told.

Promise: whatever is judged was recorded as it happened, one JSON object a line, and the same file judged again gives
the same verdict. `import fencelock` loads nothing of this package.
"""
