"""Measuring trained models: losses by context with their uncertainty, speed, and the report of a comparison.

perplexity  exact evaluation of a text, settings beside every number (plan: its rows; scoring: the model's side)
context     loss against context length, over all tokens and over one sample
interval    how sure a mean or a difference is
speed       tokens a second against context length
measure     all of it for one run, as a record that survives as JSON
summary     what several records say together (page: as Markdown and HTML; report: with pictures, into a folder)

Objects in, records out. Knows nothing of command lines or of where runs lie.
"""
