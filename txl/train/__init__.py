"""Training: a config in, a run folder with metrics, samples and checkpoints out.

`loop.train` is the one function to read; `begin` is all that comes before its first step, `state` what must survive a
crash, `optim` how weights move, `journal` what is written and shown, `folder` who owns the run folder, `signals` how a
run is asked to stop. Beside it: `validate`, everything but the training, and `compare`, trained runs measured once.
Knows nothing of the command line.
"""
