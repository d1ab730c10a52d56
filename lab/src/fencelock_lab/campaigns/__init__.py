"""The one campaign engine: real processes attack a setup, and checkers judge the history of what they were told.

`Campaign` runs one attack on the servers that `CampaignSettings` name; `fencelock verify` is its command. A
`CampaignSchedule` is a campaign that this project repeats against itself, on private servers: `python -m
fencelock_lab.campaigns`. A guard of a user's own is attacked through `text_target.TextGuard`, its two methods.

Promise: what is judged was recorded as it happened, one JSON object a line, and judging the same file again gives the
same verdict. `import fencelock` loads nothing of this package.
"""
