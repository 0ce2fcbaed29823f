"""Measuring trained models: losses by context with their uncertainty, speed, and the report of a comparison.

perplexity  exact evaluation of a text, settings beside every number (plan: its rows; scoring: the model's side)
context     loss against context length, over all tokens and over one sample (fresh: passes that begin with nothing;
            kept: the loss of every token in files)
recl        how much context a model uses, relative to its group
payoff      where memory pays: losses by place, frequency and copies
probe       recall and copy of made-up texts by distance
interval    how sure a mean or a difference is
speed       tokens a second and bytes against context length
measure     all of it for one run, as a record that survives as JSON (learning: its training)
summary     what several records say together (caveats, sections; page: as Markdown and HTML; report: with pictures,
            report_pictures and report_axes, into a folder)

Objects in, records out. Knows nothing of command lines or of where runs lie.
"""
