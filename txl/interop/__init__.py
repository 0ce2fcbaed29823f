"""Models of other codes, numbers in and out: their files -> our config, weights and tokenizer, and back.

Knows nothing of training or of run folders' checkpoints; a caller saves what it gets.
"""

from txl.interop.transfo_xl import Imported, begin_run, export_transfo_xl, import_transfo_xl

__all__ = ["Imported", "begin_run", "export_transfo_xl", "import_transfo_xl"]
