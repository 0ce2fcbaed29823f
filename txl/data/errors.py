"""The one error of this room: text, a vocabulary or a prepared corpus that cannot be used.

Knows nothing of exit codes; the command line turns it into code 2.
"""

from __future__ import annotations


class DataError(ValueError):
    """Data cannot be used; the message says where, what was found, what is allowed and what to do."""
