"""Everything Metis raises on purpose.

MetisError                     shown to the user without a traceback, exit code 2
├── ConfigError                a key, value or combination in the config is wrong
├── DataError                  a dataset is missing, unreadable or cannot be split as asked
├── ModelError                 weights and model do not fit together
│   └── GoneError              a model or packet that was to be had is not any more
├── HandshakeError             a site and a controller are not of one federation
├── LineError                  the other end cannot be reached now; trying again may help
├── JournalError               a journal, checkpoint or stored update cannot be read
├── IdentityError              a certificate, its key or its authority is not what it must be
└── RunError                   the federation cannot go on (no progress, unwritable directory)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MetisError(Exception):
    """Base of all errors whose message alone tells the user what to do."""


class ConfigError(MetisError):
    """A key, a value or a combination of them in the configuration is wrong."""


class DataError(MetisError):
    """A dataset is missing, unreadable, or cannot be divided as asked."""


class ModelError(MetisError):
    """Weights and model do not fit together."""


class GoneError(ModelError):
    """What was asked for is not there any more, or no longer for whoever asks."""


class HandshakeError(MetisError):
    """A site and a controller do not agree on what they do together."""


class LineError(MetisError):
    """The other end cannot be reached at this moment."""


class JournalError(MetisError):
    """A journal, checkpoint or stored update is missing, damaged or contradicts itself."""


class IdentityError(MetisError):
    """Somebody is not who they would have to be: a certificate, key or authority is refused."""


class RunError(MetisError):
    """The federation cannot go on."""


class Interrupted(MetisError):  # noqa: N818 (it is no error)
    """The user stopped the run; what is on disk can be resumed."""


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Return the message for a wrong name: what it is, the nearest right one, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}{hint} (known: {', '.join(names)})"
