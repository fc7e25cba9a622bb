"""The one exception family of the package: each message says what is wrong, where, and what to do."""

from pathlib import Path


class EquiAVError(Exception):
    """Bad input. The command line prints its message as one line and exits with 2; anything else is a bug."""

    def __str__(self) -> str:
        # Messages quote what files hold and are called: line breaks, and what a terminal would obey.
        text = super().__str__()
        return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class ConfigError(EquiAVError):
    """A recipe that cannot be read or asks for the impossible."""


class ShapeError(EquiAVError, ValueError):
    """A tensor of the wrong shape, or with values no computation can use."""


class WeightsError(EquiAVError):
    """A file of weights that is unreadable, unsafe, or belongs to another model."""


class CheckpointError(EquiAVError):
    """A checkpoint that is missing, incomplete, or does not fit what it is loaded into."""


class DataError(EquiAVError):
    """Training or evaluation data that cannot be used as asked."""


class MediaError(EquiAVError):
    """A media file that cannot be used; the message starts with its path."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type["MediaError"], tuple[Path, str]]:
        # Raised in worker processes too: the default would rebuild it from one joined string.
        return (MediaError, (self.path, self.reason))


class TrainingError(EquiAVError):
    """A run that must not go on: the loss is not a number, or the output folder cannot be written."""


class Busy(EquiAVError):
    """A folder in which another process is at work."""
