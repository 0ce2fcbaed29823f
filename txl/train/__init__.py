"""Training: a config in, a run folder with metrics, samples and checkpoints out.

`loop.train` is the one function to read; `begin` is all that comes before its first step, `start` whose weights it may
begin with, `state` what must survive a crash, `optim` how weights move, `schedules` what depends on the step alone,
`work` what a token costs, `journal` what is written and shown, `history` the same read back, `trackers` who else is
told, `folder` who owns the run folder, `signals` how a run is asked to stop, `result` how it ended. Beside it:
`validate`, everything but the training, and `compare`, trained runs measured once.
Knows nothing of the command line.
"""
